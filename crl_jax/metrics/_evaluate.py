"""Ranking evaluation over the full catalogue, in blocks of users.

The device runs over the blocks of a plan: score all items, set the known ones to -inf, select
the top k. Only items and integer counts leave a block; every metric is computed from them
outside, so that the numbers cannot depend on how the users were grouped.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from .._checks import check_range, check_shape
from .._floats import at_least_float32
from .._mesh import DATA, TABLE, mesh_axis
from .._search import rows_contain
from . import _ranking as ranking
from ._eval_layout import Blocks, EvalLayout, InteractionsLike, block_layout, pair_ids
from ._top_k import approx_top_k, sharded_top_k, top_k

_METRICS = {
    "precision": ranking.precision_at,
    "recall": ranking.recall_at,
    "f1": ranking.f1_at,
    "ndcg": ranking.ndcg_at,
    "map": ranking.average_precision_at,
    "hit_precision": ranking.hit_precision_at,
    "mrr": ranking.reciprocal_rank_at,
    "hit_rate": ranking.hit_rate_at,
}

# Test items whose scores one pass over the catalogue compares.
_TILE = 8


@runtime_checkable
class ScoreFn(Protocol):
    """Scores of the whole catalogue for some users, a pure function that can be hashed.

    Pass the same function object at every call: a new lambda or ``partial`` recompiles. On
    GPU and TPU a matrix product rounds its inputs unless told not to (``precision="highest"``),
    which reorders close scores.
    """

    def __call__(self, params: Any, users: Int[Array, " block"], /) -> Float[Array, "block items"]:
        """Returns the scores of all items for each of ``users``."""
        ...


def evaluate(
    score_fn: ScoreFn,
    params: Any,
    layout: EvalLayout,
    *,
    ks: Sequence[int] = (20,),
    auc: bool = True,
    mesh: Mesh | None = None,
) -> dict[str, Float[Array, "..."]]:
    """Ranks the full catalogue for every test user.

    Items are ranked by score, equal scores by lower index first, and the masked ones never. An
    item that the model itself scores -inf is not recommended either: where ``k`` exceeds what
    is left, the list is shorter, and precision still divides by ``k``.

    A user with a NaN among the scores of their candidates gets NaN in every metric, and one
    such user makes the coverage NaN: a model that diverged cannot look good.

    The values do not depend on the block size of the plan, bit for bit, if ``score_fn`` gives a
    user the same scores in any company. May be called inside ``jit`` (``score_fn``, ``ks`` and
    ``auc`` static), and under ``vmap`` over ``params`` to evaluate several models at once.
    Calls that differ only in the values of ``params`` compile once.

    Args:
      score_fn: ``score_fn(params, users) -> scores``, ``[block] -> [block, n_items]``.
      params: The first argument of ``score_fn``, any pytree.
      plan: What to rank and to find, from :func:`eval_layout`.
      ks: The cutoffs, positive; static.
      auc: Whether to compute the AUC, which compares every test item with every candidate;
        costs nothing if False.
      mesh: Devices to spread the users of a block over, along an axis ``data``, and the items,
        along an axis ``table``; static. The numbers do not depend on it.

    Returns:
      For every ``k``, float32 values per evaluated user in increasing order of the users
      (``layout.users``), ``[n_evaluated]``: ``"precision@k"``, ``"recall@k"``, ``"f1@k"``,
      ``"ndcg@k"``, ``"map@k"``, ``"hit_precision@k"``, ``"mrr@k"``, ``"hit_rate@k"``, defined in
      :func:`precision_at` and its siblings; and the scalar ``"coverage@k"``, the share of the
      catalogue that appears in the first k of at least one user. ``"auc"``, ``[n_evaluated]``,
      over all candidates, ties half (:func:`crl_jax.metrics.auc`).

    Raises:
      ValueError: If ``ks`` is empty or holds a value below 1, or if ``score_fn`` returns
        another shape.
    """
    ks = tuple(ks)
    if not ks or min(ks) < 1:
        raise ValueError(f"`ks` must hold one or more positive cutoffs, got {ks}.")
    return _evaluate(score_fn, params, layout, ks=ks, auc=auc, mesh=mesh)


def summarize(values: dict[str, Float[Array, "..."]]) -> dict[str, float]:
    """Means over users, in float64, of what :func:`evaluate` returned for one model.

    >>> print(summarize({"recall@5": jnp.array([0.0, 1.0]), "coverage@5": jnp.array(0.25)}))
    {'recall@5': 0.5, 'coverage@5': 0.25}

    Args:
      values: Per-user values ``[n_evaluated]`` and scalars.

    Returns:
      A float for each; NaN if one of its values is.

    Raises:
      ValueError: If a value has more than one axis: take the models of a ``vmap`` one by one.
    """
    for name, value in values.items():
        if np.ndim(value) > 1:
            raise ValueError(
                f"`{name}` must be one value per user or a scalar, got the shape "
                f"{np.shape(value)}; summarize the models of a vmap one by one."
            )
    return {name: float(np.mean(np.asarray(v, np.float64))) for name, v in values.items()}


def recommend(
    score_fn: ScoreFn,
    params: Any,
    users: Int[np.ndarray, " n_users"] | Sequence[int],
    exclude: InteractionsLike,
    *,
    k: int,
    block_size: int | None = None,
    mesh: Mesh | None = None,
    recall_target: float | None = None,
) -> tuple[Int[Array, "n_users k"], Float[Array, "n_users k"]]:
    """The ``k`` items with the greatest scores for each user, known ones left out.

    Ranked as in :func:`evaluate`. A user with fewer than ``k`` items to recommend gets -1 with
    the score -inf in the places left; one with a NaN score gets -1 with NaN everywhere.

    Args:
      score_fn: ``score_fn(params, users) -> scores``, ``[block] -> [block, n_items]``.
      params: The first argument of ``score_fn``, any pytree.
      users: Ids in ``[0, n_users)``, in any order; a new number of them recompiles.
      exclude: The interactions to leave out, and the size of the catalogue.
      k: How many items, positive.
      block_size: As for :func:`eval_layout`.
      mesh: As for :func:`evaluate`.
      recall_target: Selects by :func:`approx_top_k` with this target; None selects exactly.

    Returns:
      Items, int32, and their scores, at least float32, greatest first, each ``[n_users, k]``.

    Raises:
      ValueError: If ``k`` or ``block_size`` is not positive, if ``recall_target`` leaves (0, 1],
        if ``users`` is empty or holds an id out of range, or if ``score_fn`` returns another
        shape.
    """
    users = np.asarray(users)
    if k < 1:
        raise ValueError(f"`k` must be positive, got {k}.")
    if not users.size or users.min() < 0 or users.max() >= exclude.n_users:
        raise ValueError(f"`users` must hold ids in [0, {exclude.n_users}), got {users}.")
    masked = pair_ids(exclude, users=np.unique(users))
    blocks = block_layout(users, np.arange(users.size), masked, exclude.n_items, block_size)
    blocks = jax.tree.map(jnp.asarray, blocks)
    if recall_target is not None:
        check_range("recall_target", recall_target, 0, 1, low_open=True)
    return _recommend(
        score_fn, params, blocks,
        n_items=exclude.n_items, k=k, mesh=mesh, recall_target=recall_target,
    )  # fmt: skip


@partial(jax.jit, static_argnames=("score_fn", "ks", "auc", "mesh"))
def _evaluate(
    score_fn: ScoreFn,
    params: Any,
    layout: EvalLayout,
    *,
    ks: tuple[int, ...],
    auc: bool,
    mesh: Mesh | None,
) -> dict[str, Array]:
    blocks = layout.blocks
    k_max = min(max(ks), layout.n_items)

    def rank(block: Array) -> tuple[Array, ...]:
        scores = _masked_scores(score_fn, params, blocks, block, layout.n_items, mesh)
        values, items = _best(scores, k_max, mesh)
        if not auc:
            return values, items
        tests = jax.tree.map(lambda x: x[block], layout.block_tests)
        return values, items, _inversions(scores, layout.test_items, *tests)

    out = lax.map(rank, jnp.arange(blocks.users.shape[0]))
    out = [x.reshape(-1, *x.shape[2:])[blocks.slots] for x in out]
    values, items = out[:2]
    listed = values > -jnp.inf
    diverged = jnp.isnan(values[:, 0])
    start, stop = (x[:, None] for x in (layout.test_starts, layout.test_starts + layout.n_relevant))
    rounds = layout.max_relevant.bit_length()
    found = rows_contain(layout.test_items, items, start, stop, rounds)
    hits = _pad_ranks(listed & found, max(ks), False)

    result = {}
    for k in ks:
        for name, metric in _METRICS.items():
            result[f"{name}@{k}"] = metric(hits, layout.n_relevant, k=k)
    if auc:
        n_irrelevant = layout.n_candidates - layout.n_relevant
        result["auc"] = ranking.auc(out[2], layout.n_relevant, n_irrelevant)
    result = {name: jnp.where(diverged, jnp.nan, value) for name, value in result.items()}
    for k in ks:
        shown = jnp.where(listed, items, layout.n_items)[:, :k]  # out of range: dropped
        seen = jnp.zeros(layout.n_items, bool).at[shown].set(True, mode="drop")
        coverage = jnp.sum(seen).astype(jnp.float32) / layout.n_items
        result[f"coverage@{k}"] = jnp.where(diverged.any(), jnp.nan, coverage)
    return result


@partial(jax.jit, static_argnames=("score_fn", "n_items", "k", "mesh", "recall_target"))
def _recommend(
    score_fn: ScoreFn,
    params: Any,
    blocks: Blocks,
    *,
    n_items: int,
    k: int,
    mesh: Mesh | None,
    recall_target: float | None,
) -> tuple[Array, Array]:
    def rank(block: Array) -> tuple[Array, Array]:
        scores = _masked_scores(score_fn, params, blocks, block, n_items, mesh)
        return _best(scores, min(k, n_items), mesh, recall_target)

    values, items = lax.map(rank, jnp.arange(blocks.users.shape[0]))
    values, items = (x.reshape(-1, x.shape[-1])[blocks.slots] for x in (values, items))
    items = jnp.where(values > -jnp.inf, items, -1)
    return _pad_ranks(items, k, -1), _pad_ranks(values, k, -jnp.inf)


def _best(
    scores: Array, k: int, mesh: Mesh | None, recall_target: float | None = None
) -> tuple[Array, Array]:
    select = top_k
    if recall_target is not None:
        select = partial(approx_top_k, recall_target=recall_target)
    return select(scores, k) if mesh is None else sharded_top_k(mesh, scores, k, select)


def _masked_scores(
    score_fn: ScoreFn,
    params: Any,
    blocks: Blocks,
    block: Array,
    n_items: int,
    mesh: Mesh | None,
) -> Float[Array, "block items"]:
    """Scores of one block, -inf (whatever they were) at the pairs to mask.

    A loop with as many scatters as the block needs: padding all blocks to the same number of
    pairs would cost what the users with the longest histories cost.
    """
    users = blocks.users[block]
    scores = score_fn(params, users)
    check_shape("score_fn(params, users)", scores, (*users.shape, n_items))
    (scores,) = at_least_float32(scores)
    if mesh is not None:
        over = NamedSharding(mesh, PartitionSpec(mesh_axis(mesh, DATA), mesh_axis(mesh, TABLE)))
        scores = lax.with_sharding_constraint(scores, over)

    def mask_group(group: Array, scores: Array) -> Array:
        rows, items = blocks.mask_rows[group], blocks.mask_items[group]
        return scores.at[rows, items].set(-jnp.inf, mode="drop")

    start, stop = blocks.group_starts[block], blocks.group_starts[block + 1]
    return lax.fori_loop(start, stop, mask_group, scores)


def _inversions(
    scores: Float[Array, "block items"],
    test_items: Int[Array, " n_test"],
    starts: Int[Array, " block"],
    counts: Int[Array, " block"],
    n_masked: Int[Array, " block"],
) -> Float[Array, " block"]:
    """Pairs (relevant, irrelevant) in the wrong order for each row, ties half.

    For a test item with score t, the candidates with s > t plus those with s >= t count each
    inversion twice and each tie once. Summed over a user's T test items, the comparisons of
    test items among themselves (itself included) give T² whatever the scores: each of the
    T (T - 1) / 2 pairs gives 2, each item with itself 1. So nothing need be left out of the
    scan over the catalogue.
    """

    def add_tile(tile: Array, twice: Array) -> Array:
        position = tile * _TILE + lax.broadcasted_iota(jnp.int32, (counts.size, _TILE), 1)
        items = test_items.at[starts[:, None] + position].get(mode="clip")
        target = jnp.take_along_axis(scores, items, -1)
        # Every comparison with NaN is false: a place without a test item counts nothing.
        target = jnp.where(position < counts[:, None], target, jnp.nan)
        # One reduction of two operands: XLA's CPU backend fuses the comparisons into it, while
        # it materialises the operand of a plain sum over a row.
        above, not_below = lax.reduce(
            tuple(
                compare(scores[:, None, :], target[:, :, None]).astype(jnp.int32)
                for compare in (jnp.greater, jnp.greater_equal)
            ),
            (jnp.int32(0), jnp.int32(0)),
            lambda a, b: (a[0] + b[0], a[1] + b[1]),
            (2,),
        )
        # A masked item is -inf and ties with a candidate that the model itself scores -inf.
        not_below -= jnp.where(target == -jnp.inf, n_masked[:, None], 0)
        # Integers within a tile, floats across: exact up to 2**24 pairs, and in an order that
        # does not depend on the block, where an int32 could overflow.
        return twice + jnp.sum(above + not_below, -1).astype(twice.dtype)

    n_tiles = -(-jnp.max(counts) // _TILE)
    twice = lax.fori_loop(0, n_tiles, add_tile, jnp.zeros(counts.shape, jnp.float32))
    return (twice - jnp.square(counts.astype(jnp.float32))) / 2


def _pad_ranks(x: Array, k: int, value: Any) -> Array:
    """Fills up to ``k`` ranks, where there are fewer items in the catalogue."""
    return jnp.pad(x, ((0, 0), (0, k - x.shape[1])), constant_values=value)
