"""The empirical distribution function of scores, along the last axis."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_range
from .._floats import at_least_float32
from .._hyperparams import expand_anchor_axis
from .._reduce import count_kept
from ._ranks import binned_ranks, ranks


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
    rank, count = ranks(scores, where=where), expand_anchor_axis(count_kept(scores, where))
    # XLA may divide by multiplying with 1/N, and 49 * (1/49) is not 1.
    share = jnp.where(rank == count, 1, rank.astype(scores.dtype) / count.astype(scores.dtype))
    return _nan_where_kept(share, scores, where)


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
    share = rank / expand_anchor_axis(count_kept(scores, where)).astype(scores.dtype)
    return _nan_where_kept(share, scores, where)


def dkw_error(n: int, *, confidence: int | float = 0.95) -> float:
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


def _nan_where_kept(values: Array, scores: Array, where: Array | None) -> Array:
    """The values, NaN where a kept score is."""
    soiled = jnp.isnan(scores) if where is None else where & jnp.isnan(scores)
    return jnp.where(soiled, jnp.nan, values)
