"""Ranks of scores and their empirical CDF along the last axis."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_count, check_range, check_shape, is_static
from .._floats import at_least_float32
from .._hyperparams import check_arguments, expand_anchor_axis
from .._reduce import count_unmasked
from .._search import count_below, ranks_by_sorting
from ..kernels import bitonic_ranks

# Counting all pairs takes N² comparisons, but these vectorise and a sort does not. On a CPU a score
# takes 9 ns in rows of 512, 31 in rows of 2,048 and 138 in rows of 8,192; sorting and searching
# takes 134, 156 and 191, the sorting network 22, 32 and 37, provided there are several rows.
_LARGEST_ALL_PAIRS = 2048
_LARGEST_ALL_PAIRS_FEW_ROWS = 8192
_FEW_ROWS = 8
# Longest row for one fused reduction: XLA on CPUs does not vectorise longer ones (a row of 64 takes
# six times as long as in blocks of 16), which are valid block by block.
_LARGEST_FUSED = 32
_BLOCK = 16
# Longest row for all pairs on TPUs: for a TPU v5e the compiler states 0.34 million cycles for 2,048
# rows of 128 and 10.6 for 256 rows of 2,048, but 0.05 for what surrounds two sorts of either, whose
# own cycles it does not state (nothing was measured on a TPU). On an H100 (JAX 0.11.2) 1,024 rows
# of 128 take 0.11 ms by two sorts, 0.19 by all pairs and 0.23 by sort and search, 256 rows of 2,048
# take 0.20, 3.0 and 0.49, and 512 rows of 65,536 take 5.9 by two sorts and 10.6 by search.
_LARGEST_ALL_PAIRS_ON_TPU = 128
# Base of the lower digit of a bin in :func:`_one_hot_digits`. For rows of 16,384 scores on a TPU
# v5e the compiler states the fewest cycles for 8: a tenth of those for 4, half of those for 32.
_LOW_DIGIT = 8


@check_arguments
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
      Counts from 1 on, shape ``[*batch, n]``, int32; 0 for masked scores and NaN.

    Raises:
      ValueError: If ``where`` does not have the shape of ``scores``.

    >>> print(ranks(jnp.array([5.0, 1.0, 5.0, 9.0])))
    [3 1 3 4]
    """
    check_shape("where", where, scores.shape)
    scores = jax.lax.stop_gradient(scores)
    if where is not None:  # NaN compares false and is never valid
        scores = jnp.where(where, scores, jnp.nan)
    rows = scores.reshape(math.prod(scores.shape[:-1]), scores.shape[-1])
    return _rank_rows(rows).reshape(scores.shape)


