"""Convolutions of images, and their gradients in the form that XLA is fast at on CPUs.

XLA hands a convolution on CPUs to a library if its axes stand in one order: images, rows, columns,
channels. The gradients that differentiation gives stand in others. Within a loop, such as that of
training, XLA then computes them itself, up to four hundred times slower. So they are written here
as convolutions in that order, with the transposes made before. Barriers keep XLA from taking these
into the convolution again.

Kernels of 3 × 3 between many channels are computed in tiles, see :mod:`._winograd`.

With few channels XLA leaves most of a core's vector units empty. Then neighbouring columns of the
output are computed as channels of one column: a kernel that is a few columns wider steps over as
many of them, with zeros where a tap is not of a column.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._threads import cpu_count
from ._microbatch import add_parts, example_bytes
from ._winograd import SIZE, convolve_tiles, slope_of_kernel_by_tiles

Convolution = Literal["auto", "xla", "cpu", "core"]
"""``"xla"`` leaves gradients to JAX; ``"cpu"`` gives them the form that is fast on CPUs, ``"core"``
that on a CPU's device with one core to itself; ``"auto"`` chooses by the backend and its devices.
"""

_PART_BYTES = 2**19
"""Images whose gradient is computed at a time; larger parts leave the caches."""

_LEAST, _LEAST_OF_KERNEL = 32, 128
"""Channels from which on products of tiles are faster, and where they give a kernel's gradient."""

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
        way = _own_way()
    if way == "xla":
        return _forward(x, kernel, stride)
    if kernel.shape[0] == 1:
        x, stride = x[:, ::stride, ::stride], 1
    return _convolve(x, kernel, stride, way == "core")


def _own_way() -> Convolution:
    if jax.default_backend() != "cpu":
        return "xla"
    return "core" if jax.local_device_count() >= cpu_count() else "cpu"


def _forward(x: Array, kernel: Array, stride: int) -> Array:
    edge = kernel.shape[0] // 2
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), [(edge, edge)] * 2, dimension_numbers=_AXES
    )


def _beside(x: Array, kernel: Array, edges: list[tuple[int, int]], n: int) -> Array:
    """A convolution of stride 1 with n columns of the output at a time, as channels of one."""
    size, _, n_in, n_out = kernel.shape
    if n > 1:
        wide = [jnp.pad(kernel, [(0, 0), (a, n - 1 - a), (0, 0), (0, 0)]) for a in range(n)]
        kernel = jnp.stack(wide, axis=3).reshape(size, -1, n_in, n * n_out)
        kernel = jax.lax.optimization_barrier(kernel)
    out = jax.lax.conv_general_dilated(x, kernel, (1, n), edges, dimension_numbers=_AXES)
    return out.reshape(*out.shape[:2], n * out.shape[2], n_out)


def _in_turn(function: Callable[..., Array], **settings: Any) -> Callable[..., Array]:
    """Under ``vmap`` one after the other: XLA is slow at convolutions in groups, too."""
    return jax.custom_batching.sequential_vmap(partial(function, **settings))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve(x: Array, kernel: Array, stride: int, alone: bool) -> Array:
    if stride > 1:
        return _in_turn(_forward, stride=stride)(x, kernel)
    edge = kernel.shape[0] // 2
    if _in_tiles(kernel.shape, stride, x.dtype, _LEAST):
        return _in_turn(convolve_tiles)(x, kernel)
    n = _n_beside(kernel.shape, x.shape[2], alone)
    return _in_turn(_beside, edges=[(edge, edge)] * 2, n=n)(x, kernel)


def _convolve_fwd(x: Array, kernel: Array, stride: int, alone: bool) -> tuple[Array, Any]:
    return _convolve(x, kernel, stride, alone), (x, kernel)


def _convolve_bwd(stride: int, alone: bool, given: Any, slope: Array) -> tuple[Array, Array]:
    x, kernel = given
    of_images = _in_turn(_slope_of_images, stride=stride, sizes=x.shape[1:3], alone=alone)
    of_kernel = _in_turn(_slope_of_kernel, stride=stride, size=kernel.shape[0], alone=alone)
    return of_images(slope, kernel), of_kernel(x, slope).astype(kernel.dtype)


