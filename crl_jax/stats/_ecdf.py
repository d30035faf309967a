"""Empirical CDF of scores along the last axis."""

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
    r"""Empirical CDF of each row, evaluated at its own scores.

    .. math:: u_j = \frac{\#\{i : s_i \le s_j\}}{N}

    Ties share their largest rank, and the largest score of a row has :math:`u = 1`. The gradient of
    this step function is zero.

    Args:
      scores: The :math:`s_j`, shape ``[*batch, n]``.
      where: Mask of valid entries, shape ``[*batch, n]``, whose number is :math:`N`; others are
        never read.

    Returns:
      Values in (0, 1], shape ``[*batch, n]``, at least float32; 0 for masked scores. A valid NaN
      counts in :math:`N` only and has value NaN.

    Raises:
      ValueError: If ``where`` does not have the shape of ``scores``.

    >>> print(ecdf(jnp.array([5.0, 1.0, 5.0, 9.0])))
    [0.75 0.25 0.75 1.  ]
    """
    (scores,) = at_least_float32(scores)
    rank, count = ranks(scores, where=where), expand_anchor_axis(count_kept(scores, where))
    # XLA may divide by multiplying with 1/N, and 49 * (1/49) is not 1.
    share = jnp.where(rank == count, 1, rank.astype(scores.dtype) / count.astype(scores.dtype))
    return _propagate_nan(share, scores, where)


def binned_ecdf(
    scores: Float[Array, "*batch n"],
    *,
    bins: int,
    where: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch n"]:
    r"""Histogram estimate of :func:`ecdf`, in linear time.

    Each row is divided into ``bins`` equal intervals between its smallest and largest score. A
    score counts itself, all scores in lower bins, and those in its own bin by linear
    interpolation:

    .. math:: |\hat u_j - u_j| \le \frac{\#\{i \ne j : s_i \text{ in the bin of } s_j\}}{N}

    A score alone in its bin has its exact :math:`u`. Ties remain ties, but count each other by
    interpolation. The largest score has :math:`\hat u = 1`, as have all scores if they are equal.
    An outlier widens the bins; scores that then share a bin are ordered by value, not by rank. The
    gradient is zero.

    Args:
      scores: The :math:`s_j`, shape ``[*batch, n]``.
      bins: Number of intervals, positive; static.
      where: Mask of valid entries, shape ``[*batch, n]``; others are never read.

    Returns:
      Values in (0, 1], shape ``[*batch, n]``, at least float32; 0 for masked scores. NaN is treated
      as by :func:`ecdf`.

    Raises:
      ValueError: If ``where`` does not have the shape of ``scores`` or ``bins`` is not positive.

    >>> print(binned_ecdf(jnp.array([0.0, 0.5, 2.0, 4.0]), bins=2))
    [0.25   0.3125 0.75   1.    ]
    """
    (scores,) = at_least_float32(scores)
    rank = binned_ranks(scores, bins=bins, where=where)
    share = rank / expand_anchor_axis(count_kept(scores, where)).astype(scores.dtype)
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
