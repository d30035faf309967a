"""Uniformity of representations on the hypersphere."""

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._blocks import map_blocks
from .._checks import check_count, check_shape
from .._floats import at_least_float32
from .._hyperparams import POSITIVE, Scalar, check_arguments
from ._features import HIGHEST


@check_arguments
def uniformity(
    x: Float[Array, "n dim"],
    *,
    scale: Annotated[Scalar, POSITIVE] = 2.0,
    where: Bool[Array, "n"] | None = None,
    block_size: int = 256,
) -> Float[Array, ""]:
    r"""Computes the uniformity of a large set of representations; lower is more uniform.

    .. math::
        \log \frac{1}{n (n-1)} \sum_{i \ne j} e^{-c \lVert x_i - x_j \rVert^2}

    Equals :func:`crl_jax.losses.uniformity` without materialising :math:`n^2` distances. Use the
    loss for training.

    Precision: products are in full float32 on every platform.

    Args:
      x: Representations of norm 1, shape ``[n, dim]``; see :func:`crl_jax.losses.normalize`.
      scale: Kernel scale :math:`c > 0`.
      where: Mask of the representations to include, shape ``[n]``.
      block_size: Rows of the distance matrix computed at a time; static.

    Returns:
      A scalar, at least float32; 0 for fewer than two representations.

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
    keep = jnp.ones(len(x), bool) if where is None else where
    return _uniformity(x, jnp.asarray(scale, x.dtype), keep, block_size)


@partial(jax.jit, static_argnums=3)
def _uniformity(x: Array, scale: Array, keep: Array, block_size: int) -> Array:
    squares = jnp.sum(x**2, axis=1)
    positions = jnp.arange(len(x), dtype=jnp.int32)

    def row_logsumexp(block: tuple[Array, Array, Array, Array]) -> Array:
        rows, row_squares, row_keep, index = block
        products = jnp.matmul(rows, x.T, precision=HIGHEST)
        distances = jnp.maximum(row_squares[:, None] + squares[None] - 2 * products, 0)
        pairs = row_keep[:, None] & keep[None] & (index[:, None] != positions[None])
        return jax.nn.logsumexp(jnp.where(pairs, -scale * distances, -jnp.inf), axis=1)

    total = jax.nn.logsumexp(map_blocks(row_logsumexp, (x, squares, keep, positions), block_size))
    n = jnp.sum(keep).astype(x.dtype)
    has_pairs = n > 1
    # Sum of logarithms: n (n - 1) may overflow.
    count = jnp.log(jnp.where(has_pairs, n, 2)) + jnp.log(jnp.where(has_pairs, n - 1, 1))
    return jnp.where(has_pairs, total - count, 0)
