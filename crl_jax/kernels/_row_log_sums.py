r"""Log-sums of exponentials over rows of a score matrix that is never stored.

The score matrix of N anchors and M keys is computed in tiles that stay in fast memory. For each
anchor i and exponent k, the kernels return

.. math:: L_{ik} = \log \sum_j w_{ij} e^{p_{ik} s_{ij}}, \qquad s_{ij} = x_i^\top y_j

over the valid keys j with another id, where the weights are 1 or a function of the histogram
estimate of the rank of :math:`s_{ij}` in its row. A loss that is a function of these sums is
ordinary JAX code; the backward pass recomputes the scores.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

RankWeight = Callable[..., Array]
"""Weights of scores, ``weight(rank, count, *params)``: ranks ``[rows, keys]``; the number of
scores of a row and each parameter have the shape ``[rows, 1]``."""

# Anchors and keys per tile. A tile of scores takes 512 KiB; larger tiles read the keys less often.
_TILE = 256, 512


class Options(NamedTuple):
    """Static options of the kernels."""

    weight: RankWeight | None
    bins: int
    tile: tuple[int, int]
    interpret: bool


class Anchors(NamedTuple):
    x: Any  # [N, D]
    ids: Any  # [N, 1]
    exponents: Any  # [N, K]
    params: Any  # [N, P], of the weight


class Keys(NamedTuple):
    x: Any  # [M, D]
    ids: Any  # [1, M]
    valid: Any  # [1, M]


class Ranks(NamedTuple):
    """Linear interpolation of ranks per row: ``start[bin] + slope[bin] * share``.

    ``tables`` are those of ``start``, the rank of the smallest score of a bin, and of the number of
    scores of the bin, which is ``slope + 1``, ``[N, bins]``. If both are below 2^16, a single table
    has both, ``start`` in the upper half of its int32 entries.
    """

    count: Any  # [N, 1], number of scores
    low: Any  # [N, 1], smallest score / 8
    high: Any  # [N, 1], largest score / 8
    tables: tuple[Any, ...]


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
) -> tuple[Float[Array, "n k"], Int[Array, "n"]]:
    r"""Computes :math:`\log \sum_j w_{ij} e^{p_{ik} s_{ij}}` without storing the scores.

    Reverse-mode differentiable with respect to ``x``, ``y`` and ``exponents``; weights are
    constants in the gradient.

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
      weight: Weight of scores as a function of their histogram ranks, see
        :func:`crl_jax.stats.binned_ranks`; ``None`` for weights of 1. Static.
      params: Per-anchor parameters of ``weight``, shape ``[N, P]``.
      bins: Number of bins of the ranks; static. The time of the histogram is proportional to it.
      interpret: Whether to interpret the kernels, for tests on a CPU.

    Returns:
      The log-sums, -inf if empty, and the number of negatives of each anchor.
    """
    n, m = x.shape[0], y.shape[0]
    if params is None:
        params = jnp.zeros((n, 1), jnp.float32)
    options = Options(weight, bins, _TILE, interpret)
    rows, keys = (-size % tile for size, tile in zip((n, m), _TILE, strict=True))
    anchors = Anchors(x, ids[:, None], exponents, jax.lax.stop_gradient(params))
    anchors = jax.tree.map(lambda a: jnp.pad(a, [(0, rows), (0, 0)]), anchors)
    valid = key_mask.astype(jnp.int32)
    padded = Keys(
        jnp.pad(y, [(0, keys), (0, 0)]),
        *(jnp.pad(a[None, :], [(0, 0), (0, keys)]) for a in (key_ids, valid)),
    )
    log_sums, count = _log_sums(options, anchors, padded)
    return log_sums[:n], count[:n, 0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _log_sums(options: Options, anchors: Anchors, keys: Keys) -> tuple[Array, Array]:
    """Log-sums ``[N, K]`` and number of negatives ``[N, 1]``."""
    return _forward(options, anchors, keys)[0]


def _forward(options: Options, anchors: Anchors, keys: Keys) -> tuple[Any, Any]:
    from . import _log_sum_kernels as kernels  # Pallas takes a tenth of a second to import

    ranks = None
    if options.weight is not None:
        limits = Ranks(*kernels.extremes(options, anchors, keys), ())
        inside = kernels.histogram(options, anchors, keys, limits)
        start = jnp.cumsum(inside, axis=1) - inside + 1
        is_narrow = keys.x.shape[0] < 2**16
        ranks = limits._replace(tables=((start << 16) | inside,) if is_narrow else (start, inside))
    top, count, total = kernels.sums(options, anchors, keys, ranks)
    empty = total == 0
    log_norm = jnp.log(jnp.where(empty, 1, total))
    log_sums = jnp.where(empty, -jnp.inf, anchors.exponents * top + log_norm)
    return (log_sums, count), (anchors, keys, ranks, top, log_norm)


def _backward(options: Options, residuals: Any, cotangents: Any) -> tuple[Anchors, Keys]:
    from . import _log_sum_kernels as kernels

    anchors, keys, ranks, top, log_norm = residuals
    given = cotangents[0]
    statistics = top, log_norm, given * anchors.exponents
    d_x, d_y, means = kernels.gradients(options, anchors, keys, ranks, statistics)
    return (
        Anchors(
            d_x.astype(anchors.x.dtype), None, given * (top + means), jnp.zeros_like(anchors.params)
        ),
        Keys(d_y.astype(keys.x.dtype), None, None),
    )


_log_sums.defvjp(_forward, _backward)
