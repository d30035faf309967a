"""Brightness, contrast, saturation, hue and grayscale, with given or random strengths."""

from itertools import permutations
from typing import Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Key

from .._hyperparams import Range, Scalar
from ._images import (
    FACTOR,
    PROBABILITY,
    Factor,
    FloatImage,
    Image,
    Planes,
    Probability,
    apply_at_random,
    as_array,
    bernoulli,
    to_color_planes,
    to_floats,
    to_image,
)

Strengths: TypeAlias = tuple[Any, Any, Any, Any] | Float[Array | np.ndarray, "4"]
"""Strengths of brightness, contrast, saturation and hue."""

JITTER_DRAWS = 6
"""Number of uniform random numbers that :func:`apply_jitter` uses."""

_LUMA = (0.299, 0.587, 0.114)
_SHIFT = Range(-0.5, 0.5)
_STRENGTHS = (FACTOR, FACTOR, FACTOR, Range(0, 0.5))
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
_ORDERS = np.array(list(permutations(range(4))))
# All changes but the hue are blends: the blends of each order, and their number before the hue.
_BLENDS = np.array([[change for change in order if change != _HUE] for order in _ORDERS])
_BEFORE_HUE = np.argmax(_ORDERS == _HUE, axis=1)


def adjust_brightness(image: Image, factor: Factor) -> FloatImage:
    r"""Scales all values: :math:`\operatorname{clip}(f x, 0, 1)`.

    Args:
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8.
      factor: The :math:`f \ge 0`; 0 gives black, 1 the image.

    Returns:
      Floats in [0, 1], the shape of ``image``.

    Raises:
      ValueError: If ``factor`` is negative, or ``image`` is invalid.

    References:
      Pillow, ``ImageEnhance.Brightness``.
    """
    FACTOR.check("factor", factor)
    x = to_floats(image)
    return jnp.clip(jnp.asarray(factor, x.dtype) * x, 0, 1)


def adjust_contrast(image: Image, factor: Factor) -> FloatImage:
    r"""Blends with the mean luma m: :math:`\operatorname{clip}(f x + (1-f) m, 0, 1)`.

    Args:
      image: As for :func:`adjust_brightness`, with 1 or 3 channels. So are result and errors.
      factor: The :math:`f \ge 0`; 0 gives a uniform gray, 1 the image.

    References:
      Pillow, ``ImageEnhance.Contrast``, which rounds m to 8 bits.
    """
    FACTOR.check("factor", factor)
    x = to_color_planes(image)
    return to_image(_blend(x, mean_luma(x), factor))


def adjust_saturation(image: Image, factor: Factor) -> FloatImage:
    r"""Blends with each pixel's luma y: :math:`\operatorname{clip}(f x + (1-f) y, 0, 1)`.

    Args:
      image: As for :func:`adjust_contrast`; returned unchanged if it has 1 channel.
      factor: The :math:`f \ge 0`; 0 gives the grayscale image, 1 the image.

    References:
      Pillow, ``ImageEnhance.Color``.
    """
    FACTOR.check("factor", factor)
    x = to_color_planes(image)
    return to_image(x if x.shape[-3] == 1 else _blend(x, luma(x), factor))


def adjust_hue(image: Image, shift: Annotated[Scalar, _SHIFT]) -> FloatImage:
    r"""Rotates the hue: h becomes :math:`(h + \delta) \bmod 1` in HSV.

    With the value v of a pixel, its chroma c and its hue h, channel :math:`n = 5, 3, 1` becomes
    :math:`v - c \min(\max(\min(k, 4-k), 0), 1)` for :math:`k = (n + 6h + 6\delta) \bmod 6`.

    Args:
      image: As for :func:`adjust_saturation`.
      shift: The :math:`\delta` in [-0.5, 0.5], in full rotations; 0 gives the image.

    References:
      Smith, Color Gamut Transform Pairs, SIGGRAPH 1978; Python, ``colorsys``.
    """
    _SHIFT.check("shift", shift)
    x = to_color_planes(image)
    return to_image(_shift_hue(x, jnp.asarray(shift, x.dtype)))


def to_grayscale(image: Image) -> FloatImage:
    """Replaces all channels by the luma 0.299 r + 0.587 g + 0.114 b of ITU-R BT.601.

    Args:
      image: As for :func:`adjust_saturation`.

    References:
      ITU-R BT.601; Pillow, ``Image.convert("L")``.
    """
    x = to_color_planes(image)
    return to_image(jnp.broadcast_to(luma(x), x.shape))


