"""Distributions of scores, parametric or estimated from a sample."""

from abc import ABC, abstractmethod
from dataclasses import field
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._floats import at_least_float32
from .._hyperparams import POSITIVE, Range, Scalar
from .._pytree import STATIC, pytree_dataclass
from ._variance_gamma import variance_gamma_cdf, variance_gamma_pdf

_BINS = 1024
# Kernels are truncated at this number of standard deviations, where they have decayed to 3e-4.
_REACH = 4


class Distribution(ABC):
    """Continuous distribution; a pytree, whose parameters may be traced and swept."""

    @abstractmethod
    def pdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Probability density function."""

    @abstractmethod
    def cdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Cumulative distribution function."""

    def fit(self, sample: Float[Array, "n"]) -> "Distribution":
        """Fits the distribution to a sample; parametric distributions are returned unchanged."""
        del sample
        return self


@pytree_dataclass
class VarianceGamma(Distribution):
    r"""Distribution of inner products of Gaussian vectors, see :func:`variance_gamma_pdf`.

    Attributes:
      dim: Dimension :math:`d \ge 1` of the vectors. Static.
      scale: Variance :math:`\lambda > 0` of their coordinates.
    """

    dim: int = field(metadata=STATIC)
    scale: Annotated[Scalar, POSITIVE] = 1.0

    def pdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Probability density function."""
        return variance_gamma_pdf(x, dim=self.dim, scale=self.scale)

    def cdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Cumulative distribution function."""
        return variance_gamma_cdf(x, dim=self.dim, scale=self.scale)