@check_arguments
def binned_ranks(
    scores: Float[Array, "*batch n"],
    *,
    bins: int,
    where: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch n"]:
    r"""Histogram estimate of :func:`ranks`, in linear time.

    Numerator of :func:`binned_ecdf`, which states the arguments, the formula and the errors; at
    least float32, 0 for masked scores and NaN.

    >>> print(binned_ranks(jnp.array([0.0, 0.5, 2.0, 4.0]), bins=2))
    [1.   1.25 3.   4.  ]
    """
    return map_binned_ranks(lambda rank: rank, scores, bins=bins, where=where)


@check_arguments
def map_binned_ranks(
    function: Callable[[Float[Array, "*batch bins"]], Float[Array, "*batch bins"]],
    scores: Float[Array, "*batch n"],
    *,
    bins: int,
    where: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch n"]:
    r"""Function of :func:`ranks`, estimated by a histogram in linear time.

    The function is evaluated at the ranks of the first and the last score of each bin, and
    interpolated linearly between them. With the identity, equal to :func:`binned_ranks`.

    Args:
      function: Elementwise function of ranks, which it receives as an array ``[*batch, bins]``, at
        least float32, with values from 0 to the number of valid scores.
      scores, bins, where: As in :func:`binned_ecdf`.

    Returns:
      Values at the ranks, shape of ``scores``; 0 for masked scores and NaN. Their gradient with
      respect to the scores is zero.

    Raises:
      ValueError: If ``where`` does not have the shape of ``scores`` or ``bins`` is not positive.

    >>> scores = jnp.array([0.0, 0.5, 2.0, 4.0])
    >>> print(map_binned_ranks(jnp.square, scores, bins=2))
    [ 1.    1.75  9.   16.  ]
    """
    check_shape("where", where, scores.shape)
    check_count("bins", bins)
    (scores,) = at_least_float32(jax.lax.stop_gradient(scores))
    valid = ~jnp.isnan(scores) if where is None else where & ~jnp.isnan(scores)
    # Divided by 8, so that neither the largest range nor its reciprocal overflows.
    limit = jnp.finfo(scores.dtype).max / 8
    eighth = jnp.clip(jnp.where(valid, scores, 0) / 8, -limit, limit)
    low = jnp.min(eighth, axis=-1, keepdims=True, where=valid, initial=limit)
    high = jnp.max(eighth, axis=-1, keepdims=True, where=valid, initial=-limit)
    width = (high - low) / bins
    position = jnp.where(width > 0, (eighth - low) / jnp.where(width > 0, width, 1), bins)
    bin_ = jnp.clip(position.astype(jnp.int32), 0, bins - 1)
    share = jnp.where(eighth == high, 1, jnp.clip(position - bin_.astype(scores.dtype), 0, 1))

    bin_, valid_rows = (x.reshape(-1, scores.shape[-1]) for x in (bin_, valid))
    inside = _histogram(bin_, valid_rows, bins=bins).reshape(*scores.shape[:-1], bins)
    last = jnp.cumsum(inside, axis=-1)
    first = last - jnp.maximum(inside - 1, 0)
    tables = (function(rank.astype(scores.dtype)).reshape(-1, bins) for rank in (first, last))
    at_first, at_last = (_look_up(table, bin_).reshape(scores.shape) for table in tables)
    # A difference of the two could round to a negative value of a positive function.
    return jnp.where(valid, (1 - share) * at_first + share * at_last, 0)


@check_arguments
def ecdf(
    scores: Float[Array, "*batch n"],
    *,
    where: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch n"]:
    r"""Empirical CDF of each row, evaluated at its own scores.

    .. math:: u_j = \frac{\#\{i : s_i \le s_j\}}{N}

    Ties share their largest rank, and the largest score of a row has :math:`u = 1`. The gradient of
    this step function is zero.

    Args:
      scores: The :math:`s_j`, shape ``[*batch, n]``.
      where: Mask of the :math:`N` valid entries, shape ``[*batch, n]``; others are never read.

    Returns:
      Values in (0, 1], shape ``[*batch, n]``, at least float32; 0 for masked scores. A valid NaN
      counts in :math:`N` only and has value NaN.

    Raises:
      ValueError: If ``where`` does not have the shape of ``scores``.

    >>> print(ecdf(jnp.array([5.0, 1.0, 5.0, 9.0])))
    [0.75 0.25 0.75 1.  ]
    """
    (scores,) = at_least_float32(scores)
    rank, count = ranks(scores, where=where), expand_anchor_axis(count_unmasked(scores, where))
    # XLA may divide by multiplying with 1/N, and 49 * (1/49) is not 1.
    share = jnp.where(rank == count, 1, rank.astype(scores.dtype) / count.astype(scores.dtype))
    return _propagate_nan(share, scores, where)


@check_arguments
def binned_ecdf(
    scores: Float[Array, "*batch n"],
    *,
    bins: int,
    where: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch n"]:
    r"""Histogram estimate of :func:`ecdf`, in linear time.

    Each row is divided into ``bins`` equal intervals between its smallest and largest score. A
    score counts itself, all scores in lower bins, and those in its own bin by interpolation:

    .. math:: |\hat u_j - u_j| \le \frac{\#\{i \ne j : s_i \text{ in the bin of } s_j\}}{N}

    Ties remain ties, but count each other by interpolation. The largest score has
    :math:`\hat u = 1`, as have all scores if they are equal. An outlier widens the bins; scores in
    one bin are ordered by value, not by rank. The gradient is zero.

    Args:
      scores, where: As in :func:`ecdf`.
      bins: Number of intervals, positive; static.

    Returns:
      As :func:`ecdf`.

    Raises:
      ValueError: If ``where`` does not have the shape of ``scores`` or ``bins`` is not positive.

    >>> print(binned_ecdf(jnp.array([0.0, 0.5, 2.0, 4.0]), bins=2))
    [0.25   0.3125 0.75   1.    ]
    """
    (scores,) = at_least_float32(scores)
    rank = binned_ranks(scores, bins=bins, where=where)
    share = rank / expand_anchor_axis(count_unmasked(scores, where)).astype(scores.dtype)
    return _propagate_nan(share, scores, where)


def dkw_error(n: int, *, confidence: int | float = 0.95) -> float:
    r"""Uniform error bound of the eCDF of n independent samples (DKW inequality).

    .. math::
        P\left(\sup_x |F_n(x) - F(x)| > \epsilon\right) \le 2 e^{-2 n \epsilon^2}
        \qquad \epsilon = \sqrt{\frac{1}{2n} \ln \frac{2}{1 - \text{confidence}}}

    Args:
      n: Number of samples, >= 1.
      confidence: Probability that the bound holds, in (0, 1).

    Returns:
      The :math:`\epsilon`.

    Raises:
      ValueError: If an argument is out of range.

    References:
      Massart, `The Tight Constant in the Dvoretzky-Kiefer-Wolfowitz Inequality
      <https://doi.org/10.1214/aop/1176990746>`_, 1990.

    >>> round(dkw_error(128), 3)
    0.12
    """
    check_range("n", n, 1, math.inf)
    check_range("confidence", confidence, 0, 1, low_open=True, high_open=True, dtype=float)
    return math.sqrt(math.log(2 / (1 - confidence)) / (2 * n))


def _propagate_nan(values: Array, scores: Array, where: Array | None) -> Array:
    """Propagates NaN of valid scores."""
    is_nan = jnp.isnan(scores) if where is None else where & jnp.isnan(scores)
    return jnp.where(is_nan, jnp.nan, values)


@jax.jit  # a call outside jit would otherwise compile the platforms' forms each time
def _rank_rows(scores: Float[Array, "rows n"]) -> Int[Array, "rows n"]:
    rows, n = scores.shape
    if is_static(n) and n <= _LARGEST_FUSED:
        return _ranks_by_fused_pairs(scores)
    few = is_static(rows) and rows < _FEW_ROWS
    largest = _LARGEST_ALL_PAIRS_FEW_ROWS if few else _LARGEST_ALL_PAIRS
    if is_static(n) and n <= largest:
        on_cpu = _ranks_by_pairs
    else:
        on_cpu = bitonic_ranks if is_static(rows, n) and not few else _ranks_by_search
    short = is_static(n) and n <= _LARGEST_ALL_PAIRS_ON_TPU
    on_tpu = _ranks_by_fused_pairs if short else partial(ranks_by_sorting, by_blocks=True)
    return jax.lax.platform_dependent(scores, cpu=on_cpu, tpu=on_tpu, default=ranks_by_sorting)


def _ranks_by_pairs(scores: Float[Array, "rows n"]) -> Int[Array, "rows n"]:
    rows, n = scores.shape
    blocks = jnp.pad(scores, [(0, 0), (0, -n % _BLOCK)], constant_values=jnp.nan)
    blocks = jnp.moveaxis(blocks.reshape(rows, -1, _BLOCK), 1, 0)

    def add(counts: Array, block: Array) -> tuple[Array, None]:
        return counts + _count_no_larger(block, scores), None

    # Zeros computed from the scores, so that they vary over the same mesh axes in shard_map.
    return jax.lax.scan(add, jnp.zeros_like(scores, dtype=jnp.int32), blocks)[0]


def _ranks_by_fused_pairs(scores: Float[Array, "rows n"]) -> Int[Array, "rows n"]:
    return _count_no_larger(scores, scores)


def _count_no_larger(candidates: Array, scores: Array) -> Array:
    """Number of ``candidates`` in the row that are at most each score."""
    return jnp.sum(candidates[..., :, None] <= scores[..., None, :], axis=-2, dtype=jnp.int32)


def _ranks_by_search(scores: Float[Array, "rows n"]) -> Int[Array, "rows n"]:
    return jnp.where(jnp.isnan(scores), 0, count_below(scores, scores, "right"))


@partial(jax.jit, static_argnames="bins")
def _histogram(
    bin_: Int[Array, "rows n"], valid: Bool[Array, "rows n"], *, bins: int
) -> Int[Array, "rows bins"]:
    """Number of valid scores of the row in each bin."""
    # On an H100 (JAX 0.11.2) 128 rows of 16,384 scores take 0.42 ms with a scatter and two gathers,
    # 0.81 with products.
    return jax.lax.platform_dependent(
        bin_,
        valid,
        tpu=partial(_count_by_products, bins=bins),
        default=partial(_count_by_scatter, bins=bins),
    )


@jax.jit
def _look_up(
    table: Float[Array, "rows bins"], bin_: Int[Array, "rows n"]
) -> Float[Array, "rows n"]:
    """The entry of the table for the row and the bin of each score."""
    return jax.lax.platform_dependent(table, bin_, tpu=_select_by_products, default=_gather)


def _count_by_scatter(bin_: Array, valid: Array, *, bins: int) -> Array:
    empty = jnp.zeros(bin_.shape[0] * bins, jnp.int32).at[_flat_index(bin_, bins).ravel()]
    inside = empty.add(valid.ravel().astype(jnp.int32), mode="promise_in_bounds")
    return inside.reshape(-1, bins)


def _gather(table: Array, bin_: Array) -> Array:
    index = _flat_index(bin_, table.shape[1])
    # Without the barrier, XLA computes the entry again for each score.
    table = jax.lax.optimization_barrier(table)
    return table.ravel().at[index].get(mode="promise_in_bounds")


def _flat_index(bin_: Array, bins: int) -> Array:
    return jnp.arange(bin_.shape[0], dtype=jnp.int32)[:, None] * bins + bin_


def _count_by_products(bin_: Array, valid: Array, *, bins: int) -> Array:
    """Histogram by matrix products of one-hot digits, without scatter.

    A bin is two digits, and the histogram of a row the product of its one-hot matrices of the upper
    and the lower digit. All sums are exact, of integers below 2^24.
    """
    high, low = _one_hot_digits(bin_, bins)
    counted = (high & valid[..., None]).astype(jnp.bfloat16)
    inside = jnp.einsum(
        "rnh,rnl->rhl", counted, low.astype(jnp.bfloat16), preferred_element_type=jnp.float32
    )
    return inside.reshape(bin_.shape[0], -1)[:, :bins].astype(jnp.int32)


def _select_by_products(table: Array, bin_: Array) -> Array:
    """Looks up by products with one-hot digits, without gather.

    The matrix of the upper digit selects a row of the table, that of the lower one of its elements.
    """
    high, low = (x.astype(table.dtype) for x in _one_hot_digits(bin_, table.shape[1]))
    padded = jnp.pad(table, [(0, 0), (0, -table.shape[1] % _LOW_DIGIT)])
    chosen = jnp.einsum(
        "rnh,rhl->rnl", high, padded.reshape(table.shape[0], -1, _LOW_DIGIT),
        precision=jax.lax.Precision.HIGHEST,
    )  # fmt: skip
    return jnp.sum(chosen * low, axis=-1)


def _one_hot_digits(bin_: Array, bins: int) -> tuple[Array, Array]:
    n_high = -(-bins // _LOW_DIGIT)
    high = (bin_ // _LOW_DIGIT)[..., None] == jnp.arange(n_high)[None, None]
    low = (bin_ % _LOW_DIGIT)[..., None] == jnp.arange(_LOW_DIGIT)[None, None]
    return high, low
