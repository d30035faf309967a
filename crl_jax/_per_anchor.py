"""Hyper-parameters that are one number, or one number for each anchor."""

from typing import Any, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

Scalar: TypeAlias = int | Float[ArrayLike, ""]
PerAnchor: TypeAlias = int | Float[ArrayLike, "..."]


def per_anchor(name: str, value: Any, batch: tuple[int, ...], dtype: Any) -> Array:
    """Casts ``value`` to ``dtype`` and, unless it is a scalar, to the shape ``batch``."""
    value = jnp.asarray(value, dtype)
    if value.ndim == 0:
        return value
    # NumPy's rule, from the right; jnp.broadcast_to would not name the argument.
    fits = len(value.shape) <= len(batch) and all(
        n in (1, wanted) for n, wanted in zip(value.shape[::-1], batch[::-1])
    )
    if not fits:
        raise ValueError(
            f"`{name}` must be a scalar or broadcast to the anchors' shape {batch}, "
            f"got shape {value.shape}."
        )
    return jnp.broadcast_to(value, batch)


def column(value: Array) -> Array:
    """A scalar as it is, one value per anchor with an axis for the anchor's negatives."""
    return value[..., None] if value.ndim else value
