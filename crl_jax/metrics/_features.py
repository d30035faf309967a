"""Shared parts of classification metrics: labels, standardisation, linear classifiers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_int32
from .._floats import at_least_float32
from .._reduce import masked_mean

HIGHEST = jax.lax.Precision.HIGHEST
"""Full float32 precision of matrix products, which GPU and TPU do not have by default."""


class Standardizer(NamedTuple):
    """Affine standardisation ``(x - mean) / scale``."""

    mean: Float[Array, "dim"]
    scale: Float[Array, "dim"]

    def __call__(self, x: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        """Standardises features."""
        return (x - self.mean[None]) / self.scale[None]


class LinearClassifier(NamedTuple):
    """Linear classifier with scores ``x @ kernel + bias``."""

    kernel: Float[Array, "dim n_classes"]
    bias: Float[Array, "n_classes"]

    def __call__(self, x: Float[Array, "n dim"]) -> Float[Array, "n n_classes"]:
        """Computes a score per class."""
        return jnp.matmul(x, self.kernel, precision=HIGHEST) + self.bias[None]

    def unstandardized(self, standardizer: Standardizer) -> "LinearClassifier":
        """Returns the same classifier as a function of raw features."""
        kernel = self.kernel / standardizer.scale[:, None]
        return LinearClassifier(
            kernel, self.bias - jnp.matmul(standardizer.mean, kernel, precision=HIGHEST)
        )


def standardize(
    x: Float[Array, "n dim"], keep: Bool[Array, "n"]
) -> tuple[Standardizer, Float[Array, "n dim"]]:
    """Fits a standardizer to the kept rows and applies it; other rows become 0.

    Features that are constant up to rounding become 0.
    """
    (x,) = at_least_float32(x)
    x = jnp.where(keep[:, None], x, 0)
    n = jnp.maximum(jnp.sum(keep), 1).astype(x.dtype)
    mean = jnp.sum(x, axis=0) / n
    centred = jnp.where(keep[:, None], x - mean[None], 0)
    # Second pass: corrects the rounding error of the mean.
    correction = jnp.sum(centred, axis=0) / n
    centred = jnp.where(keep[:, None], centred - correction[None], 0)
    deviation = jnp.sqrt(jnp.sum(centred**2, axis=0) / n)
    noise = 4 * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(x), axis=0)
    constant = deviation <= noise
    scale = jnp.where(constant, 1, deviation)
    standard = jnp.where(constant[None], 0, centred / scale[None])
    return Standardizer(mean + correction, scale), standard


def best_class(scores: Float[Array, "n n_classes"]) -> Int[Array, "n"]:
    """Returns the class with the maximum score, ties to the lower class; -1 if a score is NaN."""
    best = jnp.argmax(scores, axis=1).astype(jnp.int32)
    return jnp.where(jnp.any(jnp.isnan(scores), axis=1), -1, best)


def accuracy(
    scores: Float[Array, "n n_classes"], labels: Int[Array, "n"], where: Bool[Array, "n"]
) -> Float[Array, ""]:
    """Computes the classification accuracy of the kept rows."""
    return masked_mean((best_class(scores) == labels).astype(jnp.float32), where=where)


def has_class(labels: Int[Array, "n"], n_classes: int) -> Bool[Array, "n"]:
    """Returns the mask of labels in ``[0, n_classes)``."""
    return (labels >= 0) & (labels < n_classes)


def class_labels(name: str, labels: Any, n_classes: int) -> Int[Array, "n"]:
    """Converts labels to int32; refuses others, and concrete ones not below ``n_classes``."""
    labels = labels if isinstance(labels, Tracer) else np.asarray(labels)
    if labels.size and labels.dtype.kind not in "iub":
        raise ValueError(f"`{name}` must be integers, got {labels.dtype}.")
    if not isinstance(labels, Tracer) and labels.size and labels.max() >= n_classes:
        raise ValueError(
            f"`{name}` must be below `n_classes` = {n_classes} (or negative for unlabelled "
            f"examples), got {labels.max()} at index {int(labels.argmax())}."
        )
    check_int32(name, labels)
    return jnp.asarray(labels).astype(jnp.int32)
