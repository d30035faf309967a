"""Methods of the study of negative samplers, by table."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import losses, samplers, tasks, train

from .._occupations import occupations
from .methods import Method, World


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
        # All items are ranked once per draw for every user, regardless of the number of triplets.
        draw=8192 if (candidates or 1000) >= 100 else 1024,
        published=f"bns-oracle-prior|M|={size}",
    )


RNS = Method("rns", lambda _: samplers.RNS())
PNS = Method("pns", lambda world: samplers.PNS.from_interactions(world.train))
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
    DPL, label="dpl+hard", sampler=lambda _: samplers.DNS(2), hyperparams={"tau_plus": 0.3}
)


def _with_loss(name: str, loss: Callable[..., Any], method: Method, n_neg: int = 1) -> Method:
    label = f"{name}+{method.label}"
    return dataclasses.replace(method, label=label, loss=loss, n_neg=n_neg)


TABLES: dict[str, tuple[Method, ...]] = {
    "4.2": (RNS, PNS, AOBPR, DNS, SRNS, BNS, SAMPLED),
    "4.3": (
        RNS,
        BNS,
        Method("bns-1", _bns(risk_lambda=10.0, risk_lambda_slope=0.1, risk_lambda_min=2.0)),
        Method("bns-2", lambda world: samplers.StagedSampler(samplers.RNS(), _bns()(world), 10)),
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
    # The published prior of a true negative, 0.04, and one that is closer to the truth.
    "4.5": (
        *(_oracle(size) for size in (1, 3, 5, 10, 20, 50, 100, 500, None)),
        *(_oracle(size, true=0.001) for size in (5, 20, 100, None)),
    ),
    "5.3": (dataclasses.replace(RNS, label="bpr"), BNS, DPL, _HARD),
}  # fmt: skip
QUALITY = (RNS, PNS, AOBPR, DNS, SRNS, POSTERIOR, BNS)
LAMBDAS = (0.1, 1.0, 5.0, 10.0, 15.0)
SIZES = (1, 3, 5, 10, 15)
LAMBDA_OR_SIZE = {
    "risk_lambda": tuple(Method(f"λ = {value:g}", _bns(risk_lambda=value)) for value in LAMBDAS),
    "size": tuple(Method(f"|M| = {size}", _bns(candidates=size)) for size in SIZES),
}


def score_histogram(world: World, edges: np.ndarray) -> train.ValidationMetrics:
    """Returns a hook that counts the scores of true and false negatives in bins with ``edges``.

    False negatives are the test items; true negatives are all other items that a user has not
    interacted with. Scores beyond the edges count in the outermost bins.
    """
    shape = world.train.n_users, world.train.n_items
    kind = np.zeros(shape, np.int8)  # 0 for a true negative, 1 for a false one, 2 for a positive
    kind[world.test.users, world.test.items] = 1
    kind[world.train.users, world.train.items] = 2
    counted = jax.tree_util.Partial(
        _count_scores, jnp.asarray(kind), jnp.asarray(edges, jnp.float32)
    )
    return train.ValidationMetrics(counted)


def _count_scores(
    kind: jax.Array, edges: jax.Array, task: tasks.Ranking, params: Any, model_state: Any
) -> dict[str, jax.Array]:
    del model_state
    tables = task.serving.serving_tables(params)
    scores = tables.users @ tables.items.T
    n = edges.size - 1
    bins = jnp.clip(jnp.searchsorted(edges, scores.ravel(), side="right") - 1, 0, n - 1)
    cells = kind.ravel().astype(jnp.int32) * n + bins
    counts = jnp.zeros(3 * n, jnp.int32).at[cells].add(1).reshape(3, n)
    return {"true_negatives": counts[0], "false_negatives": counts[1]}
