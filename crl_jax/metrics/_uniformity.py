"""How evenly representations are spread over the sphere."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._blocks import map_blocks
from .._checks import check_count, check_range, check_shape
from .._floats import at_least_float32
from .._hyperparams import Scalar


def uniformity(
    x: Float[Array, "n dim"],
    *,
    scale: Scalar = 2.0,
    where: Bool[Array, "n"] | None = None,
    block_size: int = 256,
) -> Float[Array, ""]:
    r"""Uniformity of a large set of representations; the lower, the more even.

    .. math::
        \log \frac{1}{n (n-1)} \sum_{i \ne j} e^{-c \lVert x_i - x_j \rVert^2}

    The number that :func:`crl_jax.losses.uniformity` gives, without its :math:`n^2` distances at
    once. For training take the loss.

    Args:
      x: Representations of length 1, shape ``[n, dim]``, as :func:`crl_jax.losses.normalize`
        gives.
      scale: The :math:`c > 0`.
      where: True keeps a representation, shape ``[n]``; others are never read.
      block_size: Representations whose distances to all are taken at a time; static.

    Returns:
      A scalar, at least float32; 0 where fewer than two are kept.

    Raises:
      ValueError: If a shape does not fit, or ``scale`` or ``block_size`` leaves its range.

    References:
      Wang and Isola, `Understanding Contrastive Representation Learning through Alignment
      and Uniformity on the Hypersphere <https://arxiv.org/abs/2005.10242>`_, 2020, section
      4.1.

    >>> print(uniformity(jnp.array([[1.0, 0.0], [-1.0, 0.0]])))
    -8.0
    """
    check_shape("where", where, x.shape[:1])
    check_count("block_size", block_size)
    (x,) = at_least_float32(x)
    check_range("scale", scale, 0, jnp.inf, low_open=True, high_open=True, dtype=x.dtype)
    keep = jnp.ones(len(x), bool) if where is None else where
    return _uniformity(x, jnp.asarray(scale, x.dtype), keep, block_size)


@partial(jax.jit, static_argnums=3)
def _uniformity(x: Array, scale: Array, keep: Array, block_size: int) -> Array:
    squares = jnp.sum(x**2, axis=1)
    places = jnp.arange(len(x), dtype=jnp.int32)

    def of_block(block: tuple[Array, Array, Array, Array]) -> Array:
        """The logarithm of each row's sum."""
        rows, own, kept, at = block
        # All digits also where matrix products have less by default; and no square below 0.
        products = jnp.matmul(rows, x.T, precision=jax.lax.Precision.HIGHEST)
        apart = jnp.maximum(own[:, None] + squares[None] - 2 * products, 0)
        pairs = kept[:, None] & keep[None] & (at[:, None] != places[None])
        return jax.nn.logsumexp(jnp.where(pairs, -scale * apart, -jnp.inf), axis=1)

    total = jax.nn.logsumexp(map_blocks(of_block, (x, squares, keep, places), block_size))
    n = jnp.sum(keep).astype(x.dtype)
    enough = n > 1
    # A sum of logarithms: n (n - 1) may pass what the type holds.
    count = jnp.log(jnp.where(enough, n, 2)) + jnp.log(jnp.where(enough, n - 1, 1))
    return jnp.where(enough, total - count, 0)
