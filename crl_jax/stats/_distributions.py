"""Laws of scores: known in advance, or read off a sample."""

from abc import ABC, abstractmethod
from dataclasses import field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_range
from .._floats import at_least_float32
from .._hyperparams import Scalar
from .._pytree import STATIC, pytree_dataclass
from ._variance_gamma import variance_gamma_cdf, variance_gamma_pdf

_BINS = 1024
# Kernels reach this many deviations, where their density has fallen by 3e-4.
_REACH = 4


class Distribution(ABC):
    """A continuous distribution; a pytree, whose numbers may be traced and swept."""

    @abstractmethod
    def pdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Density."""

    @abstractmethod
    def cdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Distribution function."""

    def fit(self, sample: Float[Array, "n"]) -> "Distribution":
        """The law after a look at a sample of scores; one that is known stays as it is."""
        del sample
        return self


@pytree_dataclass
class VarianceGamma(Distribution):
    r"""The law of inner products of Gaussian vectors, see :func:`variance_gamma_pdf`.

    Attributes:
      dim: Their dimension :math:`d \ge 1`, static.
      scale: The variance :math:`\lambda > 0` of their coordinates.
    """

    dim: int = field(metadata=STATIC)
    scale: Scalar = 1.0

    def __post_init__(self) -> None:
        check_range("scale", self.scale, 0, jnp.inf, low_open=True, high_open=True)

    def pdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Density."""
        return variance_gamma_pdf(x, dim=self.dim, scale=self.scale)

    def cdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Distribution function."""
        return variance_gamma_cdf(x, dim=self.dim, scale=self.scale)


