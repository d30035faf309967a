"""Features brought to mean 0 and variance 1, and linear functions of them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._floats import at_least_float32
from .._reduce import masked_mean

HIGHEST = jax.lax.Precision.HIGHEST
"""Of matrix products: all digits also where they have less by default."""


class Standardizer(NamedTuple):
    """What makes features standard: ``(x - mean) / scale``."""

    mean: Float[Array, "dim"]
    scale: Float[Array, "dim"]

    def __call__(self, x: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        """Features in units of their standard deviation, from their mean."""
        return (x - self.mean[None]) / self.scale[None]


class LinearClassifier(NamedTuple):
    """A linear function of features: ``x @ kernel + bias``."""

    kernel: Float[Array, "dim n_classes"]
    bias: Float[Array, "n_classes"]

    def __call__(self, x: Float[Array, "n dim"]) -> Float[Array, "n n_classes"]:
        """A score of each class."""
        return jnp.matmul(x, self.kernel, precision=HIGHEST) + self.bias[None]

    def raw(self, standard: Standardizer) -> "LinearClassifier":
        """The same function of features that are not standard."""
        kernel = self.kernel / standard.scale[:, None]
        return LinearClassifier(
            kernel, self.bias - jnp.matmul(standard.mean, kernel, precision=HIGHEST)
        )


def standardize(
    x: Float[Array, "n dim"], keep: Bool[Array, "n"]
) -> tuple[Standardizer, Float[Array, "n dim"]]:
    """The mean and deviation of the kept rows, and these rows made standard; the others are 0.

    A feature that is constant up to rounding is 0 throughout.
    """
    (x,) = at_least_float32(x)
    x = jnp.where(keep[:, None], x, 0)
    n = jnp.maximum(jnp.sum(keep), 1).astype(x.dtype)
    mean = jnp.sum(x, axis=0) / n
    apart = jnp.where(keep[:, None], x - mean[None], 0)
    # What rounding has left in a sum of many far from 0.
    left = jnp.sum(apart, axis=0) / n
    apart = jnp.where(keep[:, None], apart - left[None], 0)
    deviation = jnp.sqrt(jnp.sum(apart**2, axis=0) / n)
    noise = 4 * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(x), axis=0)
    constant = deviation <= noise
    scale = jnp.where(constant, 1, deviation)
    standard = jnp.where(constant[None], 0, apart / scale[None])
    return Standardizer(mean + left, scale), standard


def best_class(scores: Float[Array, "n n_classes"]) -> Int[Array, "n"]:
    """The class with the greatest score, the lowest of equal ones; -1 if a score is NaN."""
    best = jnp.argmax(scores, axis=1).astype(jnp.int32)
    return jnp.where(jnp.any(jnp.isnan(scores), axis=1), -1, best)


def accuracy(
    scores: Float[Array, "n n_classes"], labels: Int[Array, "n"], where: Bool[Array, "n"]
) -> Float[Array, ""]:
    """Share of the kept rows whose own class has the greatest score."""
    return masked_mean((best_class(scores) == labels).astype(jnp.float32), where=where)


def has_class(labels: Int[Array, "n"], n_classes: int) -> Bool[Array, "n"]:
    """Which labels name a class."""
    return (labels >= 0) & (labels < n_classes)