def color_jitter(
    key: Key[Array, ""], image: Image, strengths: Strengths, *, rate: Probability = 1.0
) -> FloatImage:
    r"""Changes brightness, contrast, saturation and hue at random, in a random order.

    All 24 orders are equally likely. The factors of brightness, contrast and saturation are uniform
    in :math:`[\max(0, 1-s), 1+s]`, the shift of the hue is uniform in :math:`[-s, s]`.

    Args:
      key: Random key.
      image: As for :func:`adjust_contrast`. Images along leading axes share the random numbers.
      strengths: The s of brightness, contrast, saturation (each :math:`\ge 0`) and hue (in
        [0, 0.5]).
      rate: Probability that the image is changed, in [0, 1].

    References:
      torchvision, ``ColorJitter``; Chen et al., `A Simple Framework for Contrastive Learning of
      Visual Representations <https://arxiv.org/abs/2002.05709>`_, 2020, appendix A.
    """
    check_strengths("strengths", strengths)
    PROBABILITY.check("rate", rate)
    x = to_color_planes(image)
    uniform = jax.random.uniform(key, (JITTER_DRAWS,), jnp.float32)
    return to_image(apply_jitter(uniform, x, strengths, rate))


def random_grayscale(key: Key[Array, ""], image: Image, *, rate: Probability = 0.2) -> FloatImage:
    """Applies :func:`to_grayscale` at random.

    Args:
      rate: Probability of the conversion, in [0, 1].

    Other arguments and the result are those of :func:`color_jitter`.
    """
    return apply_at_random(key, to_grayscale, image, rate)


def luma(x: Planes) -> Float[Array, "*batch 1 height width"]:
    """Luma of each pixel."""
    if x.shape[-3] == 1:
        return x
    r, g, b = (x[..., c : c + 1, :, :] for c in range(3))
    return _LUMA[0] * r + _LUMA[1] * g + _LUMA[2] * b


def mean_luma(x: Planes) -> Float[Array, "*batch 1 1 1"]:
    """Mean luma of each image."""
    return luma(jnp.mean(x, axis=(-2, -1), keepdims=True))


def apply_jitter(uniform: Float[Array, "6"], x: Planes, strengths: Strengths, rate: Any) -> Planes:
    """Applies :func:`color_jitter` with uniform random numbers."""
    order = jnp.floor(uniform[0] * len(_ORDERS)).astype(jnp.int32)
    s = as_array(strengths)
    low = jnp.maximum(1 - s[:3], 0)
    factors = low + uniform[1:4] * (1 + s[:3] - low)
    shift = s[3] * (2 * uniform[4] - 1)
    changed = bernoulli(uniform[5], rate)
    factors, shift = jnp.where(changed, factors, 1), jnp.where(changed, shift, 0)
    return _apply_in_order(x, factors.astype(x.dtype), shift.astype(x.dtype), order)


def check_strengths(name: str, strengths: Any) -> None:
    """Raises ``ValueError`` unless these are four strengths in range; traced values pass."""
    if len(strengths) != 4:
        raise ValueError(
            f"`{name}` must be the four strengths of brightness, contrast, saturation and hue, "
            f"got {len(strengths)}."
        )
    if not isinstance(strengths, Tracer):
        for strength, allowed in zip(strengths, _STRENGTHS, strict=True):
            allowed.check(name, strength)


def _apply_in_order(
    x: Planes, factors: Float[Array, "3"], shift: Float[Array, ""], order: Int[Array, ""]
) -> Planes:
    """Applies the four changes in an order.

    Under ``vmap`` the order differs between images, so that a switch would compute all orders. The
    blends :math:`f x + (1-f) t` differ only in t: black, the mean luma, each pixel's luma. Hence
    the hue, the most expensive, is shifted once, between two loops over all three blends; a blend
    that is not due has factor 1.
    """
    if x.shape[-3] == 1:
        factors = factors.at[_SATURATION].set(1)
    blends = jnp.tile(jnp.asarray(_BLENDS)[order], 2)
    position = np.arange(6)
    due = (position < 3) == (position % 3 < jnp.asarray(_BEFORE_HUE)[order])
    factor = jnp.where(due, factors[blends], 1)
    mean_weight = jnp.where(blends == _CONTRAST, 1 - factor, 0)
    luma_weight = jnp.where(blends == _SATURATION, 1 - factor, 0)
    weights = jnp.stack([factor, mean_weight, luma_weight], axis=1)

    # A loop compiles its body once. Unrolled, the compiler would recompute a pixel's luma, and all
    # that it depends on, for every channel that uses it.
    def blend(x: Planes, w: Array) -> tuple[Planes, None]:
        return jnp.clip(w[0] * x + w[1] * mean_luma(x) + w[2] * luma(x), 0, 1), None

    x, _ = jax.lax.scan(blend, x, weights[:3])
    x = _shift_hue(x, shift)
    return jax.lax.scan(blend, x, weights[3:])[0]


def _shift_hue(x: Planes, shift: Float[Array, ""]) -> Planes:
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
    shifted = value - chroma * jnp.clip(jnp.minimum(k, 4 - k), 0, 1)
    return jnp.where(shift == 0, x, shifted)


def _blend(x: Planes, other: Array, factor: Scalar) -> Planes:
    factor = jnp.asarray(factor, x.dtype)
    return jnp.clip(factor * x + (1 - factor) * other, 0, 1)
