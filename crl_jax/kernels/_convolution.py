"""Convolution of images, with gradients in the form for which XLA is fast on CPUs.

XLA on CPUs calls a library for convolutions whose axes are in the order images, rows, columns,
channels. Automatic differentiation gives gradients in other orders, which XLA compiles itself
inside a loop such as that of training: up to four hundred times slower. Here gradients are written
as convolutions in that order after explicit transposes; optimisation barriers keep XLA from fusing
the transposes into the convolution again.

Winograd's algorithm for 3 × 3 kernels, and neighbouring columns as channels where there are few,
were measured in trainings of ResNet-10 and -18 of widths 16 and 64: without them a step took 0.91
to 1.04 and 1.07 to 1.12 times the CPU time, too little to keep them. Without micro-batches it takes
1.7 times as much.
"""

from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import check_choice, check_count
from .._floats import float_dtype
from ._microbatch import sum_over_microbatches

Convolution = Literal["auto", "xla", "cpu"]
"""Implementation of convolutions: ``"xla"`` is that of JAX; ``"cpu"`` has gradients in the form
that is fast on CPUs; ``"auto"`` compiles to ``"cpu"`` on CPUs and to ``"xla"`` on accelerators.
"""

_MICROBATCH_BYTES = 2**19
"""Bytes of images per micro-batch of a kernel's gradient; larger ones leave the caches."""

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

    Raises:
      ValueError: If the size is even, or ``stride`` or ``method`` invalid.
    """
    check_choice("method", method, get_args(Convolution))
    check_count("stride", stride)
    if kernel.shape[0] % 2 == 0:
        raise ValueError(f"`kernel` must have an odd size, got {kernel.shape[0]}.")
    if method == "xla":
        return _conv(x, kernel, stride)
    if kernel.shape[0] == 1:
        x, stride = x[:, ::stride, ::stride], 1
    return _convolve(x, kernel, stride, method == "auto")


def _conv(x: Array, kernel: Array, stride: int) -> Array:
    edge = kernel.shape[0] // 2
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), [(edge, edge)] * 2, dimension_numbers=_AXES
    )


def _sequential_conv(x: Array, kernel: Array, stride: int) -> Array:
    """A loop under ``vmap``: XLA on CPUs is slow at grouped convolutions too."""
    return jax.custom_batching.sequential_vmap(partial(_conv, stride=stride))(x, kernel)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve(x: Array, kernel: Array, stride: int, portable: bool) -> Array:
    """The CPU form; if ``portable``, that of JAX when compiled for other platforms."""
    on_cpu = partial(_sequential_conv, stride=stride)
    if not portable:
        return on_cpu(x, kernel)
    default = partial(_conv, stride=stride)
    return jax.lax.platform_dependent(x, kernel, cpu=on_cpu, default=default)


def _convolve_fwd(x: Array, kernel: Array, stride: int, portable: bool) -> tuple[Array, Any]:
    return _convolve(x, kernel, stride, portable), (x, kernel)


def _convolve_bwd(stride: int, portable: bool, residuals: Any, grad: Array) -> tuple[Array, Array]:
    def default(x: Array, kernel: Array, grad: Array) -> tuple[Array, Array]:
        return jax.vjp(partial(_conv, stride=stride), x, kernel)[1](grad)

    def on_cpu(x: Array, kernel: Array, grad: Array) -> tuple[Array, Array]:
        image_grad = partial(_image_grad, stride=stride, sizes=(x.shape[1], x.shape[2]))
        kernel_grad = partial(_kernel_grad, stride=stride, size=kernel.shape[0])
        return (
            jax.custom_batching.sequential_vmap(image_grad)(grad, kernel),
            jax.custom_batching.sequential_vmap(kernel_grad)(x, grad).astype(kernel.dtype),
        )

    x, kernel = residuals
    if not portable:
        return on_cpu(x, kernel, grad)
    return jax.lax.platform_dependent(x, kernel, grad, cpu=on_cpu, default=default)


_convolve.defvjp(_convolve_fwd, _convolve_bwd)


def _image_grad(grad: Array, kernel: Array, *, stride: int, sizes: tuple[int, int]) -> Array:
    """Gradient of the images: a convolution whose channels are stride × stride neighbours.

    For the position s q + a, the tap of the output q + u is t = a + (k − 1) / 2 − s u. Zeros
    between outputs instead would take more products.
    """
    size, s, n_in = kernel.shape[0], stride, kernel.shape[2]
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
    out = jax.lax.conv_general_dilated(grad, flipped, (1, 1), edges, dimension_numbers=_AXES)
    if s == 1:
        return out
    out = out.reshape(-1, *outputs, s, s, n_in).transpose(0, 1, 3, 2, 4, 5)
    return out.reshape(-1, s * outputs[0], s * outputs[1], n_in)[:, : sizes[0], : sizes[1]]


def _kernel_grad(x: Array, grad: Array, *, stride: int, size: int) -> Array:
    """Gradient of the kernel, at least float32, summed over micro-batches that fit into caches."""
    taps = partial(_taps, stride=stride, size=size)
    return sum_over_microbatches(taps, (x, grad), _MICROBATCH_BYTES)


def _taps(x: Array, grad: Array, stride: int, size: int) -> Array:
    """A convolution with channels as images and examples as channels."""
    edge = size // 2
    images, weights = jax.lax.optimization_barrier(
        (x.transpose(3, 1, 2, 0), grad.transpose(1, 2, 0, 3))
    )
    edges = [
        (edge, size - 1 - edge + stride * (n_grad - 1) + 1 - n)
        for n, n_grad in zip(x.shape[1:3], grad.shape[1:3])
    ]
    taps = jax.lax.conv_general_dilated(
        images, weights, (1, 1), edges, rhs_dilation=(stride, stride), dimension_numbers=_AXES,
        preferred_element_type=float_dtype(grad),
    )  # fmt: skip
    return taps.transpose(1, 2, 0, 3)
