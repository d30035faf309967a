"""Convolutions of images, and their gradients in the form that XLA is fast at on CPUs.

XLA hands a convolution on CPUs to a library if its axes stand in one order: images, rows, columns,
channels. The gradients that differentiation gives stand in others. Within a loop, such as that of
training, XLA then computes them itself, up to four hundred times slower. So they are written here
as convolutions in that order, with the transposes made before. Barriers keep XLA from taking these
into the convolution again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Convolution = Literal["auto", "xla", "cpu"]
"""``"xla"`` leaves gradients to JAX; ``"cpu"`` gives them the form that is fast on CPUs; ``"auto"``
chooses by the backend."""

_PART_BYTES = 2**19
"""Images whose gradient is computed at a time; larger parts leave the caches."""

_AXES = ("NHWC", "HWIO", "NHWC")


def convolve(
    x: Float[Array, "batch rows columns n_in"],
    kernel: Float[Array, "size size n_in n_out"],
    stride: int = 1,
    way: Convolution = "auto",
) -> Float[Array, "batch new_rows new_columns n_out"]:
    r"""Images convolved with a kernel of an odd size k, with (k − 1) / 2 zeros at each edge.

    .. math:: y_{o} = \sum_{t} x_{s o + t - (k - 1) / 2}\, w_t

    Args:
      x: Images.
      kernel: Weights, of the type of the images.
      stride: The s. Static.
      way: See :data:`Convolution`. Static.

    Returns:
      Images of ⌈rows / s⌉ × ⌈columns / s⌉, of the type of ``x``.
    """
    if way == "auto":
        way = "cpu" if jax.default_backend() == "cpu" else "xla"
    if way == "xla":
        return _forward(x, kernel, stride)
    if kernel.shape[0] == 1:
        x, stride = x[:, ::stride, ::stride], 1
    return _convolve(x, kernel, stride)


def _forward(x: Array, kernel: Array, stride: int) -> Array:
    edge = kernel.shape[0] // 2
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), [(edge, edge)] * 2, dimension_numbers=_AXES
    )


def _in_turn(function: Callable[..., Array], **settings: Any) -> Callable[..., Array]:
    """Under ``vmap`` one after the other: XLA is slow at convolutions in groups, too."""
    return jax.custom_batching.sequential_vmap(partial(function, **settings))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve(x: Array, kernel: Array, stride: int) -> Array:
    return _in_turn(_forward, stride=stride)(x, kernel)


def _convolve_fwd(x: Array, kernel: Array, stride: int) -> tuple[Array, Any]:
    return _convolve(x, kernel, stride), (x, kernel)


def _convolve_bwd(stride: int, given: Any, slope: Array) -> tuple[Array, Array]:
    x, kernel = given
    of_images = _in_turn(_slope_of_images, stride=stride, sizes=x.shape[1:3])
    of_kernel = _in_turn(_slope_of_kernel, stride=stride, size=kernel.shape[0])
    return of_images(slope, kernel), of_kernel(x, slope).astype(kernel.dtype)


_convolve.defvjp(_convolve_fwd, _convolve_bwd)


def _slope_of_images(slope: Array, kernel: Array, *, stride: int, sizes: tuple[int, int]) -> Array:
    """A convolution that gives the slopes of stride × stride neighbours as channels.

    For the place s q + a, the tap of the output q + u is t = a + (k − 1) / 2 − s u. To fill up
    with zeros between outputs would take more products.
    """
    size, s, n_in = kernel.shape[0], stride, kernel.shape[2]
    edge = size // 2
    first, last = -((size - 1 - edge) // s), (s - 1 + edge) // s
    taps = np.arange(s) + edge - s * np.arange(first, last + 1)[:, None]
    taps = np.where((taps >= 0) & (taps < size), taps, size)  # behind the last there are zeros
    filled = jnp.pad(kernel, [(0, 1), (0, 1), (0, 0), (0, 0)])
    turned = filled[taps[:, None, :, None], taps[None, :, None, :]]  # [u, u', a, a', in, out]
    turned = turned.transpose(0, 1, 5, 2, 3, 4)
    turned = jax.lax.optimization_barrier(turned.reshape(*turned.shape[:3], s * s * n_in))
    whole = [-(-n // s) for n in sizes]
    edges = [(-first, last + new - own) for new, own in zip(whole, slope.shape[1:3])]
    out = jax.lax.conv_general_dilated(slope, turned, (1, 1), edges, dimension_numbers=_AXES)
    if s == 1:
        return out
    out = out.reshape(-1, *whole, s, s, n_in).transpose(0, 1, 3, 2, 4, 5)
    return out.reshape(-1, s * whole[0], s * whole[1], n_in)[:, : sizes[0], : sizes[1]]


def _slope_of_kernel(x: Array, slope: Array, *, stride: int, size: int) -> Array:
    """Summed over parts of the batch that fit into the caches of a core; at least float32.

    A part takes its images from all over the batch: then each of several devices has some.
    """
    batch, rows, columns, n_in = x.shape
    length = max(1, min(batch, _PART_BYTES // (x.dtype.itemsize * rows * columns * n_in)))
    least = -(-batch // length)
    n_parts = next((n for n in range(least, 2 * least) if batch % n == 0), least)
    length = -(-batch // n_parts)
    if n_parts == 1:
        return _taps(x, slope, stride, size)
    x, slope = (
        jnp.pad(each, [(0, n_parts * length - batch)] + [(0, 0)] * 3).reshape(
            length, n_parts, *each.shape[1:]
        )
        for each in (x, slope)
    )

    def add(part: Any, total: Array) -> Array:
        images, slopes = (
            jax.lax.dynamic_index_in_dim(each, part, 1, keepdims=False) for each in (x, slope)
        )
        return total + _taps(images, slopes, stride, size)

    shape = size, size, n_in, slope.shape[-1]
    return jax.lax.fori_loop(0, n_parts, add, jnp.zeros(shape, _sum_type(slope)))


def _taps(x: Array, slope: Array, stride: int, size: int) -> Array:
    """Channels are convolved as images, and the examples take the place of channels."""
    edge = size // 2
    images, weights = jax.lax.optimization_barrier(
        (x.transpose(3, 1, 2, 0), slope.transpose(1, 2, 0, 3))
    )
    edges = [
        (edge, size - 1 - edge + stride * (new - 1) + 1 - old)
        for old, new in zip(x.shape[1:3], slope.shape[1:3])
    ]
    taps = jax.lax.conv_general_dilated(
        images, weights, (1, 1), edges, rhs_dilation=(stride, stride), dimension_numbers=_AXES,
        preferred_element_type=_sum_type(slope),
    )  # fmt: skip
    return taps.transpose(1, 2, 0, 3)


def _sum_type(x: Array) -> Any:
    """The type that long sums are kept in."""
    return jnp.float32 if jnp.finfo(x.dtype).bits < 32 else x.dtype
