"""Probabilities and scores of samples with binary labels: flattening, and sums over bins."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._checks import check_shape
from ._floats import at_least_float32


def flatten_labelled(
    values: Array, name: str, label: Array, where: Array | None
) -> tuple[Float[Array, "n"], Float[Array, "n"], Bool[Array, "n"]]:
    """Flattens values (0 where masked), labels (0 or 1) and the mask.

    Args:
      values: Values, any shape.
      name: Name of the argument ``label``, for errors.
      label: Boolean labels, of the same shape.
      where: Mask of valid samples, of the same shape; None for all.

    Raises:
      ValueError: If a shape does not match.
    """
    check_shape(name, label, values.shape)
    check_shape("where", where, values.shape)
    (values,) = at_least_float32(values)
    keep = jnp.ones(values.shape, bool) if where is None else where
    values = jnp.where(keep, values, 0)
    return values.ravel(), label.ravel().astype(values.dtype), keep.ravel()


def reliability(
    bin_index: Array, p: Float[Array, "n"], y: Float[Array, "n"], keep: Bool[Array, "n"], bins: int
) -> tuple[Float[Array, "bins"], Float[Array, "bins"], Float[Array, "bins"], Float[Array, ""]]:
    """Computes the reliability table of samples in bins, and its calibration error.

    Args:
      bin_index: Bin of each sample, ``[n]``.
      p: Probabilities, ``[n]``.
      y: Labels, 0 or 1, ``[n]``.
      keep: Mask of valid samples, ``[n]``.
      bins: Number of bins.

    Returns:
      The mean probability, the mean label and the number of samples of each bin, 0 for empty ones,
      and the expected calibration error.
    """
    inside = keep[None] & (bin_index[None] == jnp.arange(bins, dtype=bin_index.dtype)[:, None])
    count, predicted, actual, excess = (
        jnp.sum(jnp.where(inside, values[None], 0), axis=1)
        for values in (jnp.ones_like(p), p, y, p - y)
    )
    divisor = jnp.maximum(count, 1)
    n = jnp.maximum(jnp.sum(keep, dtype=jnp.int32), 1).astype(p.dtype)
    return predicted / divisor, actual / divisor, count, jnp.sum(jnp.abs(excess)) / n
