"""Brightness, contrast, saturation and hue by given factors, and grey."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_range
from .._hyperparams import Scalar
from ._conversion import FloatImage, Image, Planes, to_color_planes, to_floats, to_image

LUMA = (0.299, 0.587, 0.114)


def adjust_brightness(image: Image, factor: Scalar) -> FloatImage:
    r"""Scales all values: :math:`\operatorname{clip}(f x, 0, 1)`.

    Args:
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8.
      factor: The :math:`f \ge 0`; 0 gives black, 1 the image.

    Returns:
      Floats in [0, 1], the shape of ``image``.

    Raises:
      ValueError: If ``factor`` is negative, or ``image`` is none.

    References:
      Pillow, ``ImageEnhance.Brightness``.
    """
    _check_factor(factor)
    x = to_floats(image)
    return jnp.clip(jnp.asarray(factor, x.dtype) * x, 0, 1)


def adjust_contrast(image: Image, factor: Scalar) -> FloatImage:
    r"""Moves values from their mean grey m: :math:`\operatorname{clip}(f x + (1-f) m, 0, 1)`.

    Args:
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8; 1 or 3 channels.
      factor: The :math:`f \ge 0`; 0 gives an even grey, 1 the image.

    Returns:
      Floats in [0, 1], the shape of ``image``.

    Raises:
      ValueError: If ``factor`` is negative, or ``image`` is none.

    References:
      Pillow, ``ImageEnhance.ContrastiveAuxiliaryLoss``, which rounds m to 8 bits.
    """
    _check_factor(factor)
    x = to_color_planes(image)
    return to_image(_blend(x, mean_luma(x), factor))


def adjust_saturation(image: Image, factor: Scalar) -> FloatImage:
    r"""Moves each pixel from its own grey y: :math:`\operatorname{clip}(f x + (1-f) y, 0, 1)`.

    Args:
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8; 1 channel stays as it
        is, else 3.
      factor: The :math:`f \ge 0`; 0 gives the image in grey, 1 the image.

    Returns:
      Floats in [0, 1], the shape of ``image``.

    Raises:
      ValueError: If ``factor`` is negative, or ``image`` is none.

    References:
      Pillow, ``ImageEnhance.Color``.
    """
    _check_factor(factor)
    x = to_color_planes(image)
    return to_image(x if x.shape[-3] == 1 else _blend(x, grey(x), factor))


def adjust_hue(image: Image, shift: Scalar) -> FloatImage:
    r"""Turns the circle of colours: h becomes :math:`(h + \delta) \bmod 1` in HSV.

    With the largest value v of a pixel, its range c and its hue h, channel :math:`n = 5, 3, 1`
    becomes :math:`v - c \min(\max(\min(k, 4-k), 0), 1)` for :math:`k = (n + 6h + 6\delta) \bmod 6`.

    Args:
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8; 1 channel stays as it
        is, else 3.
      shift: The :math:`\delta` in [-0.5, 0.5], in turns; 0 gives the image.

    Returns:
      Floats in [0, 1], the shape of ``image``.

    Raises:
      ValueError: If ``shift`` leaves its range, or ``image`` is none.

    References:
      Smith, Color Gamut Transform Pairs, SIGGRAPH 1978; Python, ``colorsys``.
    """
    check_range("shift", shift, -0.5, 0.5)
    x = to_color_planes(image)
    return to_image(shift_hue(x, jnp.asarray(shift, x.dtype)))


def to_grayscale(image: Image) -> FloatImage:
    """The luma 0.299 r + 0.587 g + 0.114 b of ITU-R BT.601, in as many equal channels.

    Args:
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8; 1 channel stays as it
        is, else 3.

    Returns:
      Floats in [0, 1], the shape of ``image``.

    Raises:
      ValueError: If ``image`` has neither 1 nor 3 channels.

    References:
      ITU-R BT.601; Pillow, ``Image.convert("L")``.
    """
    x = to_color_planes(image)
    return to_image(jnp.broadcast_to(grey(x), x.shape))


def grey(x: Planes) -> Float[Array, "*batch 1 height width"]:
    """The luma of the channels."""
    if x.shape[-3] == 1:
        return x
    r, g, b = (x[..., c : c + 1, :, :] for c in range(3))
    return LUMA[0] * r + LUMA[1] * g + LUMA[2] * b


def mean_luma(x: Planes) -> Float[Array, "*batch 1 1 1"]:
    """The mean luma of each image."""
    return grey(jnp.mean(x, axis=(-2, -1), keepdims=True))


def shift_hue(x: Planes, shift: Float[Array, ""]) -> Planes:
    """See :func:`adjust_hue`."""
    if x.shape[-3] == 1:
        return x
    r, g, b = (x[..., c, :, :] for c in range(3))
    value = jnp.maximum(jnp.maximum(r, g), b)
    chroma = value - jnp.minimum(jnp.minimum(r, g), b)
    scale = 1 / jnp.where(chroma > 0, chroma, 1)
    sixths = jnp.where(
        value == r,
        (g - b) * scale,
        jnp.where(value == g, 2 + (b - r) * scale, 4 + (r - g) * scale),
    )
    value, chroma, sixths = (y[..., None, :, :] for y in (value, chroma, sixths))
    n = jnp.asarray([5, 3, 1], x.dtype).reshape(*(1,) * (x.ndim - 3), 3, 1, 1)
    k = n + (sixths + 6 * shift)
    k = k - 6 * jnp.floor(k / 6)
    turned = value - chroma * jnp.clip(jnp.minimum(k, 4 - k), 0, 1)
    return jnp.where(shift == 0, x, turned)


def _blend(x: Planes, other: Array, factor: Scalar) -> Planes:
    factor = jnp.asarray(factor, x.dtype)
    return jnp.clip(factor * x + (1 - factor) * other, 0, 1)


def _check_factor(factor: Scalar) -> None:
    check_range("factor", factor, 0, jnp.inf, high_open=True)
