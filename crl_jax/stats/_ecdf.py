"""Ranks and the empirical distribution function of scores, along the last axis."""

import math
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._checks import at_least_float32, check_range, check_shape
from ._network import network_ranks

# Counting all pairs does N² comparisons, but these vectorise, while a sort does not. On a CPU a
# score costs 9 ns in rows of 512, 31 in rows of 2,048 and 138 in rows of 8,192; sorting and
# searching the rows costs 134, 156 and 191, the sorting network 22, 32 and 37. The network needs
# some rows to work on at once.
_LARGEST_ALL_PAIRS = 2048
_LARGEST_ALL_PAIRS_OF_FEW = 8192
_FEW_ROWS = 8
# One fused reduction up to here; XLA's CPU code stops vectorising longer ones (a row of 64
# takes six times as long as in blocks of 16), so longer rows are counted block by block.
_LARGEST_FUSED = 32
_BLOCK = 16


def ecdf(
    scores: Float[Array, "*batch n"],
    *,
    where: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch n"]:
    r"""Empirical distribution function of each row, at its own scores.

    .. math::
        u_j = \frac{\#\{i : s_i \le s_j\}}{N}

    Ties count in full: equal scores share the largest of their ranks, and the best score
    of a row always has :math:`u = 1`. A step function: its gradient is zero.

    Args:
      scores: The :math:`s_j`, shape ``[*batch, n]``.
      where: True keeps an entry, shape ``[*batch, n]``; the :math:`N` is the number kept.
        Others are never read.

    Returns:
      Values in (0, 1], shape ``[*batch, n]``, at least float32; 0 where not kept. A kept
      NaN is below nothing and above nothing: it adds to :math:`N` alone and has value NaN.

    Raises:
      ValueError: If ``where`` has not the shape of ``scores``.

    >>> print(ecdf(jnp.array([5.0, 1.0, 5.0, 9.0])))
    [0.75 0.25 0.75 1.  ]
    """
    (scores,) = at_least_float32(scores)
    rank, count = ranks(scores, where=where), kept_count(scores, where)
    # XLA may divide by multiplying with 1/N, and 49 * (1/49) is not 1.
    share = jnp.where(rank == count, 1, rank.astype(scores.dtype) / count.astype(scores.dtype))
    return _nan_where_kept(share, scores, where)


def ranks(
    scores: Float[Array, "*batch n"],
    *,
    where: Bool[Array, "*batch n"] | None = None,
) -> Int[Array, "*batch n"]:
    r"""Number of kept scores in the row that are no larger: :math:`\#\{i: s_i \le s_j\}`.

    The numerator of :func:`ecdf`, as an exact integer: for formulas in which
    :math:`1 - u_j = (N - \text{rank}_j)/N` must not lose digits.

    Args:
      scores: The :math:`s_j`, shape ``[*batch, n]``.
      where: True keeps an entry, shape ``[*batch, n]``. Others are never read.

    Returns:
      Counts from 1 to the number kept, shape ``[*batch, n]``, int32; 0 where not kept, and
      for a NaN.

    Raises:
      ValueError: If ``where`` has not the shape of ``scores``.

    >>> print(ranks(jnp.array([5.0, 1.0, 5.0, 9.0])))
    [3 1 3 4]
    """
    check_shape("where", where, scores.shape)
    scores = jax.lax.stop_gradient(scores)
    if where is not None:  # NaN compares false with everything: it drops out of every count
        scores = jnp.where(where, scores, jnp.nan)
    n = scores.shape[-1]
    few = scores.size < _FEW_ROWS * n
    if n <= (_LARGEST_ALL_PAIRS_OF_FEW if few else _LARGEST_ALL_PAIRS):
        return _ranks_by_pairs(scores)
    return _ranks_by_sorting(scores, few=few)


def binned_ecdf(
    scores: Float[Array, "*batch n"],
    *,
    bins: int,
    where: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch n"]:
    r"""Estimate of :func:`ecdf` from a histogram: linear in the length of a row.

    Each row is cut into ``bins`` equal intervals from its lowest to its highest score. A score
    counts itself, all in lower bins, and of the others in its own the share that its place in
    the bin suggests, as if they were spread evenly:

    .. math::
        |\hat u_j - u_j| \le \frac{\#\{i \ne j : s_i \text{ in the bin of } s_j\}}{N}

    Alone in its bin a score has its exact :math:`u`. Equal scores never part, and count each
    other by their place in the bin, where the exact function counts them in full. The best score
    has :math:`\hat u = 1`, as have all if they are equal. An outlier stretches the bins: what it
    leaves in one bin is told apart by value alone, no longer by rank. A step function like the
    exact one: its gradient is zero.

    Args:
      scores: The :math:`s_j`, shape ``[*batch, n]``.
      bins: Number of intervals, positive; static.
      where: True keeps an entry, shape ``[*batch, n]``. Others are never read.

    Returns:
      Values in (0, 1], shape ``[*batch, n]``, at least float32; 0 where not kept. A kept NaN is
      treated as by :func:`ecdf`.

    Raises:
      ValueError: If ``where`` has not the shape of ``scores`` or ``bins`` is not positive.

    >>> print(binned_ecdf(jnp.array([0.0, 0.5, 2.0, 4.0]), bins=2))
    [0.25   0.3125 0.75   1.    ]
    """
    (scores,) = at_least_float32(scores)
    rank = binned_ranks(scores, bins=bins, where=where)
    share = rank / kept_count(scores, where).astype(scores.dtype)
    return _nan_where_kept(share, scores, where)


def dkw_error(n: int, *, confidence: float = 0.95) -> float:
    r"""How far an eCDF of n independent samples strays from the truth, at most, anywhere.

    .. math::
        P\left(\sup_x |F_n(x) - F(x)| > \epsilon\right) \le 2 e^{-2 n \epsilon^2}
        \qquad \epsilon = \sqrt{\frac{1}{2n} \ln \frac{2}{1 - \text{confidence}}}

    Args:
      n: Number of samples, >= 1.
      confidence: Probability that the bound holds, in (0, 1).

    Returns:
      The :math:`\epsilon`.

    Raises:
      ValueError: If an argument leaves its range.

    References:
      Massart, `The Tight Constant in the Dvoretzky-Kiefer-Wolfowitz Inequality
      <https://doi.org/10.1214/aop/1176990746>`_, 1990.

    >>> round(dkw_error(128), 3)
    0.12
    """
    check_range("n", n, 1, math.inf)
    check_range("confidence", confidence, 0, 1, low_open=True, high_open=True, dtype=float)
    return math.sqrt(math.log(2 / (1 - confidence)) / (2 * n))


def binned_ranks(scores: Array, *, bins: int, where: Array | None = None) -> Array:
    """The numerator of :func:`binned_ecdf`, a float of the type of ``scores``."""
    check_shape("where", where, scores.shape)
    if bins < 1:
        raise ValueError(f"`bins` must be positive, got {bins}.")
    scores = jax.lax.stop_gradient(scores)
    counted = ~jnp.isnan(scores) if where is None else where & ~jnp.isnan(scores)
    # An eighth, so that the widest range is still a number, and so is its reciprocal.
    limit = jnp.finfo(scores.dtype).max / 8
    eighth = jnp.clip(jnp.where(counted, scores, 0) / 8, -limit, limit)
    low = jnp.min(eighth, axis=-1, keepdims=True, where=counted, initial=limit)
    high = jnp.max(eighth, axis=-1, keepdims=True, where=counted, initial=-limit)
    width = (high - low) / bins
    place = jnp.where(width > 0, (eighth - low) / jnp.where(width > 0, width, 1), bins)
    bin_ = jnp.clip(place.astype(jnp.int32), 0, bins - 1)
    share = jnp.where(eighth == high, 1, jnp.clip(place - bin_.astype(scores.dtype), 0, 1))

    row = jnp.arange(scores.size // scores.shape[-1], dtype=jnp.int32)
    at = row.reshape(*scores.shape[:-1], 1) * bins + bin_
    histogram = (
        jnp.zeros(row.size * bins, jnp.int32)
        .at[at.ravel()]
        .add(counted.ravel().astype(jnp.int32), mode="promise_in_bounds")
    )
    histogram = histogram.reshape(-1, bins)
    up_to = jnp.cumsum(histogram, axis=-1)

    def look_up(table: Array) -> Array:
        return table.ravel().at[at].get(mode="promise_in_bounds").astype(scores.dtype)

    inside = look_up(histogram)
    rank = look_up(up_to) - inside + 1 + (inside - 1) * share
    return jnp.where(counted, rank, 0)


def _nan_where_kept(values: Array, scores: Array, where: Array | None) -> Array:
    """The values, NaN where a kept score is."""
    soiled = jnp.isnan(scores) if where is None else where & jnp.isnan(scores)
    return jnp.where(soiled, jnp.nan, values)


def kept_count(scores: Array, where: Array | None) -> Array:
    """Kept entries of each row, ``[*batch, 1]`` or ``[]``; 1 if there are none, to divide by."""
    if where is None:
        return jnp.asarray(scores.shape[-1], jnp.int32)
    return jnp.maximum(jnp.sum(where, axis=-1, keepdims=True, dtype=jnp.int32), 1)


@jax.jit  # or else a call outside jit would compile the scan anew, each time
def _ranks_by_pairs(scores: Array) -> Array:
    n = scores.shape[-1]
    if n <= _LARGEST_FUSED:
        return _count_no_larger(scores, scores)

    fill = [(0, 0)] * (scores.ndim - 1) + [(0, -n % _BLOCK)]
    blocks = jnp.pad(scores, fill, constant_values=jnp.nan)
    blocks = jnp.moveaxis(blocks.reshape(*scores.shape[:-1], -1, _BLOCK), -2, 0)

    def add(counts: Array, block: Array) -> tuple[Array, None]:
        return counts + _count_no_larger(block, scores), None

    # Zeros made from the scores, so that they vary over the same mesh axes in shard_map.
    return jax.lax.scan(add, jnp.zeros_like(scores, dtype=jnp.int32), blocks)[0]


def _count_no_larger(among: Array, scores: Array) -> Array:
    """For each score, how many ``among`` the row's entries are no larger."""
    return jnp.sum(among[..., :, None] <= scores[..., None, :], axis=-2, dtype=jnp.int32)


@partial(jax.jit, static_argnames="few")
def _ranks_by_sorting(scores: Array, *, few: bool) -> Array:
    flat = scores.reshape(-1, scores.shape[-1])
    on_cpu = _ranks_by_search if few else network_ranks
    return jax.lax.platform_dependent(flat, default=_ranks_by_search, cpu=on_cpu).reshape(
        scores.shape
    )


def _ranks_by_search(scores: Array) -> Array:
    return jnp.where(jnp.isnan(scores), 0, count_below(scores, scores, "right"))


def count_below(scores: Array, at: Array, side: Literal["left", "right"]) -> Array:
    """How many of a row's ``scores`` are less (``"left"``) or no larger than each of ``at``.

    NaN sorts last, above whatever is searched for, so those of ``scores`` never count.
    """

    def row(scores: Array, at: Array) -> Array:
        return jnp.searchsorted(jnp.sort(scores), at, side=side)

    rows = scores.reshape(-1, scores.shape[-1]), at.reshape(-1, at.shape[-1])
    return jax.vmap(row)(*rows).reshape(at.shape).astype(jnp.int32)
