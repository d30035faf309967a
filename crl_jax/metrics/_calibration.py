"""Calibration of predicted probabilities."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_count
from .._hyperparams import check_arguments
from .._labelled import flatten_labelled, reliability
from .._reduce import masked_mean
from .._search import count_below
from ..weights import Calibration


@check_arguments
def equal_mass_calibration(
    probability: Float[Array, "*shape"],
    label: Bool[Array, "*shape"],
    *,
    bins: int = 15,
    where: Bool[Array, "*shape"] | None = None,
) -> Calibration:
    r"""Reliability table and expected calibration error (ECE) with bins of equal sample counts.

    .. math:: \mathrm{ECE} = \frac1n \sum_b \Bigl\lvert \sum_{i \in b} (p_i - y_i) \Bigr\rvert

    Sample i with average rank :math:`r_i` in 1 … n is in bin
    :math:`\lfloor B (r_i - \frac12) / n \rfloor`. Equal probabilities have equal ranks and share a
    bin, so that the error does not depend on the order of the samples, and that of a constant is
    :math:`\lvert p - \bar y \rvert`. Bins of equal mass resolve probabilities that are mostly near
    0 or 1, such as those of false negatives, where those of equal width
    (:func:`crl_jax.weights.posterior_calibration`) put almost all samples into one bin.

    The error of exact probabilities is not 0 on finite samples: with :math:`n_b` samples per bin it
    is about :math:`0.8 \sqrt{p (1-p) / n_b}`.

    Args:
      probability: Predicted probabilities :math:`p_i` in [0, 1], any shape.
      label: Outcomes :math:`y_i`, of the same shape.
      bins: Number B of bins, at least 1; static. With fewer than B distinct probabilities, some are
        empty.
      where: Mask of valid samples, of the same shape; others are ignored.

    Returns:
      Table over all samples, at least float32; ``actual`` is the fraction of true labels. All 0 if
      every sample is masked; the error is NaN if a valid probability is NaN.

    Raises:
      ValueError: If a shape does not match or ``bins`` is less than 1.

    References:
      Nguyen and O'Connor, `Posterior Calibration and Exploratory Analysis for Natural Language
      Processing Models <https://arxiv.org/abs/1508.05154>`_, 2015, section 3.3.

    >>> p, label = jnp.array([0.1, 0.2, 0.8, 0.9]), jnp.array([False, False, True, False])
    >>> table = equal_mass_calibration(p, label, bins=2)
    >>> print(table.predicted, table.actual, table.error)
    [0.15 0.85] [0.  0.5] 0.25
    """
    check_count("bins", bins)
    p, y, keep = flatten_labelled(probability, "label", label, where)
    n = jnp.sum(keep, dtype=jnp.int32)
    counted = jnp.where(keep, p, jnp.nan)
    # Twice the average rank, minus 1: an integer in 1 … 2n - 1.
    rank = count_below(counted, p, "left") + count_below(counted, p, "right")
    # The smallest ranks of bins 1, 2, …: ceil(2 n b / B), whose product could overflow.
    b = jnp.arange(1, bins, dtype=jnp.int32)
    quotient, remainder = 2 * n // bins, 2 * n % bins
    starts = quotient * b + -(-remainder * b // bins)
    bin_index = jnp.sum(rank[None] >= starts[:, None], axis=0)
    return Calibration(*reliability(bin_index, p, y, keep, bins))


@check_arguments
def brier_score(
    probability: Float[Array, "*shape"],
    label: Bool[Array, "*shape"],
    *,
    where: Bool[Array, "*shape"] | None = None,
) -> Float[Array, ""]:
    r"""Brier score: mean squared difference of predicted probabilities and outcomes.

    .. math:: \frac1n \sum_i (p_i - y_i)^2

    It is minimised in expectation by the true probabilities; a constant equal to the base rate
    :math:`\bar y` has the score :math:`\bar y (1 - \bar y)`.

    Args:
      probability, label, where: As in :func:`equal_mass_calibration`.

    Returns:
      Scalar in [0, 1], at least float32; 0 if every sample is masked.

    Raises:
      ValueError: If a shape does not match.

    References:
      Brier, *Verification of Forecasts Expressed in Terms of Probability*, 1950.

    >>> print(brier_score(jnp.array([0.5, 1.0]), jnp.array([True, True])))
    0.125
    """
    p, y, keep = flatten_labelled(probability, "label", label, where)
    return masked_mean((p - y) ** 2, where=keep)
