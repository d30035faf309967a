"""Convolution of images, with gradients in the form for which XLA is fast on CPUs.

XLA on CPUs calls a library for convolutions whose axes are in the order images, rows, columns,
channels. Automatic differentiation gives gradients in other orders, which XLA compiles itself
inside a loop such as that of training: up to four hundred times slower. Here gradients are written
as convolutions in that order after explicit transposes; optimisation barriers keep XLA from fusing
the transposes into the convolution again.

Two more forms serve CPUs only. 3 × 3 kernels between many channels use :mod:`._winograd`. With few
channels most lanes of a core's vector units would be empty: then neighbouring columns of the
output are computed as channels of one column, by a wider kernel with zeros and a larger stride.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._threads import cpu_count
from ._microbatch import example_bytes, sum_over_microbatches
from ._winograd import SIZE, winograd_conv, winograd_kernel_grad

Convolution = Literal["auto", "xla", "cpu", "core"]
"""Implementation of convolutions: ``"xla"`` is that of JAX; ``"cpu"`` has gradients in the form
that is fast on CPUs; ``"core"`` is ``"cpu"`` for a device that owns one core. ``"auto"`` compiles
to ``"xla"`` on accelerators and to ``"cpu"`` on CPUs, or to ``"core"`` if there are as many local
CPU devices as cores.
"""

_MICROBATCH_BYTES = 2**19
"""Bytes of images per micro-batch of a kernel's gradient; larger ones leave the caches."""

_WINOGRAD_CHANNELS, _WINOGRAD_GRAD_CHANNELS = 32, 128
"""Channels from which Winograd is faster, for outputs and for a kernel's gradient."""

_AXES = ("NHWC", "HWIO", "NHWC")


def convolve(
    x: Float[Array, "batch rows columns n_in"],
    kernel: Float[Array, "size size n_in n_out"],
    stride: int = 1,
    method: Convolution = "auto",
) -> Float[Array, "batch new_rows new_columns n_out"]:
    r"""Convolution with a kernel of odd size k, padded by (k − 1) / 2 zeros at each edge.

    .. math:: y_{o} = \sum_{t} x_{s o + t - (k - 1) / 2}\, w_t

    Args:
      x: Images.
      kernel: Weights, in the dtype of the images.
      stride: The s. Static.
      method: See :data:`Convolution`. Static.

    Returns:
      Images of ⌈rows / s⌉ × ⌈columns / s⌉, in the dtype of ``x``.
    """
    if method == "xla":
        return _conv(x, kernel, stride)
    if kernel.shape[0] == 1:
        x, stride = x[:, ::stride, ::stride], 1
    return _convolve(x, kernel, stride, _owns_core() if method == "auto" else method == "core",
                     method == "auto")  # fmt: skip


def _owns_core() -> bool:
    """Whether there are as many local CPU devices as cores, a constant of the process."""
    try:
        return jax.local_device_count("cpu") >= cpu_count()
    except RuntimeError:  # this process has no CPU devices
        return False


def _conv(x: Array, kernel: Array, stride: int) -> Array:
    edge = kernel.shape[0] // 2
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), [(edge, edge)] * 2, dimension_numbers=_AXES
    )


def _conv_columns(x: Array, kernel: Array, edges: list[tuple[int, int]], n: int) -> Array:
    """Convolution of stride 1 that computes n neighbouring columns as channels of one."""
    size, _, n_in, n_out = kernel.shape
    if n > 1:
        wide = [jnp.pad(kernel, [(0, 0), (a, n - 1 - a), (0, 0), (0, 0)]) for a in range(n)]
        kernel = jnp.stack(wide, axis=3).reshape(size, -1, n_in, n * n_out)
        kernel = jax.lax.optimization_barrier(kernel)
    out = jax.lax.conv_general_dilated(x, kernel, (1, n), edges, dimension_numbers=_AXES)
    return out.reshape(*out.shape[:2], n * out.shape[2], n_out)


