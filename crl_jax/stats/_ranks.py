"""Ranks of scores along the last axis."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_shape
from .._floats import at_least_float32
from .._search import count_below
from ..kernels import bitonic_ranks

# Counting all pairs takes N² comparisons, but these vectorise and a sort does not. On a CPU a score
# takes 9 ns in rows of 512, 31 in rows of 2,048 and 138 in rows of 8,192; sorting and searching
# takes 134, 156 and 191, the sorting network 22, 32 and 37, provided there are several rows.
_LARGEST_ALL_PAIRS = 2048
_LARGEST_ALL_PAIRS_OF_FEW = 8192
_FEW_ROWS = 8
# Longest row for one fused reduction: XLA on CPUs does not vectorise longer ones (a row of 64 takes
# six times as long as in blocks of 16), which are valid block by block.
_LARGEST_FUSED = 32
_BLOCK = 16


def ranks(
    scores: Float[Array, "*batch n"],
    *,
    where: Bool[Array, "*batch n"] | None = None,
) -> Int[Array, "*batch n"]:
    r"""Number of valid scores in the row that are at most each score: :math:`\#\{i: s_i \le s_j\}`.

    Exact integer numerator of :func:`ecdf`, for formulas in which
    :math:`1 - u_j = (N - \text{rank}_j)/N` must not lose digits.

    Args:
      scores: The :math:`s_j`, shape ``[*batch, n]``.
      where: Mask of valid entries, shape ``[*batch, n]``; others are never read.

    Returns:
      Counts from 1 to the number of valid scores, shape ``[*batch, n]``, int32; 0 for masked scores
      and NaN.

    Raises:
      ValueError: If ``where`` does not have the shape of ``scores``.

    >>> print(ranks(jnp.array([5.0, 1.0, 5.0, 9.0])))
    [3 1 3 4]
    """
    check_shape("where", where, scores.shape)
    scores = jax.lax.stop_gradient(scores)
    if where is not None:  # NaN compares false and is never valid
        scores = jnp.where(where, scores, jnp.nan)
    n = scores.shape[-1]
    few = scores.size < _FEW_ROWS * n
    if n <= (_LARGEST_ALL_PAIRS_OF_FEW if few else _LARGEST_ALL_PAIRS):
        return _ranks_by_pairs(scores)
    return _ranks_by_sorting(scores, few=few)


def binned_ranks(
    scores: Float[Array, "*batch n"],
    *,
    bins: int,
    where: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch n"]:
    r"""Histogram estimate of :func:`ranks`, in linear time.

    Numerator of :func:`crl_jax.stats.binned_ecdf`, which states the formula and the error.

    Args:
      scores: The :math:`s_j`, shape ``[*batch, n]``.
      bins: Number of intervals, positive; static.
      where: Mask of valid entries, shape ``[*batch, n]``; others are never read.

    Returns:
      Values from 1 to the number of valid scores, shape ``[*batch, n]``, at least float32; 0 for
      masked scores and NaN.

    Raises:
      ValueError: If ``where`` does not have the shape of ``scores`` or ``bins`` is not positive.

    >>> print(binned_ranks(jnp.array([0.0, 0.5, 2.0, 4.0]), bins=2))
    [1.   1.25 3.   4.  ]
    """
    check_shape("where", where, scores.shape)
    if bins < 1:
        raise ValueError(f"`bins` must be positive, got {bins}.")
    (scores,) = at_least_float32(jax.lax.stop_gradient(scores))
    valid = ~jnp.isnan(scores) if where is None else where & ~jnp.isnan(scores)
    # Divided by 8, so that neither the largest range nor its reciprocal overflows.
    limit = jnp.finfo(scores.dtype).max / 8
    eighth = jnp.clip(jnp.where(valid, scores, 0) / 8, -limit, limit)
    low = jnp.min(eighth, axis=-1, keepdims=True, where=valid, initial=limit)
    high = jnp.max(eighth, axis=-1, keepdims=True, where=valid, initial=-limit)
    width = (high - low) / bins
    place = jnp.where(width > 0, (eighth - low) / jnp.where(width > 0, width, 1), bins)
    bin_ = jnp.clip(place.astype(jnp.int32), 0, bins - 1)
    share = jnp.where(eighth == high, 1, jnp.clip(place - bin_.astype(scores.dtype), 0, 1))

    row = jnp.arange(scores.size // scores.shape[-1], dtype=jnp.int32)
    at = row.reshape(*scores.shape[:-1], 1) * bins + bin_
    histogram = (
        jnp.zeros(row.size * bins, jnp.int32)
        .at[at.ravel()]
        .add(valid.ravel().astype(jnp.int32), mode="promise_in_bounds")
    )
    histogram = histogram.reshape(-1, bins)
    up_to = jnp.cumsum(histogram, axis=-1)

    def look_up(table: Array) -> Array:
        return table.ravel().at[at].get(mode="promise_in_bounds").astype(scores.dtype)

    inside = look_up(histogram)
    rank = look_up(up_to) - inside + 1 + (inside - 1) * share
    return jnp.where(valid, rank, 0)


@jax.jit  # a call outside jit would otherwise compile the scan each time
def _ranks_by_pairs(scores: Array) -> Array:
    n = scores.shape[-1]
    if n <= _LARGEST_FUSED:
        return _count_no_larger(scores, scores)

    fill = [(0, 0)] * (scores.ndim - 1) + [(0, -n % _BLOCK)]
    blocks = jnp.pad(scores, fill, constant_values=jnp.nan)
    blocks = jnp.moveaxis(blocks.reshape(*scores.shape[:-1], -1, _BLOCK), -2, 0)

    def add(counts: Array, block: Array) -> tuple[Array, None]:
        return counts + _count_no_larger(block, scores), None

    # Zeros computed from the scores, so that they vary over the same mesh axes in shard_map.
    return jax.lax.scan(add, jnp.zeros_like(scores, dtype=jnp.int32), blocks)[0]


def _count_no_larger(candidates: Array, scores: Array) -> Array:
    """Number of ``candidates`` in the row that are at most each score."""
    return jnp.sum(candidates[..., :, None] <= scores[..., None, :], axis=-2, dtype=jnp.int32)


@partial(jax.jit, static_argnames="few")
def _ranks_by_sorting(scores: Array, *, few: bool) -> Array:
    flat = scores.reshape(-1, scores.shape[-1])
    on_cpu = _ranks_by_search if few else bitonic_ranks
    return jax.lax.platform_dependent(flat, default=_ranks_by_search, cpu=on_cpu).reshape(
        scores.shape
    )


def _ranks_by_search(scores: Array) -> Array:
    return jnp.where(jnp.isnan(scores), 0, count_below(scores, scores, "right"))
