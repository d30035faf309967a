"""How the methods of a table are trained and scored, whatever it compares."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from crl_jax import __version__, data, losses, metrics, models, samplers, tasks, train

from ._locks import hold
from ._rundir import write_json


@dataclass(frozen=True)
class Recipe:
    """What all methods of a study have in common.

    Attributes:
      dim: Width of the embeddings.
      learning_rate: Of the published setting.
      weight_decay: L2 on the rows of each triplet, in the published setting.
      deviation: Of the normal initial values, in the published setting.
      epochs: Of the published setting; or a function of the data that gives them.
      metrics: What is reported.
      main: By which of them methods are compared.
      by_user: Whether the main metric is one per user, so that users can be compared.
    """

    dim: int
    learning_rate: float
    weight_decay: float
    deviation: float
    epochs: "int | Callable[[World], int]"
    metrics: tuple[str, ...]
    main: str
    by_user: bool = True

    @property
    def ks(self) -> tuple[int, ...]:
        """The cut-offs of the metrics."""
        return tuple(sorted({int(name.split("@")[1]) for name in self.metrics if "@" in name}))


SAMPLING = Recipe(
    dim=32,
    learning_rate=0.01,
    weight_decay=0.01,
    deviation=0.01,  # with which RNS comes to its published numbers
    epochs=100,
    metrics=tuple(f"{name}@{k}" for k in (5, 10, 20) for name in ("precision", "recall", "ndcg")),
    main="ndcg@20",
)


@dataclass(frozen=True)
class World:
    """The data of a study.

    Attributes:
      train: What models learn from.
      test: What they are scored on, once; the false negatives of the sampling quality.
      folder: Where the data came from.
      masked: What is left out of the rankings that are scored; None for the training part.
    """

    train: data.Interactions
    test: data.Interactions
    folder: str
    masked: data.Interactions | None = None


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
      n_group: Users per anchor who took the same item.
      credence: Makes the estimator of credibility for a training part.
      knob_schedule: How the hyper-parameters change along the training.
      axis: A hyper-parameter of the loss that a search tries further values of.
      batches: Whether it needs batches of more than one anchor.
      recipe: What it has in common with the others of its study.
      anchors: Whether it goes through the interactions or draws users first, see
        :func:`crl_jax.tasks.fit_ranking`.
      rate: Factor on the learning rate of the published setting.
    """

    label: str
    sampler: Callable[[World], samplers.Sampler] = lambda _: samplers.RNS()
    loss: Callable[..., Any] = losses.bpr
    knobs: dict[str, float] = field(default_factory=dict)
    n_neg: int = 1
    n_pos: int = 0
    draw: int = 1024
    published: str | None = None
    n_group: int = 0
    credence: Callable[[World], tasks.Confidence] | None = None
    knob_schedule: tasks.HyperparamSchedule | None = None
    axis: tuple[str, tuple[float, ...]] | None = None
    batches: bool = False
    recipe: Recipe = SAMPLING
    anchors: Literal["interactions", "users"] = "interactions"
    rate: float = 1.0

    def estimator(self, world: World) -> tasks.Confidence | None:
        """The estimator of credibility for the training part of ``world``, if it has one."""
        return None if self.credence is None else self.credence(world)

    def epochs(self, world: World) -> int:
        """Length of its training in the published setting."""
        epochs = self.recipe.epochs
        return epochs if isinstance(epochs, int) else epochs(world)


@dataclass(frozen=True)
class Outcome:
    """What training a method several times comes to.

    Attributes:
      label: The method.
      per_seed: Test metrics of each training: every seed, of one split after the other.
      per_user: The main metric of each user, averaged over trainings; NaN without test items.
      history: Entries of the training of all seeds, see :func:`crl_jax.tasks.fit_ranking`.
      chosen: What a search chose; empty in the published setting.
      roc: Rates of true positives at 101 even rates of false ones, of the confidence as a judge of
        which training interactions are rated above 1; empty without credence or ratings.
      splits: How many splits the trainings are of.
    """

    label: str
    per_seed: list[dict[str, float]]
    per_user: list[float]
    history: list[dict[str, Any]]
    chosen: dict[str, float]
    roc: list[float] = field(default_factory=list)
    splits: int = 1

    def by_split(self, name: str) -> np.ndarray:
        """A metric ``[splits, seeds]``."""
        return np.reshape([m[name] for m in self.per_seed], (self.splits, -1))

    def units(self, name: str) -> np.ndarray:
        """What is compared in pairs: splits, averaged over seeds, or the seeds of one split."""
        values = self.by_split(name)
        return values[0] if self.splits == 1 else values.mean(axis=1)


