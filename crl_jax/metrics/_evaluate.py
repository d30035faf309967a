"""Ranking evaluation over the full catalogue, in blocks of users.

Per block of a layout: score all items, set all but the candidates to -inf, select the top k. Only
item indices and integer counts leave a block; all metrics are computed from them outside, so that
they do not depend on the grouping of users.
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

from .._checks import check_count, check_range, check_shape
from .._floats import at_least_float32
from .._mesh import DATA, TABLE, mesh_axis
from .._search import rows_contain
from . import _ranking as ranking
from ._eval_layout import (
    Blocks,
    EvalLayout,
    InteractionsLike,
    block_layout,
    check_interactions,
    pair_ids,
)
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

# Test items compared per pass over the catalogue.
_TILE = 8


@runtime_checkable
class ScoreFn(Protocol):
    """Pure, hashable function that scores the whole catalogue for a block of users.

    Pass the same function object at every call: a new lambda or ``partial`` triggers
    recompilation. On GPU and TPU, matrix products round their inputs by default, which reorders
    close scores; use ``precision="highest"``.
    """

    def __call__(self, params: Any, users: Int[Array, " block"], /) -> Float[Array, "block items"]:
        """Returns the scores of all items for each of ``users``."""
        ...


def evaluate(
    score_fn: ScoreFn,
    params: Any,
    layout: EvalLayout,
    *,
    ks: Sequence[int] | int = (20,),
    auc: bool = True,
    mesh: Mesh | None = None,
) -> dict[str, Float[Array, "..."]]:
    """Ranks the full catalogue for every test user and computes ranking metrics.

    Items are ranked by score, ties by lower index; items that are no candidates of the layout, and
    items with the score -inf, are never recommended. If fewer than ``k`` items remain, the list is
    shorter and precision still divides by ``k``. A user with a NaN score of a candidate gets NaN in
    every metric, and the coverage is NaN, so that a diverged model cannot look good.

    The values do not depend on the block size of the layout, bit for bit, if the scores of a user
    from ``score_fn`` do not. May be called inside ``jit`` (``score_fn``, ``ks`` and ``auc``
    static), and under ``vmap`` over ``params`` to evaluate several models at once. Calls that
    differ only in the values of ``params`` compile once.

    Args:
      score_fn: ``score_fn(params, users) -> scores``, ``[block] -> [block, n_items]``.
      params: First argument of ``score_fn``, any pytree. If it has an attribute ``users``, that
        table must have one row per user of the layout.
      layout: Users, masked and relevant items, from :func:`eval_layout`.
      ks: Positive cutoffs, or one; static.
      auc: Whether to compute the AUC, which compares every test item with every candidate.
      mesh: Devices that share the users of a block along its axis ``data`` and the items along its
        axis ``table``; static. The values do not depend on it.

    Returns:
      For every ``k``, float32 values per evaluated user in increasing order of the users
      (``layout.users``), ``[n_evaluated]``: ``"precision@k"``, ``"recall@k"``, ``"f1@k"``,
      ``"ndcg@k"``, ``"map@k"``, ``"hit_precision@k"``, ``"mrr@k"``, ``"hit_rate@k"``, defined in
      :func:`precision_at` and its siblings; and the scalar ``"coverage@k"``, the share of the
      catalogue that appears in the top k of at least one user. ``"auc"``, ``[n_evaluated]``,
      over all candidates, ties half (:func:`crl_jax.metrics.auc`).

    Raises:
      ValueError: If ``ks`` is empty or holds a value below 1, if ``params`` has another number of
        users or does not fit ``score_fn``, or if ``score_fn`` returns another shape.
    """
    ks = _cutoffs(ks)
    _check_users(params, layout.n_users)
    # Two programs: score functions share the second, which takes longer to compile.
    lists = _rank(score_fn, params, layout, k=min(max(ks), layout.n_items), auc=auc, mesh=mesh)
    return _compute_metrics(layout, *lists, ks=ks)


def evaluate_lists(
    items: Int[np.ndarray | Array, "n_evaluated ranks"],
    layout: EvalLayout,
    *,
    ks: Sequence[int] | int = (20,),
) -> dict[str, Float[Array, "..."]]:
    """Computes the metrics of :func:`evaluate`, except AUC, for ranked lists made elsewhere.

    >>> from crl_jax import data
    >>> from crl_jax.metrics import eval_layout
    >>> train, test = (data.Interactions.from_arrays(
    ...     users, items, user_ids=np.arange(2), item_ids=np.arange(4)
    ... ) for users, items in [([0, 1], [0, 1]), ([0, 0, 1], [1, 2, 3])])
    >>> lists = np.array([[1, 3, 2], [0, 3, -1]])  # of users 0 and 1, best first
    >>> print(evaluate_lists(lists, eval_layout(train, test), ks=2)["recall@2"])
    [0.5 1. ]

    Args:
      items: Item indices of each user of ``layout.users``, best first; -1 pads short lists. Items
        that are no candidates of the layout count as misses.
      layout: Test data, from :func:`eval_layout`.
      ks: Positive cutoffs, or one. Beyond the length of the lists there are no hits.

    Raises:
      ValueError: If ``items`` has another shape or type, an index out of range or an item twice in
        a list, or if ``ks`` is empty or holds a value below 1.
    """
    ks, lists = _cutoffs(ks), np.asarray(items)
    if lists.ndim != 2 or not lists.shape[1] or len(lists) != layout.n_evaluated:
        raise ValueError(
            f"`items` must have one list for each of the {layout.n_evaluated} evaluated users, got "
            f"shape {lists.shape}."
        )
    if lists.dtype.kind not in "iu" or lists.min() < -1 or lists.max() >= layout.n_items:
        raise ValueError(
            f"`items` must hold item indices in [0, {layout.n_items}), or -1 as padding, got "
            f"{lists.dtype} from {lists.min()} to {lists.max()}."
        )
    ordered = np.sort(lists, axis=1)
    repeated = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    if repeated.any():
        user = int(np.asarray(layout.users)[np.argmax(repeated)])
        raise ValueError(f"`items` must hold an item once per list, got one twice for user {user}.")
    index = jnp.asarray(lists[:, : max(ks)], jnp.int32)
    values, coverage = _list_metrics(layout, index, index >= 0, ks)
    return values | coverage


def summarize(values: dict[str, Float[Array, "..."]]) -> dict[str, float]:
    """Averages the values of :func:`evaluate` for one model over users, in float64; NaN if any is.

    >>> print(summarize({"recall@5": jnp.array([0.0, 1.0]), "coverage@5": jnp.array(0.25)}))
    {'recall@5': 0.5, 'coverage@5': 0.25}

    Raises:
      ValueError: If a value has more than one axis: summarize the models of a ``vmap`` one by one.
    """
    for name, value in values.items():
        if np.ndim(value) > 1:
            raise ValueError(
                f"`{name}` must be one value per user or a scalar, got shape "
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
    """Returns the top-k items of each user, excluding known items.

    Ranked as in :func:`evaluate`. Lists with fewer than ``k`` items are padded with -1 and the
    score -inf; a user with a NaN score gets -1 and NaN everywhere.

    Args:
      score_fn, params, mesh: As for :func:`evaluate`.
      users: User indices in ``[0, n_users)``, in any order; a new length triggers recompilation.
      exclude: Interactions to exclude; they also define the numbers of users and items.
      k: Number of items per user, positive.
      block_size: As for :func:`eval_layout`.
      recall_target: Target of :func:`approx_top_k`, in (0, 1]; None for exact selection.

    Returns:
      Item indices, int32, and scores, at least float32, in descending order, each
      ``[n_users, k]``.

    Raises:
      ValueError: If ``k`` or ``block_size`` is not positive, if ``recall_target`` leaves (0, 1],
        if ``users`` is empty or holds an index out of range, or as :func:`evaluate`.
    """
    check_interactions("exclude", exclude)
    _check_users(params, exclude.n_users)
    users = np.asarray(users)
    check_count("k", k)
    if users.ndim != 1 or (users.size and users.dtype.kind not in "iu"):
        raise ValueError(
            f"`users` must be integers [n_users], got {users.dtype} of shape {users.shape}."
        )
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


@partial(jax.jit, static_argnames=("score_fn", "k", "auc", "mesh"))
def _rank(
    score_fn: ScoreFn,
    params: Any,
    layout: EvalLayout,
    *,
    k: int,
    auc: bool,
    mesh: Mesh | None,
) -> list[Array]:
    """Returns the scores and items of the top k and, for the AUC, the inversions of each user."""
    blocks = layout.blocks

    def rank(block: Array) -> tuple[Array, ...]:
        scores = _masked_scores(score_fn, params, blocks, block, layout.n_items, mesh)
        values, items = _best(scores, k, mesh)
        if not auc:
            return values, items
        tests = jax.tree.map(lambda x: x[block], layout.block_tests)
        return values, items, _inversions(scores, layout.test_items, *tests)

    out = lax.map(rank, jnp.arange(blocks.users.shape[0]))
    return [x.reshape(-1, *x.shape[2:])[blocks.slots] for x in out]


@partial(jax.jit, static_argnames="ks")
def _compute_metrics(
    layout: EvalLayout,
    values: Array,
    items: Array,
    inversions: Array | None = None,
    *,
    ks: tuple[int, ...],
) -> dict[str, Array]:
    """Computes all metrics from the result of :func:`_rank`."""
    diverged = jnp.isnan(values[:, 0])
    result, coverage = _list_metrics(layout, items, values > -jnp.inf, ks)
    if inversions is not None:
        n_irrelevant = layout.n_candidates - layout.n_relevant
        result["auc"] = ranking.auc(inversions, layout.n_relevant, n_irrelevant)
    result = {name: jnp.where(diverged, jnp.nan, value) for name, value in result.items()}
    any_diverged = diverged.any()
    return result | {n: jnp.where(any_diverged, jnp.nan, x) for n, x in coverage.items()}


@partial(jax.jit, static_argnames="ks")
def _list_metrics(
    layout: EvalLayout, items: Array, listed: Array, ks: tuple[int, ...]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Computes metrics per user and the coverage from item indices and the mask of list entries."""
    start, stop = (x[:, None] for x in (layout.test_starts, layout.test_starts + layout.n_relevant))
    rounds = layout.max_relevant.bit_length()
    relevant = rows_contain(layout.test_items, items, start, stop, rounds)
    hits = _pad_ranks(listed & relevant, max(ks), False)
    # One operation for all cutoffs: the program does not grow with their number.
    cutoffs = jnp.array(ks, jnp.int32)
    at_cutoffs = {
        name: jax.vmap(lambda k, metric=metric: metric(hits, layout.n_relevant, k=k))(cutoffs)
        for name, metric in _METRICS.items()
    }
    values = {f"{name}@{k}": at_cutoffs[name][i] for i, k in enumerate(ks) for name in _METRICS}
    # The best rank of each item over all users; out of range: dropped.
    ranks = lax.broadcasted_iota(jnp.int32, items.shape, 1)
    best = jnp.full(layout.n_items, max(ks), jnp.int32).at[jnp.where(listed, items, layout.n_items)]
    best = best.min(ranks, mode="drop")
    covered = jnp.sum(best[None] < cutoffs[:, None], -1).astype(jnp.float32) / layout.n_items
    return values, {f"coverage@{k}": covered[i] for i, k in enumerate(ks)}


