"""Gaussian blur."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .._checks import check_count
from ._images import (
    FACTOR,
    PROBABILITY,
    Factor,
    FloatImage,
    Image,
    Pair,
    Planes,
    Probability,
    check_pair,
    sample_or_zero,
    to_image,
    to_planes,
)

# Below this the kernel is 1 at its centre and 0 elsewhere, in float32 and in float64.
_MIN_SIGMA = 0.01

BLUR_DRAWS = 2
"""Number of uniform random numbers of the sigma of a random blur."""


def gaussian_blur(image: Image, sigma: Factor, kernel_size: int) -> FloatImage:
    r"""Separable Gaussian filter with weights proportional to :math:`e^{-d^2/2\sigma^2}`.

    The offset d ranges from :math:`-r` to r for a kernel of size :math:`2r + 1`. Borders are
    reflected without repeating the outermost row or column.

    Args:
      image: As for :func:`adjust_brightness`. So are result and errors.
      sigma: Standard deviation :math:`\sigma \ge 0` in pixels; 0 returns the image.
      kernel_size: The odd :math:`2r + 1`, with r less than height and width; static.

    References:
      torchvision, ``gaussian_blur``; OpenCV, ``GaussianBlur`` with ``BORDER_REFLECT_101``.
    """
    FACTOR.check("sigma", sigma)
    x = to_planes(image)
    check_kernel_size("kernel_size", kernel_size, min(x.shape[-2:]))
    radius = kernel_size // 2
    offset = jnp.arange(-radius, radius + 1, dtype=x.dtype)
    weights = jnp.exp(-0.5 * (offset / jnp.maximum(jnp.asarray(sigma, x.dtype), _MIN_SIGMA)) ** 2)
    weights = weights / jnp.sum(weights)
    for axis in (x.ndim - 2, x.ndim - 1):
        x = _filter(x, weights, axis)
    return to_image(x)


def random_blur(
    key: Key[Array, ""],
    image: Image,
    kernel_size: int,
    *,
    sigma: Pair = (0.1, 2.0),
    rate: Probability = 0.5,
) -> FloatImage:
    """Applies :func:`gaussian_blur` with probability ``rate`` and a uniform sigma.

    Args:
      key, image, rate: As for :func:`color_jitter`.
      kernel_size: Odd, at least 1; static.
      sigma: Range of sigma, in pixels.
    """
    check_pair("sigma", sigma, FACTOR)
    PROBABILITY.check("rate", rate)
    uniform = jax.random.uniform(key, (BLUR_DRAWS,), jnp.float32)
    return gaussian_blur(image, sample_or_zero(uniform, sigma, rate), kernel_size)


def check_kernel_size(name: str, kernel_size: int, side: int) -> None:
    """Raises ``ValueError`` unless a kernel fits images of this side."""
    check_count(name, kernel_size)
    if kernel_size % 2 == 0:
        raise ValueError(f"`{name}` must be odd, got {kernel_size}.")
    if kernel_size // 2 >= side:
        raise ValueError(
            f"`{name}` must be less than {2 * side} for a side of {side} pixels, got {kernel_size}."
        )


def _filter(x: Planes, weights: Float[Array, "kernel"], axis: int) -> Planes:
    """Weighted sum of shifted images: XLA's CPU backend is slow at a convolution per image.

    The barriers materialize their operands: otherwise the compiler recomputes the reflected indices
    for every shift, and the first sum for every shift of the second.
    """
    n, radius = x.shape[axis], weights.shape[0] // 2
    edges = [(0, 0)] * x.ndim
    edges[axis] = (radius, radius)
    padded = jax.lax.optimization_barrier(jnp.pad(x, edges, mode="reflect"))
    shifts = (jax.lax.slice_in_dim(padded, d, d + n, axis=axis) for d in range(weights.shape[0]))
    return jax.lax.optimization_barrier(sum(w * part for w, part in zip(weights, shifts)))
