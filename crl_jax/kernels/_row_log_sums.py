r"""Log-sums of exponentials over rows of a score matrix that is never stored.

The score matrix of N anchors and M keys is computed in tiles that stay in fast memory. For each
anchor i and exponent k, the kernels return

.. math::
    L_{ik} = \log \sum_j w_{ij} e^{p_{ik} (s_{ij} - m_i)}, \qquad s_{ij} = x_i^\top y_j, \qquad
    m_i = \max_j s_{ij}

over the valid keys j with another id, where the weights are 1 or a function of the rank of
:math:`s_{ij}` in its row, estimated by a histogram; in the second case, :math:`m_i` is the upper
end of the highest bin with a positive weight, at most :math:`\max_j s_{ij}`. A loss that is a
function of these sums is ordinary JAX code; the backward pass recomputes the scores. Differences of
log-sums, and their gradients with respect to exponents, do not suffer cancellation where scores are
large.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

RankWeight = Callable[..., Array]
"""Elementwise function ``weight(rank, count, *params)`` of ranks ``[N, bins]``; the number of
scores of a row and each parameter have the shape ``[N, 1]``."""

# Anchors and keys per tile; half of each for embeddings wider than _WIDEST. A tile of scores takes
# 2 MiB, and a larger one reads keys and statistics of anchors less often.
_TILE = 512, 1024
_WIDEST = 512
_RISE_BITS = 12  # of a word of `Weights`
_LEAST_POWER = 1e-30  # 2 to this times the score of a masked key is 0
_LARGE = 1e30
_SMALLEST = float(jnp.finfo(jnp.float32).tiny)


class Options(NamedTuple):
    """Static options of the kernels."""

    weight: RankWeight | None
    bins: int
    tile: tuple[int, int]
    interpret: bool


class Anchors(NamedTuple):
    x: Any  # [N, D]
    ids: Any  # [N, 1]
    powers: Any  # [N, K], exponents of 2: at least a tiny value, so that masked scores have sum 0


class Keys(NamedTuple):
    x: Any  # [M, D]
    ids: Any  # [1, M]
    valid: Any  # [1, M]


class Bins(NamedTuple):
    """Bins of the scores of each row: whole numbers below ``(score - low) * scale``."""

    low: Any  # [N, 1], smallest score
    scale: Any  # [N, 1], bins per unit of score; 0 if all scores are equal


class Weights(NamedTuple):
    """Weights of each row, linear between the first and the last score of a bin.

    The weight of the first score and the rise to the last share a word of 32 bits, since looking up
    a word is the slowest operation of a kernel. As float32, a word is the weight of the first
    score; its low bits are the high bits of the rise, which have an error of at most 2⁻⁴ of the
    rise, or 2⁻³ where the weight falls to 0. The weight in the middle of the bin has 12 significant
    bits.
    """

    bins: Bins
    top: Any  # [N, 1], upper end of the highest bin with a positive weight
    table: Any  # [N, bins], int32


def row_log_sums(
    x: Float[Array, "n dim"],
    y: Float[Array, "m dim"],
    exponents: Float[Array, "n k"],
    *,
    ids: Int[Array, "n"],
    key_ids: Int[Array, "m"],
    key_mask: Bool[Array, "m"],
    weight: RankWeight | None = None,
    params: Float[Array, "n p"] | None = None,
    bins: int = 0,
    interpret: bool = False,
) -> tuple[Float[Array, "n k"], Float[Array, "n"], Int[Array, "n"]]:
    r"""Computes :math:`\log \sum_j w_{ij} e^{p_{ik} (s_{ij} - m_i)}` without storing the scores.

    Reverse-mode differentiable, once, with respect to ``x``, ``y`` and ``exponents``; weights and
    the largest scores :math:`m_i` are constants in the gradient, so :math:`m_i` must cancel in the
    caller's result, as in the log-sum of the scores themselves, ``log_sums + exponents * m``.

    Precision: scores and gradients are products of the platform's default precision, as in all
    training.

    Args:
      x: Anchors, shape ``[N, D]``, float32 or bfloat16. Their gradient stays in fast memory: at
        most a few thousand rows.
      y: Keys, shape ``[M, D]``, of the type of ``x``.
      exponents: Factors :math:`p_{ik} \ge 0` of the scores, shape ``[N, K]``.
      ids: Ids of the anchors, int32.
      key_ids: Ids of the keys, int32; keys with the id of an anchor are excluded from its sum.
      key_mask: Mask of valid keys.
      weight: Weight of scores as a function of their ranks, estimated as in
        :func:`crl_jax.stats.map_binned_ranks`, and rounded to 12 significant bits; at least 0.
        ``None`` for weights of 1. Static.
      params: Per-anchor parameters of ``weight``, shape ``[N, P]``.
      bins: Number of bins of the ranks, static; the kernels count a power of two from 8 to 128, or
        a multiple of 128.
      interpret: Whether to interpret the kernels, for tests on a CPU.

    Returns:
      The log-sums, -inf if empty; the scores :math:`m_i`, 0 if empty; and the numbers of negatives.
    """
    n, m = x.shape[0], y.shape[0]
    if params is None:
        params = jnp.zeros((n, 1), jnp.float32)
    tile = _TILE if x.shape[1] <= _WIDEST else (_TILE[0] // 2, _TILE[1] // 2)
    options = Options(weight, bins, tile, interpret)
    rows, keys = (-size % step for size, step in zip((n, m), tile, strict=True))
    anchors, params = jax.tree.map(
        lambda a: jnp.pad(a, [(0, rows), (0, 0)]),
        (Anchors(x, ids[:, None], _as_powers(exponents)), params),
    )
    valid = key_mask.astype(jnp.int32)
    padded = Keys(
        jnp.pad(y, [(0, keys), (0, 0)]),
        *(jnp.pad(a[None, :], [(0, 0), (0, keys)]) for a in (key_ids, valid)),
    )
    exponents = jnp.pad(exponents, [(0, rows), (0, 0)])
    log_sums, top, count = _log_sums(options, anchors, padded, exponents, params)
    return log_sums[:n], top[:n, 0], count[:n, 0]


def _as_powers(exponents: Array) -> Array:
    """Exponents of 2 instead of e."""
    powers = jax.lax.stop_gradient(exponents).astype(jnp.float32) / math.log(2)
    return jnp.maximum(powers, _LEAST_POWER)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _log_sums(
    options: Options, anchors: Anchors, keys: Keys, exponents: Array, params: Array
) -> tuple[Array, Array, Array]:
    """Log-sums ``[N, K]``, largest score and number of negatives ``[N, 1]``."""
    return _forward(options, anchors, keys, exponents, params)[0]


def _forward(
    options: Options, anchors: Anchors, keys: Keys, exponents: Array, params: Array
) -> tuple[Any, Any]:
    from . import _log_sum_kernels as kernels  # Pallas takes a tenth of a second to import

    anchors, keys, exponents, params = _differentiable_once((anchors, keys, exponents, params))
    weights = None
    if options.weight is None:
        top, count, total = kernels.sums(options, anchors, keys)
    else:
        count, weights = _interpolated(options.weight, options, anchors, keys, params)
        top, total = weights.top, kernels.weighted_sums(options, anchors, keys, weights)
    empty = total == 0
    total = jnp.where(empty, 1, total)
    log_sums = jnp.where(empty, -jnp.inf, jnp.log(total))
    log_norm = jnp.where(empty, _LARGE, jnp.log2(total))  # so that the shares are 0
    largest = jnp.where(empty.all(axis=1, keepdims=True), 0, top)
    return (log_sums, largest, count), (anchors, keys, exponents, params, weights, top, log_norm)


@jax.custom_jvp
def _differentiable_once(values: Any) -> Any:
    """Identity; without it, differentiating a kernel ends in an assertion of Pallas."""
    return values


@_differentiable_once.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "Fused log-sums are differentiable once: use tiled losses for second derivatives."
    )


def _interpolated(
    weight: RankWeight, options: Options, anchors: Anchors, keys: Keys, params: Array
) -> tuple[Array, Weights]:
    """Number of negatives, and weights at the ranks of the first and last score of each bin."""
    from . import _log_sum_kernels as kernels

    count, low, high = kernels.extremes(options, anchors, keys)
    half_range = high / 2 - low / 2  # the whole one could overflow
    differ = half_range > _SMALLEST * options.bins
    half_range = jnp.where(differ, half_range, 1)
    # Slightly less than all bins: rounding must not place the largest score beyond the last one.
    scale = jnp.where(differ, options.bins * (1 - 2**-20) / 2 / half_range, 0)
    bins = Bins(low, scale)
    inside = kernels.histogram(options, anchors, keys, bins)
    last = jnp.cumsum(inside, axis=1)
    first = jnp.where(differ, last - jnp.maximum(inside - 1, 0), last)  # equal scores: top rank
    n, columns = count.astype(jnp.float32), jnp.split(params, params.shape[1], axis=1)
    at_first, at_last = (
        jnp.where(count > 0, weight(rank.astype(jnp.float32), n, *columns), 0)
        for rank in (first, last)
    )
    # If the largest score has weight 0 and is far above the others, sums relative to it underflow.
    number = jnp.arange(inside.shape[1], dtype=jnp.float32)
    has_weight = (inside > 0) & ((at_first > 0) | (at_last > 0))
    end = jnp.max(jnp.where(has_weight, number + 1, 0), axis=1, keepdims=True)
    top = jnp.where(differ, jnp.minimum(low + end / jnp.where(differ, scale, 1), high), high)
    return count, Weights(bins, top, _packed(at_first, at_last - at_first))


def _packed(first: Array, rise: Array) -> Array:
    """Words of weights and rises, see :class:`Weights`."""
    n_high = 32 - _RISE_BITS

    def word(rise_bits: Array) -> Array:
        low = jax.lax.shift_right_logical(rise_bits, n_high)
        # Half of the error of the rise is added to the first weight, for the middle one.
        lost = rise - unpacked(low)[1]
        high = _float_bits(first + lost / 2) - low + (1 << _RISE_BITS - 1)
        return jnp.maximum(high >> _RISE_BITS << _RISE_BITS, 0) | low

    rounded = word(_float_bits(rise) + (1 << n_high - 1))
    value, rounded_rise = unpacked(rounded)
    # Toward zero if the weight of the last score would be negative.
    return jnp.where(value + rounded_rise < 0, word(_float_bits(-value)), rounded)


def unpacked(words: Array) -> tuple[Array, Array]:
    """The weight and the rise of each word."""
    as_float = partial(jax.lax.bitcast_convert_type, new_dtype=jnp.float32)
    return as_float(words), as_float(words << 32 - _RISE_BITS)


def _float_bits(values: Array) -> Array:
    return jax.lax.bitcast_convert_type(values.astype(jnp.float32), jnp.int32)


def _backward(
    options: Options, residuals: Any, cotangents: Any
) -> tuple[Anchors, Keys, Array, Array]:
    from . import _log_sum_kernels as kernels

    anchors, keys, exponents, params, weights, top, log_norm = residuals
    cotangent = cotangents[0]
    statistics = top, log_norm, cotangent * exponents
    d_x, d_y, means = kernels.gradients(options, anchors, keys, weights, statistics)
    return (
        Anchors(d_x.astype(anchors.x.dtype), None, jnp.zeros_like(anchors.powers)),
        Keys(d_y.astype(keys.x.dtype), None, None),
        cotangent * means,
        jnp.zeros_like(params),
    )


_log_sums.defvjp(_forward, _backward)
