"""Row scaling that prevents overflow of squares and exponentials."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._floats import at_least_float32


def row_scale(x: Float[Array, "*batch n"]) -> Float[Array, "*batch 1"]:
    """Largest magnitude of each row, as a divisor; 1 for a row of zeros.

    Constant with respect to gradients, so results must not depend on the scale: the gradient of
    the maximum would divide by its square, which underflows for rows below 1e-19. Clipped where
    the reciprocal would be subnormal: compilers multiply by reciprocals and devices flush
    subnormals to 0.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    largest = jnp.minimum(largest, 0.5 / float(jnp.finfo(x.dtype).tiny))
    return jnp.where(largest == 0, 1, largest)


def normalize_rows(x: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """Scales rows to unit norm in the dtype of ``x``; zero rows stay 0, with zero gradient.

    Integers become float32.
    """
    (wide,) = at_least_float32(x)
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else wide.dtype
    scaled = wide / row_scale(wide)
    square = jnp.sum(scaled**2, axis=-1, keepdims=True)
    zero = square == 0
    length = jnp.sqrt(jnp.where(zero, 1, square))
    return jnp.where(zero, 0, scaled / length).astype(dtype)


def subtract_row_max(x: Float[Array, "*batch n"]) -> tuple[Array, Array]:
    """Subtracts the row maximum; returns the differences (<= 0) and the maximum, ``[*batch, 1]``.

    The maximum is constant with respect to gradients, so it must cancel in the caller's result.
    It is 0 for rows without a finite maximum; +inf entries stay +inf.

    Compilers may recompute the entries fused with the subtraction and unrounded. The maximum
    then differs from itself by up to half a unit in the last place, and at 1e10 its exponential
    is 0 or overflows. Clipping the entries first forces rounding and keeps the difference finite.
    """
    top = jax.lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, 0)
    least = float(jnp.finfo(x.dtype).min)
    return _difference(x, top, jnp.where(top > 0, top + least / 2, least)), top


@jax.custom_jvp
def _difference(x: Array, top: Array, least: Array) -> Array:
    """``max(x, least) - top`` with the gradient of ``x``, also where it is clipped."""
    # jnp.where propagates NaN at half the cost of jnp.maximum.
    return jnp.where(x < least, least, x) - top


_difference.defjvps(lambda tangent, _, x, top, least: tangent, None, None)