@pytree_dataclass
class SmoothedEmpirical(Distribution):
    r"""No law in advance: the eCDF of a sample and its density, both smoothed by a kernel.

    .. math::
        f(x) = \frac1{nh} \sum_i \varphi\Bigl(\frac{x - x_i}h\Bigr), \qquad
        F(x) = \int_{-\infty}^x f, \qquad
        h = 0.9\, b\, \min\Bigl(\operatorname{std}, \frac{\text{IQR}}{1.34}\Bigr)\, n^{-1/5}

    with the Gaussian :math:`\varphi`, on a grid of 1,024 bins over the range of the sample, between
    which both are linear: a score is looked up in constant time. A single score far from the rest
    makes the bins as wide as it is far: :math:`h` is at least the range divided by 1,024.

    Attributes:
      bandwidth: The :math:`b > 0`; 1 is Silverman's rule.

    References:
      Silverman, Density Estimation for Statistics and Data Analysis, 1986, Eq. 3.31.

    >>> distribution = SmoothedEmpirical().fit(jnp.linspace(-1.0, 1.0, 1001))
    >>> print(distribution.cdf(jnp.array([-2.0, 0.0, 0.5])).round(2))
    [0.   0.5  0.75]
    """

    bandwidth: Scalar = 1.0

    def __post_init__(self) -> None:
        check_range("bandwidth", self.bandwidth, 0, jnp.inf, low_open=True, high_open=True)

    def pdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Not before :meth:`fit`."""
        raise ValueError("`distribution` must be fitted to a sample first.")

    cdf = pdf

    def fit(self, sample: Float[Array, "n"]) -> "GridDistribution":
        """The law of a sample of at least one score, all finite and less than 8e37 apart.

        Raises:
          ValueError: If ``sample`` is not one row of scores.
        """
        (sample,) = at_least_float32(sample)
        if sample.ndim != 1 or not sample.size:
            raise ValueError(f"`sample` must be one row of scores, got the shape {sample.shape}.")
        n, dtype = sample.shape[0], sample.dtype
        low, high = jnp.min(sample), jnp.max(sample)
        # In units of the range squares do not overflow. It is never so small that rounding would
        # move the edges of the bins.
        largest = jnp.maximum(jnp.abs(low), jnp.abs(high))
        least = 32 * _BINS * jnp.finfo(dtype).eps * largest + jnp.finfo(dtype).tiny ** 0.5
        unit = jnp.maximum(high - low, least)
        sample = (sample - low) / unit
        spread = jnp.std(sample)
        quartiles = jnp.quantile(sample, jnp.asarray([0.25, 0.75], dtype))
        middle = (quartiles[1] - quartiles[0]) / 1.34
        spread = jnp.where(middle > 0, jnp.minimum(spread, middle), spread)
        h = jnp.asarray(self.bandwidth, dtype) * 0.9 * spread * n**-0.2
        h = jnp.maximum(h, 1 / _BINS)  # the grid tells no more apart
        width = (1 + 2 * _REACH * h) / _BINS

        # Each score goes to the two nearest centres, in shares that keep its place.
        at = (sample + _REACH * h) / width - 0.5
        left = jnp.clip(jnp.floor(at), 0, _BINS - 2).astype(jnp.int32)
        share = at - left.astype(dtype)
        mass = jnp.zeros(_BINS, dtype).at[left].add(1 - share).at[left + 1].add(share)
        offsets = (jnp.arange(2 * _BINS - 1) - (_BINS - 1)).astype(dtype) * width / h
        kernel = jnp.exp(-0.5 * jnp.square(offsets))
        density = jnp.convolve(kernel, mass, mode="valid", precision=jax.lax.Precision.HIGHEST)
        density = density / jnp.sum(density)
        # Partial sums may round in any order, and so one below the last: a maximum never falls.
        up_to = jax.lax.cummax(jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(density)]))
        width = width * unit
        return GridDistribution(low - _REACH * h * unit, width, density / width, up_to / up_to[-1])


@pytree_dataclass
class OrderStatisticMixture(Distribution):
    r"""The law of one of two scores, of which what is seen is the larger or the smaller.

    Of two independent scores with distribution function :math:`F` the larger is seen with
    probability :math:`p`, otherwise the smaller. What is seen has the distribution function

    .. math::
        G = p F^2 + (1 - p) (1 - (1 - F)^2) = (2p - 1) F^2 + 2 (1 - p) F

    whose inverse is, without a singularity at :math:`p = \tfrac12`,

    .. math::
        F = \frac{G}{(1 - p) + \sqrt{(1 - p)^2 + (2p - 1) G}}, \qquad
        f = \frac{g}{2 (2p - 1) F + 2 (1 - p)}

    Attributes:
      seen: The law :math:`G` of what is seen.
      share: The :math:`p` in [0, 1].

    References:
      The relation of populations in "Contrastive Learning for Personalized Recommendation",
      section 6.3.2.1, without an encoder's quality.

    >>> distribution = OrderStatisticMixture(VarianceGamma(dim=3), 1.0)  # seen is always the larger
    >>> print(f"{distribution.cdf(jnp.array(1.0)) ** 2:.3f} {variance_gamma_cdf(1.0, dim=3):.3f}")
    0.761 0.761
    """

    seen: Distribution
    share: Scalar

    def __post_init__(self) -> None:
        check_range("share", self.share, 0, 1)

    def pdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Density; 0 where that of what is seen is, and at the end where F has no slope."""
        below = self.cdf(x)
        slope = 2 * self._tilt(below) * below + 2 * (1 - self._p(below))
        density = self.seen.pdf(x)
        flat = slope <= 0
        return jnp.where(flat, 0, density / jnp.where(flat, 1, slope))

    def cdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Distribution function."""
        seen = self.seen.cdf(x)
        rest = 1 - self._p(seen)
        # The root of 0, where p is 1 and G is 0, has no slope to pass on.
        square = jnp.square(rest) + self._tilt(seen) * seen
        flat = square <= 0
        whole = rest + jnp.where(flat, 0, jnp.sqrt(jnp.where(flat, 1, square)))
        nothing = whole <= 0
        return jnp.clip(jnp.where(nothing, 0, seen / jnp.where(nothing, 1, whole)), 0, 1)

    def _p(self, like: Array) -> Array:
        return jnp.asarray(self.share, like.dtype)

    def _tilt(self, like: Array) -> Array:
        return 2 * self._p(like) - 1


@pytree_dataclass
class GridDistribution(Distribution):
    """A density in bins of one width: what :meth:`SmoothedEmpirical.fit` gives.

    Attributes:
      start: Lower edge of the first bin.
      width: Width of the bins, > 0.
      density: Density in each, ``[bins]``.
      up_to: Distribution function at their edges, ``[bins + 1]``, from 0 to 1.
    """

    start: Float[Array, ""]
    width: Float[Array, ""]
    density: Float[Array, "bins"]
    up_to: Float[Array, "bins_plus_1"]

    def pdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Density, linear between the middles of the bins; 0 beyond the grid."""
        at = self._place(x)
        beyond = (at < 0) | (at > self.density.shape[0])
        return jnp.where(beyond, 0, _between(self.density, at - 0.5))

    def cdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Distribution function, linear between the edges; 0 and 1 beyond the grid."""
        return _between(self.up_to, self._place(x))

    def _place(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Where scores stand, in bins from the start."""
        x = jnp.asarray(x).astype(self.start.dtype)
        # Far scores stop just beyond the grid: their distance from it may overflow.
        end = self.start + self.width * self.density.shape[0]
        x = jnp.clip(x, self.start - self.width, end + self.width)
        return (x - self.start) / self.width


def _between(values: Float[Array, "n"], at: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Linear between the values, which stand at 0, 1, 2 …, and constant beyond the ends."""
    at = jnp.clip(at, 0, values.shape[0] - 1)
    left = jnp.minimum(jnp.floor(at).astype(jnp.int32), values.shape[0] - 2)
    share = at - left.astype(at.dtype)
    low, high = values[left], values[left + 1]
    # Rounding must not lead beyond the next value: a distribution function never falls.
    between = low + share * (high - low)
    return jnp.clip(between, jnp.minimum(low, high), jnp.maximum(low, high))