def _sequential(function: Callable[..., Array], **options: Any) -> Callable[..., Array]:
    """A loop under ``vmap``: XLA is slow at grouped convolutions too."""
    return jax.custom_batching.sequential_vmap(partial(function, **options))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _convolve(x: Array, kernel: Array, stride: int, single_core: bool, portable: bool) -> Array:
    """The CPU form; if ``portable``, that of JAX when compiled for other platforms."""
    on_cpu = partial(_forward, stride=stride, single_core=single_core)
    if not portable:
        return on_cpu(x, kernel)
    default = partial(_conv, stride=stride)
    return jax.lax.platform_dependent(x, kernel, cpu=on_cpu, default=default)


def _convolve_fwd(
    x: Array, kernel: Array, stride: int, single_core: bool, portable: bool
) -> tuple[Array, Any]:
    return _convolve(x, kernel, stride, single_core, portable), (x, kernel)


def _convolve_bwd(
    stride: int, single_core: bool, portable: bool, residuals: Any, grad: Array
) -> tuple[Array, Array]:
    def default(x: Array, kernel: Array, grad: Array) -> tuple[Array, Array]:
        return jax.vjp(partial(_conv, stride=stride), x, kernel)[1](grad)

    x, kernel = residuals
    on_cpu = partial(_backward, stride=stride, single_core=single_core)
    if not portable:
        return on_cpu(x, kernel, grad)
    return jax.lax.platform_dependent(x, kernel, grad, cpu=on_cpu, default=default)


_convolve.defvjp(_convolve_fwd, _convolve_bwd)


def _forward(x: Array, kernel: Array, stride: int, single_core: bool) -> Array:
    if stride > 1:
        return _sequential(_conv, stride=stride)(x, kernel)
    edge = kernel.shape[0] // 2
    if _prefer_winograd(kernel.shape, stride, x.dtype, _WINOGRAD_CHANNELS):
        return _sequential(winograd_conv)(x, kernel)
    n = _columns_at_once(kernel.shape, x.shape[2], single_core)
    return _sequential(_conv_columns, edges=[(edge, edge)] * 2, n=n)(x, kernel)


def _backward(
    x: Array, kernel: Array, grad: Array, stride: int, single_core: bool
) -> tuple[Array, Array]:
    options = {"stride": stride, "single_core": single_core}
    image_grad = _sequential(_image_grad, sizes=x.shape[1:3], **options)
    kernel_grad = _sequential(_kernel_grad, size=kernel.shape[0], **options)
    return image_grad(grad, kernel), kernel_grad(x, grad).astype(kernel.dtype)


def _prefer_winograd(shape: tuple[int, ...], stride: int, dtype: Any, min_channels: int) -> bool:
    """Whether Winograd is faster; in half precision it is not accurate enough."""
    size, _, n_in, n_out = shape
    wide = min(n_in, n_out) >= min_channels and jnp.finfo(dtype).bits >= 32
    return wide and size == SIZE and stride == 1


def _columns_at_once(shape: tuple[int, ...], columns: int, single_core: bool) -> int:
    """Number of output columns to compute as channels of one, for a kernel's shape.

    Up to 64 channels in all are faster for up to 4 input channels, and up to 32 for fewer than 32
    input channels; but the latter XLA runs on a single core.
    """
    size, _, n_in, n_out = shape
    channels = 64 if n_in <= 4 else 32 if single_core and n_in < 32 else 1
    return _columns_of(channels, n_out, columns) if size > 1 else 1


def _columns_of(channels: int, n_out: int, columns: int) -> int:
    """Number of columns that have exactly ``channels`` channels; 1 if there is none."""
    n = channels // n_out
    return n if n > 1 and n * n_out == channels and columns % n == 0 else 1


