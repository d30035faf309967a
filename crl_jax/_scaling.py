"""Rows brought to a size at which squares and exponentials are numbers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._floats import at_least_float32


def row_scale(x: Float[Array, "*batch n"]) -> Float[Array, "*batch 1"]:
    """The largest magnitude of each row, to divide it by; 1 for a row of zeros.

    A constant to the gradient: what is divided by it must not depend on the scale. The slope of a
    maximum would divide by its square, which is 0 for rows below 1e-19. It ends where reciprocals
    become subnormal, since compilers multiply by them and devices take them for 0.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    largest = jnp.minimum(largest, 0.5 / float(jnp.finfo(x.dtype).tiny))
    return jnp.where(largest == 0, 1, largest)


def normalize_rows(x: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """Rows of length 1, of the dtype of ``x``; a row of zeros stays 0, with zero gradient."""
    (wide,) = at_least_float32(x)
    scaled = wide / row_scale(wide)
    square = jnp.sum(scaled**2, axis=-1, keepdims=True)
    zero = square == 0
    length = jnp.sqrt(jnp.where(zero, 1, square))
    return jnp.where(zero, 0, scaled / length).astype(x.dtype)


def subtract_row_max(x: Float[Array, "*batch n"]) -> tuple[Array, Array]:
    """Entries minus the largest of their row, finite and <= 0, and that largest, ``[*batch, 1]``.

    The largest is a constant to the gradient: it has to cancel in what is made of both. It is 0
    for a row without a number. An infinity above stays one, to be seen.

    Compilers may compute the entries anew, in one step with the subtraction and without rounding
    them before. Then the largest comes out beside itself by up to half of its last digit: at 1e10
    its exponential is 0 or no number. So the difference is taken of bounded entries, a step in
    between which makes compilers round. The bound also keeps the difference finite.
    """
    top = jax.lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, 0)
    least = float(jnp.finfo(x.dtype).min)
    return _difference(x, top, jnp.where(top > 0, top + least / 2, least)), top


@jax.custom_jvp
def _difference(x: Array, top: Array, least: Array) -> Array:
    """``max(x, least) - top``, with the slope of ``x`` even at the bound."""
    # A choice, which lets a nan through at half of the cost of jnp.maximum.
    return jnp.where(x < least, least, x) - top


_difference.defjvps(lambda tangent, _, x, top, least: tangent, None, None)