_convolve.defvjp(_convolve_fwd, _convolve_bwd)


def _in_tiles(shape: tuple[int, ...], stride: int, dtype: Any, least: int) -> bool:
    """Whether Winograd's products are faster. In half precision they are not exact enough."""
    size, _, n_in, n_out = shape
    wide = min(n_in, n_out) >= least and jnp.finfo(dtype).bits >= 32
    return wide and size == SIZE and stride == 1


def _n_beside(shape: tuple[int, ...], columns: int, alone: bool) -> int:
    """How many columns of the output to compute at a time, for a kernel of a shape.

    Up to 64 channels of them are faster where there are up to four channels in, and up to 32 where
    there are less than 32; but those XLA hands to a library that stays on one core.
    """
    size, _, n_in, n_out = shape
    most = 64 if n_in <= 4 else 32 if alone and n_in < 32 else 1
    return _whole(most, n_out, columns) if size > 1 else 1


def _whole(most: int, n_out: int, columns: int) -> int:
    """As many columns as have that many channels, if that comes out even."""
    n = most // n_out
    return n if n > 1 and n * n_out == most and columns % n == 0 else 1


def _slope_of_images(
    slope: Array, kernel: Array, *, stride: int, sizes: tuple[int, int], alone: bool
) -> Array:
    """A convolution that gives the slopes of stride × stride neighbours as channels.

    For the place s q + a, the tap of the output q + u is t = a + (k − 1) / 2 − s u. To fill up
    with zeros between outputs would take more products.
    """
    size, s, n_in = kernel.shape[0], stride, kernel.shape[2]
    if _in_tiles(kernel.shape, stride, slope.dtype, _LEAST):
        return convolve_tiles(slope, kernel[::-1, ::-1].swapaxes(2, 3))
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
    out = _beside(slope, turned, edges, _n_beside(turned.shape, whole[1], alone))
    if s == 1:
        return out
    out = out.reshape(-1, *whole, s, s, n_in).transpose(0, 1, 3, 2, 4, 5)
    return out.reshape(-1, s * whole[0], s * whole[1], n_in)[:, : sizes[0], : sizes[1]]


def _slope_of_kernel(x: Array, slope: Array, *, stride: int, size: int, alone: bool) -> Array:
    """Summed over parts of the batch that fit into the caches of a core; at least float32."""
    if _in_tiles((size, size, x.shape[3], slope.shape[3]), stride, x.dtype, _LEAST_OF_KERNEL):
        return slope_of_kernel_by_tiles(x, slope)
    beside = _whole(32, slope.shape[-1], slope.shape[2]) if alone and size > 1 else 1
    taps = partial(_taps, stride=stride, size=size, beside=beside)
    return add_parts(taps, (x, slope), example_bytes(x), _PART_BYTES)


def _taps(shares: int, x: Array, slope: Array, stride: int, size: int, beside: int) -> Array:
    """Channels are convolved as images, and the examples take the place of channels.

    Neighbouring columns of the slopes are channels, too: each has its taps some columns further.
    """
    del shares  # a convolution adds all of them up
    edge, (batch, rows, columns, n_out) = size // 2, slope.shape
    slope = slope.reshape(batch, rows, columns // beside, beside * n_out)
    images, weights = jax.lax.optimization_barrier(
        (x.transpose(3, 1, 2, 0), slope.transpose(1, 2, 0, 3))
    )
    edges = [
        (edge, size - 1 - edge + stride * (new - 1) + 1 - old)
        for old, new in zip(x.shape[1:3], (rows, columns))
    ]
    taps = jax.lax.conv_general_dilated(
        images, weights, (1, 1), edges, rhs_dilation=(stride, stride * beside),
        dimension_numbers=_AXES, preferred_element_type=_sum_type(slope),
    )  # fmt: skip
    taps = taps.reshape(*taps.shape[:3], beside, n_out)
    of_each = [taps[:, :, stride * a : stride * a + size, a] for a in range(beside)]
    return reduce(jnp.add, of_each).transpose(1, 2, 0, 3)[None]


def _sum_type(x: Array) -> Any:
    """The type that long sums are kept in."""
    return jnp.float32 if jnp.finfo(x.dtype).bits < 32 else x.dtype