def _image_grad(
    grad: Array, kernel: Array, *, stride: int, sizes: tuple[int, int], single_core: bool
) -> Array:
    """Gradient of the images: a convolution whose channels are stride × stride neighbours.

    For the position s q + a, the tap of the output q + u is t = a + (k − 1) / 2 − s u. Zeros
    between outputs instead would take more products.
    """
    size, s, n_in = kernel.shape[0], stride, kernel.shape[2]
    if _prefer_winograd(kernel.shape, stride, grad.dtype, _WINOGRAD_CHANNELS):
        return winograd_conv(grad, kernel[::-1, ::-1].swapaxes(2, 3))
    edge = size // 2
    first, last = -((size - 1 - edge) // s), (s - 1 + edge) // s
    taps = np.arange(s) + edge - s * np.arange(first, last + 1)[:, None]
    taps = np.where((taps >= 0) & (taps < size), taps, size)  # the padding after the last tap
    padded = jnp.pad(kernel, [(0, 1), (0, 1), (0, 0), (0, 0)])
    flipped = padded[taps[:, None, :, None], taps[None, :, None, :]]  # [u, u', a, a', in, out]
    flipped = flipped.transpose(0, 1, 5, 2, 3, 4)
    flipped = jax.lax.optimization_barrier(flipped.reshape(*flipped.shape[:3], s * s * n_in))
    outputs = [-(-n // s) for n in sizes]
    edges = [(-first, last + n - n_grad) for n, n_grad in zip(outputs, grad.shape[1:3])]
    n = _columns_at_once(flipped.shape, outputs[1], single_core)
    out = _conv_columns(grad, flipped, edges, n)
    if s == 1:
        return out
    out = out.reshape(-1, *outputs, s, s, n_in).transpose(0, 1, 3, 2, 4, 5)
    return out.reshape(-1, s * outputs[0], s * outputs[1], n_in)[:, : sizes[0], : sizes[1]]


def _kernel_grad(x: Array, grad: Array, *, stride: int, size: int, single_core: bool) -> Array:
    """Gradient of the kernel, at least float32, summed over micro-batches that fit into caches."""
    shape = (size, size, x.shape[3], grad.shape[3])
    if _prefer_winograd(shape, stride, x.dtype, _WINOGRAD_GRAD_CHANNELS):
        return winograd_kernel_grad(x, grad)
    n = _columns_of(32, grad.shape[-1], grad.shape[2]) if single_core and size > 1 else 1
    taps = partial(_taps, stride=stride, size=size, n_columns=n)
    return sum_over_microbatches(taps, (x, grad), example_bytes(x), _MICROBATCH_BYTES)


def _taps(shares: int, x: Array, grad: Array, stride: int, size: int, n_columns: int) -> Array:
    """A convolution with channels as images and examples as channels.

    Neighbouring columns of the gradient are channels too: the taps of each are shifted by columns.
    """
    del shares  # a convolution sums over all examples
    edge, (batch, rows, columns, n_out) = size // 2, grad.shape
    grad = grad.reshape(batch, rows, columns // n_columns, n_columns * n_out)
    images, weights = jax.lax.optimization_barrier(
        (x.transpose(3, 1, 2, 0), grad.transpose(1, 2, 0, 3))
    )
    edges = [
        (edge, size - 1 - edge + stride * (n_grad - 1) + 1 - n)
        for n, n_grad in zip(x.shape[1:3], (rows, columns))
    ]
    taps = jax.lax.conv_general_dilated(
        images, weights, (1, 1), edges, rhs_dilation=(stride, stride * n_columns),
        dimension_numbers=_AXES,
        preferred_element_type=jnp.float32 if jnp.finfo(grad.dtype).bits < 32 else grad.dtype,
    )  # fmt: skip
    taps = taps.reshape(*taps.shape[:3], n_columns, n_out)
    shifted = [taps[:, :, stride * a : stride * a + size, a] for a in range(n_columns)]
    return reduce(jnp.add, shifted).transpose(1, 2, 0, 3)[None]
