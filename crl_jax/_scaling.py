"""Rows brought to a size at which squares are numbers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def row_scale(x: Float[Array, "*batch n"]) -> Float[Array, "*batch 1"]:
    """The largest magnitude of each row, to divide it by; 1 for a row of zeros.

    A constant to the gradient: what is divided by it must not depend on the scale. The slope of a
    maximum would divide by its square, which is 0 for rows below 1e-19. It ends where reciprocals
    become subnormal, since compilers multiply by them and devices take them for 0.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    largest = jnp.minimum(largest, 0.5 / float(jnp.finfo(x.dtype).tiny))
    return jnp.where(largest == 0, 1, largest)
