r"""Convolutions with kernels of 3 × 3 in less than half of the multiplications.

A tile of 2 × 2 outputs sees 4 × 4 places. Tile and kernel are each turned into 4 × 4 numbers by
additions alone, and then the outputs need 16 products, where they need 36 otherwise:

.. math:: y = A^\top \left[ (G\,w\,G^\top) \odot (B^\top d\,B) \right] A .

With channels the products are those of 16 matrices. Sums of few numbers are as exact as those of a
convolution.

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

from ._microbatch import add_parts, cut_batch, example_bytes, part_of

SIZE = 3
"""Rows and columns of the kernel."""

_PART_BYTES = 2**21
"""Of the numbers of tiles that are at hand at a time; more leave the caches."""

_OF_KERNEL = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])  # G


def convolve_tiles(
    x: Float[Array, "batch rows columns n_in"], kernel: Float[Array, "3 3 n_in n_out"]
) -> Float[Array, "batch rows columns n_out"]:
    """Images convolved with stride 1 and a zero at each edge."""
    batch, rows, columns, _ = x.shape
    of_kernel = jnp.einsum("ai,bj,ijck->abck", _matrix(kernel), _matrix(kernel), kernel)
    of_kernel = of_kernel.reshape(16, *kernel.shape[2:])
    cut = cut_batch((x,), _tile_bytes(x), _PART_BYTES)[0]
    shares, n_parts, length = cut.shape[:3]
    tall, wide, n_out = -(-rows // 2), -(-columns // 2), kernel.shape[-1]

    def put(part: Any, out: Array) -> Array:
        of_images = _twice(_seen, _with_edges(part_of(cut, part)))
        products = jnp.einsum("tnc,tck->tnk", of_images, of_kernel)
        products = products.reshape(4, 4, shares, 1, length, tall, 1, wide, 1, n_out)
        for i, row in enumerate(_outputs(products)):
            for j, one in enumerate(_outputs(row)):
                out = jax.lax.dynamic_update_slice(out, one, (0, part, 0, 0, i, 0, j, 0))
        return out

    start = jnp.zeros((shares, n_parts, length, tall, 2, wide, 2, n_out), x.dtype)
    out = jax.lax.fori_loop(0, n_parts, put, start)
    return out.reshape(-1, 2 * tall, 2 * wide, n_out)[:batch, :rows, :columns]


def slope_of_kernel_by_tiles(
    x: Float[Array, "batch rows columns n_in"], slope: Float[Array, "batch rows columns n_out"]
) -> Float[Array, "3 3 n_in n_out"]:
    """The gradient of a kernel that :func:`convolve_tiles` has, from that of its output.

    Shares of a part are added at the end: devices wait for each other once.
    """

    def products(shares: int, x: Array, slope: Array) -> Array:
        slope = jnp.pad(slope, [(0, 0), *((0, n % 2) for n in slope.shape[1:3]), (0, 0)])
        turned = _twice(_seen, _with_edges(x)), _twice(_of_outputs, slope)
        return jnp.einsum(
            "tsnc,tsnk->stck", *(each.reshape(16, shares, -1, each.shape[-1]) for each in turned)
        )

    of_tiles = add_parts(products, (x, slope), max(map(_tile_bytes, (x, slope))), _PART_BYTES)
    of_tiles = of_tiles.reshape(4, 4, *of_tiles.shape[1:])
    return jnp.einsum("ai,bj,abck->ijck", _matrix(slope), _matrix(slope), of_tiles)


def _matrix(like: Array) -> Array:
    return jnp.asarray(_OF_KERNEL, like.dtype)


def _tile_bytes(x: Array) -> int:
    """What the tiles of an image take, which overlap."""
    return 4 * example_bytes(x)


def _with_edges(x: Array) -> Array:
    """With the zeros that tiles see, and a row and a column more where their number is odd."""
    return jnp.pad(x, [(0, 0), *((1, 1 + n % 2) for n in x.shape[1:3]), (0, 0)])


def _twice(turn: Callable[[Array, int], tuple[Array, ...]], x: Array) -> Array:
    """Along rows and along columns: ``[16, batch · tiles, channels]``."""
    turned = [each for row in turn(x, 1) for each in turn(row, 2)]
    return jnp.stack(turned).reshape(16, -1, x.shape[-1])


def _seen(x: Array, axis: int) -> tuple[Array, ...]:
    """What B makes of what tiles see."""
    last = x.shape[axis] - 3
    a, b, c, d = (jax.lax.slice_in_dim(x, i, i + last, 2, axis) for i in range(4))
    return a - c, b + c, c - b, b - d


def _of_outputs(x: Array, axis: int) -> tuple[Array, ...]:
    """What the transpose of A makes of slopes."""
    a, b = (jax.lax.slice_in_dim(x, i, None, 2, axis) for i in range(2))
    return a, a + b, a - b, -b


def _outputs(x: Array) -> tuple[Array, Array]:
    """What A makes of products."""
    return x[0] + x[1] + x[2], x[1] - x[2] - x[3]