def pool(outcomes: Sequence[Outcome]) -> Outcome:
    """Outcomes of one method on several splits as one."""
    first = outcomes[0]
    if len(outcomes) == 1:
        return first
    users = np.array([outcome.per_user for outcome in outcomes], float)
    there = ~np.isnan(users)
    counts = there.sum(axis=0)
    mean = np.where(there, users, 0).sum(axis=0) / np.where(counts, counts, np.nan)
    return dataclasses.replace(
        first,
        per_seed=[metrics for outcome in outcomes for metrics in outcome.per_seed],
        per_user=mean.tolist(),
        roc=np.mean([outcome.roc for outcome in outcomes], axis=0).tolist() if first.roc else [],
        splits=len(outcomes),
    )


OnEpoch = Callable[[dict[str, Any]], None]


def train_published(
    method: Method,
    world: World,
    seeds: tuple[int, ...],
    epochs: int,
    *,
    probe: train.Hook | None = None,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> Outcome:
    """The published setting: SGD, one triplet a step, no validation, scored after the last epoch.

    Width, learning rate, L2 on the rows of each triplet and initial values are those of the recipe.
    Negatives are drawn for ``method.draw`` triplets at a time, from the parameters before them.
    """
    recipe = method.recipe
    fitted = tasks.fit_ranking(
        world.train,
        **_of_method(method, world),
        encoder=_factors(world, recipe.dim, models.normal(recipe.deviation)),
        held_out=world.test,
        optimizer=train.Optimizer(
            recipe.learning_rate * method.rate, recipe.weight_decay, rule=train.sgd_l2
        ),
        plan=train.StepPlan(1, draw_batches=method.draw, row_wise=True),
        epochs=epochs,
        seeds=np.asarray(seeds),
        hooks=[*([] if probe is None else [probe]), *_callbacks(checkpoint, on_epoch)],
    )
    return _score(method, world, fitted, {})


# Eight points for every method, times its own axis; decided on a fifth of the training
# interactions, one seed.
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
    """A minibatch setting: Adam, batches of 1,024, and a search for every method.

    Eight points (:data:`GRID`), times the values of the method's own axis, are trained on four
    fifths of the training interactions; the best point and its epoch, by NDCG@20 on the rest, then
    train on all of them with every seed.
    """
    cut = data.with_validation(world.train, valid=0.2)
    assert cut.valid is not None
    part = dataclasses.replace(world, train=cut.train)
    fit: Callable[..., tasks.FittedRanking] = partial(
        tasks.fit_ranking,
        encoder=_factors(world, method.recipe.dim, models.xavier_normal),
        epochs=epochs,
    )
    own, values = method.axis or ("", ())
    runs = train.grid({**GRID, **({f"loss.{own}": values} if own else {})}, seeds[:1])
    optimizer = train.Optimizer(1e-3, 1e-5, 0.3, schedule=train.step_decay)
    searched = fit(
        part.train, cut.valid, **_of_method(method, part), optimizer=optimizer, eval_every=5,
        seeds=runs.pop("seeds"), sweep=runs,
        hooks=_callbacks(checkpoint and checkpoint.with_suffix(".search.npz"), on_epoch),
    )  # fmt: skip
    choice = train.choose(searched)
    found = {name: float(array[choice.point]) for name, array in runs.items()}
    fitted = fit(
        world.train, **_of_method(method, world), optimizer=optimizer, held_out=world.test,
        seeds=np.asarray(seeds), sweep=found, stop_at=choice.epochs,
        hooks=_callbacks(checkpoint, on_epoch),
    )  # fmt: skip
    point = {name.removeprefix("loss."): value for name, value in found.items()}
    chosen = {**point, "epochs": choice.epochs, "valid_ndcg@20": choice.score}
    return _score(method, world, fitted, chosen)


def _of_method(method: Method, world: World) -> dict[str, Any]:
    """What a method says of its training on a part of the data."""
    return {
        "loss": method.loss,
        "hyperparams": method.knobs,
        "hyperparam_schedule": method.knob_schedule,
        "n_neg": method.n_neg,
        "n_pos": method.n_pos,
        "n_group": method.n_group,
        "confidence": method.estimator(world),
        "anchors": method.anchors,
        "sampler": method.sampler(world),
    }


def _factors(world: World, dim: int, initializer: Any) -> models.MatrixFactorization:
    n_users, n_items = world.train.n_users, world.train.n_items
    return models.MatrixFactorization(n_users, n_items, dim, initializer=initializer)


def _callbacks(checkpoint: Path | None, on_epoch: OnEpoch | None) -> list[train.Callback]:
    saved = [] if checkpoint is None else [train.Checkpoint(checkpoint)]
    return [*saved, *([] if on_epoch is None else [train.Progress(on_epoch)])]


def _score(
    method: Method, world: World, fitted: tasks.FittedRanking, chosen: dict[str, float]
) -> Outcome:
    plan = metrics.ranking_plan(world.masked or world.train, world.test)
    recipe, credence, ratings = method.recipe, method.estimator(world), world.train.ratings
    per_seed, users, curves = [], [], []
    for run in range(fitted.n_runs):
        tables = fitted.tables(run)
        values = metrics.evaluate(
            models.inner_scores, tables, plan, ks=recipe.ks, auc="auc" in recipe.metrics
        )
        per_seed.append(metrics.summarize(values))
        everyone = np.full(world.train.n_users, np.nan)
        everyone[np.asarray(plan.users)] = values[recipe.main]
        users.append(everyone)
        if credence is not None and ratings is not None:
            confidence = estimate_confidence(credence, fitted.encoder, tables, world.train)
            auc, curve = judge(confidence, ratings > 1)
            per_seed[-1]["confidence_auc"] = auc
            curves.append(curve)
    mean = np.mean(users, axis=0).tolist()
    roc = np.mean(curves, axis=0).tolist() if curves else []
    return Outcome(method.label, per_seed, mean, fitted.history, chosen, roc)


def estimate_confidence(
    credence: tasks.Confidence,
    encoder: models.Encoder,
    tables: models.Tables,
    log: data.Interactions,
) -> np.ndarray:
    """The confidence of every interaction of ``log``."""
    users, items = (jnp.asarray(x, jnp.int32) for x in (log.users, log.items))
    key = jax.random.key(0)
    return np.asarray(credence.estimate(key, encoder, tables, users, items, log.n_items))


def judge(values: np.ndarray, good: np.ndarray) -> tuple[float, np.ndarray]:
    """How well ``values`` tell the good from the others: AUC, ties half, and 101 points of the ROC.

    NaN if there are none of one kind.
    """
    n_good, n_bad = int(good.sum()), int((~good).sum())
    if not n_good or not n_bad:
        return math.nan, np.full(101, math.nan)
    ranks = stats.rankdata(values)
    auc = (ranks[good].sum() - n_good * (n_good + 1) / 2) / (n_good * n_bad)
    # One point per distinct value, from the highest down: ties enter together, as a slope.
    order = np.argsort(-values, kind="stable")
    last = np.append(np.flatnonzero(np.diff(values[order])), len(order) - 1)
    true, false = (np.concatenate([[0], np.cumsum(x[order])[last]]) for x in (good, ~good))
    return float(auc), np.interp(np.linspace(0, 1, 101), false / n_bad, true / n_good)


# Of a stored outcome; another one is not read.
_FORM = 3


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
      folder: Where outcomes are kept, by all that they depend on, under one version of JAX; a
        training that was killed goes on from its checkpoint, and one that another process is at
        is waited for.
      on_epoch: Called with each entry of the history.
    """
    knows = [
        __version__, _FORM, setting, list(seeds), epochs,
        world.train.fingerprint(), world.test.fingerprint(),
        *_describe(method.sampler(world)),
        _computed(method), method.knobs, method.n_neg, method.n_pos, method.draw,
        *_further(method, world),
    ]  # fmt: skip
    name = hashlib.sha256(json.dumps(knows).encode()).hexdigest()[:16]
    path = folder / f"{setting}-{name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with hold(path.with_suffix(".lock")):  # another command may be at the same training
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


def _computed(method: Method) -> list[str]:
    """What loss and schedule compute: a changed formula is not taken for what it was."""
    ahead = 1 + method.n_pos + method.n_group
    pos = jax.ShapeDtypeStruct((2, ahead) if ahead > 1 else (2,), jnp.float32)
    neg = jax.ShapeDtypeStruct((2, method.n_neg), jnp.float32)
    loss = partial(method.loss, reduce_fn=None, **method.knobs)
    found = [train.computation_hash(loss, pos, neg)]
    if method.knob_schedule is not None:
        number = jax.ShapeDtypeStruct((), jnp.float32)
        knobs = dict.fromkeys(method.knobs, number)
        found.append(train.computation_hash(method.knob_schedule, number, knobs))
    return found


def _describe(tree: Any) -> tuple[str, list[str]]:
    """What tells a pytree from others, arrays by their hash."""
    leaves, structure = jax.tree.flatten(tree)
    hashes = [hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for leaf in leaves]
    return re.sub(r" at 0x[0-9a-f]+", "", str(structure)), hashes


def _further(method: Method, world: World) -> list[Any]:
    """What a method has beyond loss and sampler."""
    plain = Method(method.label)
    names = ("n_group", "axis", "anchors", "rate")
    found: dict[str, Any] = {
        name: str(getattr(method, name))
        for name in names
        if getattr(method, name) != getattr(plain, name)
    }
    if method.recipe != plain.recipe:
        # The number of epochs stands beside it.
        found["recipe"] = str(dataclasses.replace(method.recipe, epochs=0))
    if method.credence is not None:
        found["credence"] = _describe(method.credence(world))
    return [found] if found else []
