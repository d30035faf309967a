"""Gaussian blur."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .._checks import check_count, check_range
from .._hyperparams import Scalar
from ._conversion import (
    FloatImage,
    Image,
    Pair,
    Planes,
    as_numbers,
    check_pair,
    chosen,
    to_image,
    to_planes,
)

# Below this the kernel is 1 at its centre and 0 elsewhere, in float32 and in float64.
_SHARP = 0.01

BLUR_DRAWS = 2
"""Numbers that :func:`drawn_sigma` takes."""


def gaussian_blur(image: Image, sigma: Scalar, kernel_size: int) -> FloatImage:
    r"""Weighted means along both axes, with weights in proportion to :math:`e^{-d^2/2\sigma^2}`.

    d goes from :math:`-r` to r for a kernel of :math:`2r + 1`. Beyond its edges the image is
    reflected, without its outermost row or column.

    Args:
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8.
      sigma: The :math:`\sigma \ge 0`, in pixels; 0 gives the image.
      kernel_size: The odd :math:`2r + 1`, with r less than height and width; static.

    Returns:
      Floats in [0, 1], the shape of ``image``.

    Raises:
      ValueError: If ``sigma`` is negative, the kernel is even or too large, or ``image`` is none.

    References:
      torchvision, ``gaussian_blur``; OpenCV, ``GaussianBlur`` with ``BORDER_REFLECT_101``.
    """
    check_range("sigma", sigma, 0, jnp.inf, high_open=True)
    x = to_planes(image)
    check_kernel("kernel_size", kernel_size, min(x.shape[-2:]))
    reach = kernel_size // 2
    distance = jnp.arange(-reach, reach + 1, dtype=x.dtype)
    weights = jnp.exp(-0.5 * (distance / jnp.maximum(jnp.asarray(sigma, x.dtype), _SHARP)) ** 2)
    weights = weights / jnp.sum(weights)
    for axis in (x.ndim - 2, x.ndim - 1):
        x = _along(x, weights, axis)
    return to_image(x)


def random_blur(
    key: Key[Array, ""],
    image: Image,
    kernel_size: int,
    *,
    sigma: Pair = (0.1, 2.0),
    rate: Scalar = 0.5,
) -> FloatImage:
    """Blurs with probability ``rate``, with a uniform sigma; see :func:`gaussian_blur`.

    Args:
      key: Decides.
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8. One decision for all
        images along leading axes.
      kernel_size: Odd, at least 1; static.
      sigma: The least and the greatest, in pixels.
      rate: In [0, 1].

    Returns:
      Floats in [0, 1], the shape of ``image``.

    Raises:
      ValueError: If a number leaves its range, or ``image`` is none.
    """
    check_pair("sigma", sigma, 0, jnp.inf)
    check_range("rate", rate, 0, 1)
    uniform = jax.random.uniform(key, (BLUR_DRAWS,), jnp.float32)
    return gaussian_blur(image, drawn_sigma(uniform, sigma, rate), kernel_size)


def drawn_sigma(uniform: Float[Array, "2"], sigma: Pair, rate: Any) -> Float[Array, ""]:
    """The sigma of a blur by chance, 0 where there is to be none."""
    least, greatest = as_numbers(sigma)
    drawn = least + uniform[0] * (greatest - least)
    return jnp.where(chosen(uniform[1], rate), drawn, 0)


def check_kernel(name: str, kernel_size: int, side: int) -> None:
    """Raises ``ValueError`` unless a kernel fits images of some side."""
    check_count(name, kernel_size)
    if kernel_size % 2 == 0:
        raise ValueError(f"`{name}` must be odd, got {kernel_size}.")
    if kernel_size // 2 >= side:
        raise ValueError(
            f"`{name}` must be less than {2 * side} for a side of {side} pixels, got {kernel_size}."
        )


def _along(x: Planes, weights: Float[Array, "kernel"], axis: int) -> Planes:
    """A sum of shifted images; XLA's CPUs take ages for a convolution with a kernel of each image.

    What passes a barrier is stored. The compiler would else find the place of each pixel beyond
    the edges again for every shift, and the first sum for every shift of the second.
    """
    n, reach = x.shape[axis], weights.shape[0] // 2
    edges = [(0, 0)] * x.ndim
    edges[axis] = (reach, reach)
    padded = jax.lax.optimization_barrier(jnp.pad(x, edges, mode="reflect"))
    shifts = (jax.lax.slice_in_dim(padded, d, d + n, axis=axis) for d in range(weights.shape[0]))
    return jax.lax.optimization_barrier(sum(w * part for w, part in zip(weights, shifts)))
