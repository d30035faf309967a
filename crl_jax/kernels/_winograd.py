r"""Winograd convolution with 3 × 3 kernels, with less than half of the multiplications.

A tile of 2 × 2 outputs depends on 4 × 4 inputs. Tile and kernel are each transformed to 4 × 4
numbers by additions only, and then the outputs need 16 products instead of 36:

.. math:: y = A^\top \left[ (G\,w\,G^\top) \odot (B^\top d\,B) \right] A .

With channels these are the products of 16 matrices. The sums are short, so that the result is as
accurate as that of a direct convolution.

References:
  Lavin and Gray, `Fast Algorithms for Convolutional Neural Networks
  <https://arxiv.org/abs/1509.09308>`_, 2015, equations 6 to 8.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._microbatch import example_bytes, split_batch, sum_over_microbatches, take_microbatch

SIZE = 3
"""Rows and columns of the kernel."""

_MICROBATCH_BYTES = 2**21
"""Bytes of transformed tiles per micro-batch; more leave the caches."""

_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])


def winograd_conv(
    x: Float[Array, "batch rows columns n_in"], kernel: Float[Array, "3 3 n_in n_out"]
) -> Float[Array, "batch rows columns n_out"]:
    """Convolves images with stride 1 and zero padding of 1."""
    batch, rows, columns, _ = x.shape
    g = jnp.asarray(_G, kernel.dtype)
    weights = jnp.einsum("ai,bj,ijck->abck", g, g, kernel).reshape(16, *kernel.shape[2:])
    split = split_batch((x,), _tile_bytes(x), _MICROBATCH_BYTES)[0]
    shares, n, length = split.shape[:3]
    tall, wide, n_out = -(-rows // 2), -(-columns // 2), kernel.shape[-1]

    def put(i: Any, out: Array) -> Array:
        tiles = _along_both(_transform_input, _pad(take_microbatch(split, i)))
        products = jnp.einsum("tnc,tck->tnk", tiles, weights)
        products = products.reshape(4, 4, shares, 1, length, tall, 1, wide, 1, n_out)
        for row, by_row in enumerate(_transform_output(products)):
            for column, value in enumerate(_transform_output(by_row)):
                start = (0, i, 0, 0, row, 0, column, 0)
                out = jax.lax.dynamic_update_slice(out, value, start)
        return out

    out = jnp.zeros((shares, n, length, tall, 2, wide, 2, n_out), x.dtype)
    out = jax.lax.fori_loop(0, n, put, out)
    return out.reshape(-1, 2 * tall, 2 * wide, n_out)[:batch, :rows, :columns]


def winograd_kernel_grad(
    x: Float[Array, "batch rows columns n_in"], grad: Float[Array, "batch rows columns n_out"]
) -> Float[Array, "3 3 n_in n_out"]:
    """Gradient with respect to the kernel of :func:`winograd_conv`, from that of the output.

    The shares of a micro-batch are added at the end, so that devices synchronise once.
    """

    def products(shares: int, x: Array, grad: Array) -> Array:
        grad = jnp.pad(grad, [(0, 0), *((0, n % 2) for n in grad.shape[1:3]), (0, 0)])
        tiles = _along_both(_transform_input, _pad(x)), _along_both(_transform_grad, grad)
        return jnp.einsum(
            "tsnc,tsnk->stck", *(t.reshape(16, shares, -1, t.shape[-1]) for t in tiles)
        )

    size = max(map(_tile_bytes, (x, grad)))
    total = sum_over_microbatches(products, (x, grad), size, _MICROBATCH_BYTES)
    g = jnp.asarray(_G, grad.dtype)
    return jnp.einsum("ai,bj,abck->ijck", g, g, total.reshape(4, 4, *total.shape[1:]))


def _tile_bytes(x: Array) -> int:
    """Bytes of the overlapping tiles of an image."""
    return 4 * example_bytes(x)


def _pad(x: Array) -> Array:
    """Zero padding of 1, and of 1 more at the end of an odd number of rows or columns."""
    return jnp.pad(x, [(0, 0), *((1, 1 + n % 2) for n in x.shape[1:3]), (0, 0)])


def _along_both(transform: Callable[[Array, int], tuple[Array, ...]], x: Array) -> Array:
    """Transforms rows, then columns: ``[16, batch · tiles, channels]``."""
    values = [column for row in transform(x, 1) for column in transform(row, 2)]
    return jnp.stack(values).reshape(16, -1, x.shape[-1])


def _transform_input(x: Array, axis: int) -> tuple[Array, ...]:
    """Multiplication of input tiles by B."""
    last = x.shape[axis] - 3
    a, b, c, d = (jax.lax.slice_in_dim(x, i, i + last, 2, axis) for i in range(4))
    return a - c, b + c, c - b, b - d


def _transform_grad(x: Array, axis: int) -> tuple[Array, ...]:
    """Multiplication of gradients of the output by the transpose of A."""
    a, b = (jax.lax.slice_in_dim(x, i, None, 2, axis) for i in range(2))
    return a, a + b, a - b, -b


def _transform_output(x: Array) -> tuple[Array, Array]:
    """Multiplication of products by A."""
    return x[0] + x[1] + x[2], x[1] - x[2] - x[3]