def _cutoffs(ks: Sequence[int] | int) -> tuple[int, ...]:
    cutoffs = tuple(ks) if isinstance(ks, Sequence | np.ndarray) else (ks,)
    if not cutoffs:
        raise ValueError("`ks` must hold one or more cutoffs, got none.")
    for k in cutoffs:
        check_count("ks", k)
    return tuple(map(int, cutoffs))


def _check_users(params: Any, n_users: int) -> None:
    """Refuses a table ``params.users`` of other users: JAX clamps indices that are out of range."""
    shape = np.shape(getattr(params, "users", ()))
    if len(shape) == 2 and shape[0] != n_users:
        raise ValueError(
            f"`params.users` must have one row for each of the {n_users} users, got {shape[0]} "
            "rows: the model was trained on another dataset."
        )


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
    """Computes the scores of one block, with -inf at all items but the candidates.

    The number of scatters depends on the block: padding all blocks to the same number of pairs
    would cost as much as the users with the longest histories.
    """
    users = blocks.users[block]
    try:
        scores = score_fn(params, users)
    except AttributeError as error:
        raise ValueError(
            f"`params` must be accepted by `score_fn`, got {type(params).__name__}: {error}."
        ) from error
    check_shape("score_fn(params, users)", scores, (*users.shape, n_items))
    (scores,) = at_least_float32(scores)
    if mesh is not None:
        sharding = NamedSharding(mesh, PartitionSpec(mesh_axis(mesh, DATA), mesh_axis(mesh, TABLE)))
        scores = lax.with_sharding_constraint(scores, sharding)

    def set_group(group: Array, masked: Array) -> Array:
        index = blocks.pair_rows[group], blocks.pair_items[group]
        values = scores.at[index].get(mode="clip") if blocks.keeps_pairs else -jnp.inf
        return masked.at[index].set(values, mode="drop")

    start, stop = blocks.group_starts[block], blocks.group_starts[block + 1]
    before = jnp.full_like(scores, -jnp.inf) if blocks.keeps_pairs else scores
    return lax.fori_loop(start, stop, set_group, before)


