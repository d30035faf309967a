"""The sampling study: which methods its tables compare, and how each of them is trained."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from crl_jax import __version__, data, losses, metrics, models, samplers, train

from ._occupations import occupations
from ._rundir import write_json

KS = (5, 10, 20)
DIM = 32


@dataclass(frozen=True)
class World:
    """The data of a study.

    Attributes:
      train: What models learn from.
      test: What they are scored on, once; the false negatives of the sampling quality.
      folder: Where the data came from.
    """

    train: data.Interactions
    test: data.Interactions
    folder: str


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes:
      label: Its name in the table.
      sampler: Makes the sampler for a training part, which is not always all of it.
      loss: The loss.
      knobs: Hyper-parameters of the loss.
      n_neg: Negatives per anchor.
      n_pos: Extra positives per anchor.
      draw: Triplets whose negatives are drawn together in the published setting.
      published: The method's name in the dissertation's numbers, where it is another.
    """

    label: str
    sampler: Callable[[World], samplers.Sampler]
    loss: Callable[..., Any] = losses.bpr
    knobs: dict[str, float] = field(default_factory=dict)
    n_neg: int = 1
    n_pos: int = 0
    draw: int = 1024
    published: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What training a method several times comes to.

    Attributes:
      label: The method.
      per_seed: Test metrics of each seed.
      per_user: NDCG@20 of each user with test items, averaged over seeds.
      history: Entries of the training of all seeds, see :func:`crl_jax.train.fit`.
      chosen: What a search chose; empty in the published setting.
    """

    label: str
    per_seed: list[dict[str, float]]
    per_user: list[float]
    history: list[dict[str, Any]]
    chosen: dict[str, float]


OnEpoch = Callable[[dict[str, Any]], None]


def _bns(**changes: Any) -> Callable[[World], samplers.Sampler]:
    return lambda world: samplers.BNS(samplers.popularity_prior(world.train), **changes)


def _oracle(candidates: int | None, true: float = 0.04) -> Method:
    size = "all" if candidates is None else str(candidates)
    sharp = "" if true == 0.04 else f"sharp ({true:g}) "
    return Method(
        f"{sharp}oracle, |M| = {size}",
        lambda world: samplers.BNS(
            samplers.oracle_prior(world.test, true=true), candidates=candidates
        ),
        # All items are ranked once per draw for every user, however many triplets it serves.
        draw=8192 if (candidates or 1000) >= 100 else 1024,
        published=f"bns-oracle-prior|M|={size}",
    )


RNS = Method("rns", lambda _: samplers.RNS())
PNS = Method("pns", lambda world: samplers.PNS.of(world.train))
AOBPR = Method("aobpr", lambda _: samplers.AOBPR())
# The dissertation's DNS draws with a probability linear in the rank: two candidates.
DNS = Method("dns", lambda _: samplers.DNS(2))
SRNS = Method("srns", lambda _: samplers.SRNS())
BNS = Method("bns", _bns())
POSTERIOR = Method("posterior only", _bns(criterion="posterior"))
SAMPLED = Method("bns, eCDF of 64", _bns(ecdf_samples=64), published="bns")
DPL = Method(
    "dpl", lambda _: samplers.RNS(), losses.debiased_pairwise, {"tau_plus": 0.15}, n_neg=5, n_pos=10
)
_HARD = dataclasses.replace(
    DPL, label="dpl+hard", sampler=lambda _: samplers.DNS(2), knobs={"tau_plus": 0.3}
)


def _with_loss(name: str, loss: Callable[..., Any], method: Method, n_neg: int = 1) -> Method:
    label = f"{name}+{method.label}"
    return dataclasses.replace(method, label=label, loss=loss, n_neg=n_neg)


TABLES: dict[str, tuple[Method, ...]] = {
    "4.2": (RNS, PNS, AOBPR, DNS, SRNS, BNS, SAMPLED),
    "4.3": (
        RNS,
        BNS,
        Method("bns-1", _bns(gain=10.0, gain_slope=0.1, gain_least=2.0)),
        Method("bns-2", lambda world: samplers.Staged(samplers.RNS(), _bns()(world), 10)),
        Method(
            "bns-3", lambda world: samplers.BNS(samplers.uniform_prior(world.train.n_items))
        ),
        Method(
            "bns-4",
            lambda world: samplers.BNS(
                samplers.group_prior(world.train, occupations(world.folder, world.train))
            ),
        ),
    ),
    "4.4": tuple(
        _with_loss(name, loss, method, n_neg)
        for name, loss, n_neg in (
            ("bpr", losses.bpr, 1), ("bce", losses.bce, 1), ("info_nce", losses.info_nce, 2),
        )
        for method in (RNS, BNS)
    ),
    # The published prior of a true negative, 0.04, and one that is nearer to knowing it.
    "4.5": (
        *(_oracle(size) for size in (1, 3, 5, 10, 20, 50, 100, 500, None)),
        *(_oracle(size, true=0.001) for size in (5, 20, 100, None)),
    ),
    "5.3": (dataclasses.replace(RNS, label="bpr"), BNS, DPL, _HARD),
}  # fmt: skip
QUALITY = (RNS, PNS, AOBPR, DNS, SRNS, POSTERIOR, BNS)
GAINS = (0.1, 1.0, 5.0, 10.0, 15.0)
SIZES = (1, 3, 5, 10, 15)
GAIN_OR_SIZE = {
    "gain": tuple(Method(f"gain {gain:g}", _bns(gain=gain)) for gain in GAINS),
    "size": tuple(Method(f"|M| = {size}", _bns(candidates=size)) for size in SIZES),
}


def train_published(
    method: Method,
    world: World,
    seeds: tuple[int, ...],
    epochs: int,
    *,
    probe: Callable[[Any], Any] | None = None,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> Outcome:
    """The published setting: SGD, one triplet a step, no validation, scored after the last epoch.

    Width 32, learning rate 0.01, L2 0.01 on the rows of each triplet, initial values N(0, 0.01²),
    with which RNS comes to its published numbers.
    Negatives are drawn for ``method.draw`` triplets at a time, from the parameters before them.
    """
    n_users, n_items = world.train.n_users, world.train.n_items
    fitted = train.fit(
        world.train,
        loss=method.loss,
        knobs=method.knobs,
        build=lambda rngs: models.MatrixFactorization(
            n_users, n_items, DIM, init=nnx.initializers.normal(0.01), rngs=rngs
        ),
        n_neg=method.n_neg,
        n_pos=method.n_pos,
        sampler=method.sampler(world),
        held_out=world.test,
        probe=probe,
        learning_rate=0.01,
        weight_decay=0.01,
        optimizer=train.sgd_l2,
        batch_size=1,
        draw_batches=method.draw,
        row_wise=True,
        epochs=epochs,
        seeds=np.asarray(seeds),
        checkpoint=checkpoint,
        on_epoch=on_epoch,
    )
    return _score(method, world, fitted, {})


# Eight points for every method; decided on a fifth of the training interactions, one seed.
GRID = {
    "learning_rate": (1e-3, 2e-3),
    "weight_decay": (1e-5, 3e-5),
    "init_scale": (0.1, 1.0),
}


def train_minibatch(
    method: Method,
    world: World,
    seeds: tuple[int, ...],
    epochs: int,
    *,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> Outcome:
    """A fair minibatch setting: Adam, batches of 1,024, the same search for every method.

    Eight points (:data:`GRID`) are trained on four fifths of the training interactions; the best
    point and its epoch, by NDCG@20 on the rest, then train on all of them with every seed.
    """
    cut = data.with_validation(world.train, valid=0.2)
    assert cut.valid is not None
    part = dataclasses.replace(world, train=cut.train)
    n_users, n_items = world.train.n_users, world.train.n_items
    fit: Callable[..., train.Fitted] = partial(
        train.fit,
        loss=method.loss,
        knobs=method.knobs,
        build=lambda rngs: models.MatrixFactorization(n_users, n_items, DIM, rngs=rngs),
        n_neg=method.n_neg,
        n_pos=method.n_pos,
        schedule=train.halfway,
        decay=0.3,
        epochs=epochs,
        on_epoch=on_epoch,
    )
    runs = train.grid(GRID, seeds[:1])
    search: dict[str, Any] = {**runs, "eval_every": 5}
    search["checkpoint"] = checkpoint and checkpoint.with_suffix(".search.npz")
    searched = fit(part.train, cut.valid, sampler=method.sampler(part), **search)
    choice = train.choose(searched)
    point = {name: float(runs[name][choice.point]) for name in GRID}
    final: dict[str, Any] = {name: np.float32(value) for name, value in point.items()}
    final |= {"stop_at": choice.epochs, "seeds": np.asarray(seeds), "checkpoint": checkpoint}
    fitted = fit(world.train, sampler=method.sampler(world), held_out=world.test, **final)
    chosen = {**point, "epochs": choice.epochs, "valid_ndcg@20": choice.score}
    return _score(method, world, fitted, chosen)


def _score(method: Method, world: World, fitted: train.Fitted, chosen: dict[str, float]) -> Outcome:
    plan = metrics.ranking_plan(world.train, world.test)
    per_seed, users = [], []
    for run in range(fitted.n_runs):
        values = metrics.evaluate(fitted.model.score_all, fitted.run(run), plan, ks=KS, auc=False)
        per_seed.append(metrics.summarize(values))
        users.append(np.asarray(values["ndcg@20"], float))
    mean = np.mean(users, axis=0).tolist()
    return Outcome(method.label, per_seed, mean, fitted.history, chosen)


def run_once(
    method: Method,
    world: World,
    setting: str,
    seeds: tuple[int, ...],
    epochs: int,
    folder: Path,
    on_epoch: OnEpoch,
) -> Outcome:
    """Trains a method, or reads what an earlier command in the same folder came to.

    Args:
      method: The method.
      world: The data.
      setting: ``"published"`` or ``"minibatch"``.
      seeds: The seeds.
      epochs: Length of the training.
      folder: Where outcomes are kept, by all that they depend on; a training that was killed
        goes on from its checkpoint.
      on_epoch: Called with each entry of the history.
    """
    leaves, structure = jax.tree.flatten(method.sampler(world))
    knows = [
        __version__, setting, list(seeds), epochs,
        world.train.fingerprint(), world.test.fingerprint(),
        re.sub(r" at 0x[0-9a-f]+", "", str(structure)),
        [hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for leaf in leaves],
        method.loss.__name__, method.knobs, method.n_neg, method.n_pos, method.draw,
    ]  # fmt: skip
    name = hashlib.sha256(json.dumps(knows).encode()).hexdigest()[:16]
    path = folder / f"{setting}-{name}.json"
    if path.exists():
        # The same training may stand in several tables under several names.
        return Outcome(**{**json.loads(path.read_text()), "label": method.label})
    runner = train_published if setting == "published" else train_minibatch
    checkpoint = path.with_suffix(".npz")
    outcome = runner(method, world, seeds, epochs, checkpoint=checkpoint, on_epoch=on_epoch)
    write_json(path, dataclasses.asdict(outcome))
    for left in (checkpoint, checkpoint.with_suffix(".search.npz")):
        left.unlink(missing_ok=True)
    return outcome


def score_histogram(world: World, edges: np.ndarray) -> Callable[[Any], dict[str, jax.Array]]:
    """A probe that counts the scores of true and of false negatives between ``edges``.

    False negatives are the test items, true ones all else that a user has not taken. Scores
    beyond the edges count in the outermost bins.
    """
    shape = world.train.n_users, world.train.n_items
    kind = np.zeros(shape, np.int8)  # 0 a true negative, 1 a false one, 2 a positive
    kind[world.test.users, world.test.items] = 1
    kind[world.train.users, world.train.items] = 2
    return jax.tree_util.Partial(_count_scores, jnp.asarray(kind), jnp.asarray(edges, jnp.float32))


def _count_scores(kind: jax.Array, edges: jax.Array, params: Any) -> dict[str, jax.Array]:
    scores = params["users"] @ params["items"].T
    n = edges.size - 1
    bins = jnp.clip(jnp.searchsorted(edges, scores.ravel(), side="right") - 1, 0, n - 1)
    cells = kind.ravel().astype(jnp.int32) * n + bins
    counts = jnp.zeros(3 * n, jnp.int32).at[cells].add(1).reshape(3, n)
    return {"true_negatives": counts[0], "false_negatives": counts[1]}