@pytree_dataclass
class SmoothedEmpirical(Distribution):
    r"""Kernel density estimate of a sample, with its smoothed CDF.

    .. math::
        f(x) = \frac1{nh} \sum_i \varphi\Bigl(\frac{x - x_i}h\Bigr), \qquad
        F(x) = \int_{-\infty}^x f, \qquad
        h = 0.9\, b\, \min\Bigl(\operatorname{std}, \frac{\text{IQR}}{1.34}\Bigr)\, n^{-1/5}

    with the Gaussian :math:`\varphi`, interpolated linearly on a grid of 1,024 bins over the range
    of the sample. :math:`h` is at least the width of a bin: an outlier limits the resolution.

    Attributes:
      bandwidth: Factor :math:`b > 0`; 1 is Silverman's rule.

    References:
      Silverman, Density Estimation for Statistics and Data Analysis, 1986, Eq. 3.31.

    >>> distribution = SmoothedEmpirical().fit(jnp.linspace(-1.0, 1.0, 1001))
    >>> print(distribution.cdf(jnp.array([-2.0, 0.0, 0.5])).round(2))
    [0.   0.5  0.75]
    """

    bandwidth: Annotated[Scalar, POSITIVE] = 1.0

    def pdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Undefined before :meth:`fit`."""
        raise ValueError("`distribution` must be fitted to a sample first: call `fit`.")

    cdf = pdf

    def fit(self, sample: Float[Array, "n"]) -> "GridDistribution":
        """Estimates the distribution of at least one score, all finite and less than 8e37 apart.

        Raises:
          ValueError: If ``sample`` is empty or not one-dimensional.
        """
        (sample,) = at_least_float32(sample)
        if sample.ndim != 1 or not sample.size:
            raise ValueError(f"`sample` must be a non-empty vector, got shape {sample.shape}.")
        n, dtype = sample.shape[0], sample.dtype
        low, high = jnp.min(sample), jnp.max(sample)
        # Squares do not overflow in units of the range, which is bounded below so that rounding
        # does not move the edges of bins.
        largest = jnp.maximum(jnp.abs(low), jnp.abs(high))
        least = 32 * _BINS * jnp.finfo(dtype).eps * largest + jnp.finfo(dtype).tiny ** 0.5
        unit = jnp.maximum(high - low, least)
        sample = (sample - low) / unit
        spread = jnp.std(sample)
        quartiles = jnp.quantile(sample, jnp.asarray([0.25, 0.75], dtype))
        middle = (quartiles[1] - quartiles[0]) / 1.34
        spread = jnp.where(middle > 0, jnp.minimum(spread, middle), spread)
        h = jnp.asarray(self.bandwidth, dtype) * 0.9 * spread * n**-0.2
        h = jnp.maximum(h, 1 / _BINS)  # resolution of the grid
        width = (1 + 2 * _REACH * h) / _BINS

        # Each score is split linearly between the two nearest bin centres.
        position = (sample + _REACH * h) / width - 0.5
        left = jnp.clip(jnp.floor(position), 0, _BINS - 2).astype(jnp.int32)
        share = position - left.astype(dtype)
        mass = jnp.zeros(_BINS, dtype).at[left].add(1 - share).at[left + 1].add(share)
        offsets = (jnp.arange(2 * _BINS - 1) - (_BINS - 1)).astype(dtype) * width / h
        kernel = jnp.exp(-0.5 * jnp.square(offsets))
        density = jnp.convolve(kernel, mass, mode="valid", precision=jax.lax.Precision.HIGHEST)
        density = density / jnp.sum(density)
        # Rounding may make partial sums decrease; the cumulative maximum keeps the CDF monotone.
        cumulative = jax.lax.cummax(jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(density)]))
        width = width * unit
        return GridDistribution(
            low - _REACH * h * unit, width, density / width, cumulative / cumulative[-1]
        )


@pytree_dataclass
class OrderStatisticMixture(Distribution):
    r"""Distribution of a score of which the larger or smaller of two draws is observed.

    Of two independent scores with CDF :math:`F` the larger one is observed with probability
    :math:`p`, otherwise the smaller one. The CDF of the observed score is

    .. math:: G = p F^2 + (1 - p) (1 - (1 - F)^2) = (2p - 1) F^2 + 2 (1 - p) F

    and this distribution is its inverse, without a singularity at :math:`p = \tfrac12`,

    .. math::
        F = \frac{G}{(1 - p) + \sqrt{(1 - p)^2 + (2p - 1) G}}, \qquad
        f = \frac{g}{2 (2p - 1) F + 2 (1 - p)}

    Attributes:
      observed: Distribution :math:`G` of the observed score.
      share: Probability :math:`p` in [0, 1].

    References:
      "Contrastive Learning for Personalized Recommendation", section 6.3.2.1.

    >>> distribution = OrderStatisticMixture(VarianceGamma(dim=3), 1.0)  # always the larger
    >>> print(f"{distribution.cdf(jnp.array(1.0)) ** 2:.3f} {variance_gamma_cdf(1.0, dim=3):.3f}")
    0.761 0.761
    """

    observed: Distribution
    share: Annotated[Scalar, Range(0, 1)]

    def pdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Density; 0 where that of the observed score is 0 and where the slope of G(F) vanishes."""
        below = self.cdf(x)
        p = jnp.asarray(self.share, below.dtype)
        slope = 2 * (2 * p - 1) * below + 2 * (1 - p)
        density = self.observed.pdf(x)
        flat = slope <= 0
        return jnp.where(flat, 0, density / jnp.where(flat, 1, slope))

    def cdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Cumulative distribution function."""
        observed = self.observed.cdf(x)
        p = jnp.asarray(self.share, observed.dtype)
        complement = 1 - p
        # The square root at 0, for p = 1 and G = 0, has no finite gradient.
        square = jnp.square(complement) + (2 * p - 1) * observed
        flat = square <= 0
        denominator = complement + jnp.where(flat, 0, jnp.sqrt(jnp.where(flat, 1, square)))
        is_zero = denominator <= 0
        return jnp.clip(jnp.where(is_zero, 0, observed / jnp.where(is_zero, 1, denominator)), 0, 1)


@pytree_dataclass
class GridDistribution(Distribution):
    """Piecewise linear distribution on a regular grid, returned by :meth:`SmoothedEmpirical.fit`.

    Attributes:
      start: Lower edge of the first bin.
      width: Width of the bins, > 0.
      density: Density at the centres of the bins, ``[bins]``.
      cumulative: CDF at the edges of the bins, ``[bins + 1]``, from 0 to 1.
    """

    start: Float[Array, ""]
    width: Float[Array, ""]
    density: Float[Array, "bins"]
    cumulative: Float[Array, "bins_plus_1"]

    def pdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Density, linear between the centres of bins; 0 outside the grid."""
        position = self._position(x)
        is_outside = (position < 0) | (position > self.density.shape[0])
        return jnp.where(is_outside, 0, _interpolate(self.density, position - 0.5))

    def cdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """CDF, linear between the edges of bins; 0 or 1 outside the grid."""
        return _interpolate(self.cumulative, self._position(x))

    def _position(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Position of scores in units of bins from the start."""
        x = jnp.asarray(x).astype(self.start.dtype)
        # Clipped, since the distance from the grid may overflow.
        end = self.start + self.width * self.density.shape[0]
        x = jnp.clip(x, self.start - self.width, end + self.width)
        return (x - self.start) / self.width


def _interpolate(
    values: Float[Array, "n"], position: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Linear interpolation of values at 0, 1, 2, …, constant outside."""
    position = jnp.clip(position, 0, values.shape[0] - 1)
    left = jnp.minimum(jnp.floor(position).astype(jnp.int32), values.shape[0] - 2)
    share = position - left.astype(position.dtype)
    low, high = values[left], values[left + 1]
    # Rounding must not exceed the next value: a CDF is monotone.
    between = low + share * (high - low)
    return jnp.clip(between, jnp.minimum(low, high), jnp.maximum(low, high))


def lack_of_fit(scores: Float[Array, "n"], *, distribution: Distribution) -> Float[Array, ""]:
    r"""Distance of scores from all mixtures of the larger and smaller of two draws.

    With :math:`u = F(s)`, the larger of two draws has the CDF :math:`u^2`, the smaller one
    :math:`2u - u^2`, and mixtures lie between them. The result is the largest distance of the eCDF
    :math:`G_n` of the scores from this band:

    .. math:: \sup_s \max\bigl(F(s)^2 - G_n(s),\; G_n(s) - 2F(s) + F(s)^2,\; 0\bigr)

    It is about ½ for a distribution that is much too narrow, ¼ for one that is much too wide, and
    with high probability below :func:`dkw_error` of :math:`n` for :math:`n` independent scores from
    one that fits.

    Args:
      scores: Scores of interactions, each the larger or smaller of two draws, shape ``[n]``.
      distribution: Distribution of a draw.

    Returns:
      Distance in [0, 1], at least float32; NaN if a score is NaN.

    Raises:
      ValueError: If ``scores`` is empty or not one-dimensional.

    References:
      "Contrastive Learning for Personalized Recommendation", section 3.4, for the populations.

    >>> scores = jnp.linspace(-1.0, 1.0, 101)
    >>> for scale in (0.01, 0.1, 10.0):
    ...     print(f"{lack_of_fit(scores, distribution=VarianceGamma(dim=27, scale=scale)):.2f}")
    0.43
    0.00
    0.24
    """
    (scores,) = at_least_float32(scores)
    if scores.ndim != 1 or not scores.size:
        raise ValueError(f"`scores` must be a non-empty vector, got shape {scores.shape}.")
    below = jnp.sort(distribution.cdf(scores))
    n = scores.size
    # The eCDF jumps at each score: the first bound applies before it, the second at it.
    before = jnp.arange(n, dtype=below.dtype) / n
    too_high = jnp.square(below) - before
    too_low = before + 1 / n - below * (2 - below)
    worst = jnp.maximum(jnp.max(too_high), jnp.max(too_low))
    return jnp.where(jnp.any(jnp.isnan(below)), jnp.nan, jnp.maximum(worst, 0))