def _inversions(
    scores: Float[Array, "block items"],
    test_items: Int[Array, " n_test"],
    starts: Int[Array, " block"],
    counts: Int[Array, " block"],
    n_masked: Int[Array, " block"],
) -> Float[Array, " block"]:
    """Counts discordant pairs (relevant, irrelevant) per row, ties half.

    For a test item with score t, the candidates with s > t plus those with s >= t count each
    inversion twice and each tie once. Summed over a user's T test items, the comparisons of
    test items among themselves (itself included) give T² whatever the scores: each of the
    T (T - 1) / 2 pairs gives 2, each item with itself 1. So the scan over the catalogue need not
    skip any item.
    """

    def add_tile(tile: Array, twice: Array) -> Array:
        position = tile * _TILE + lax.broadcasted_iota(jnp.int32, (counts.size, _TILE), 1)
        items = test_items.at[starts[:, None] + position].get(mode="clip")
        target = jnp.take_along_axis(scores, items, -1)
        # Comparisons with NaN are false: padding counts nothing.
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
        # Masked items are -inf and tie with candidates that the model scores -inf.
        not_below -= jnp.where(target == -jnp.inf, n_masked[:, None], 0)
        # Integers within a tile, floats across tiles, as int32 could overflow: exact up to 2**24
        # pairs, in an order that does not depend on the block.
        return twice + jnp.sum(above + not_below, -1).astype(twice.dtype)

    n_tiles = -(-jnp.max(counts) // _TILE)
    twice = lax.fori_loop(0, n_tiles, add_tile, jnp.zeros(counts.shape, jnp.float32))
    return (twice - jnp.square(counts.astype(jnp.float32))) / 2


def _pad_ranks(x: Array, k: int, value: Any) -> Array:
    """Pads to ``k`` ranks if the catalogue has fewer items."""
    return jnp.pad(x, ((0, 0), (0, k - x.shape[1])), constant_values=value)
