"""Crops with resizing, and horizontal flips."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Key

from .._checks import check_count
from ._images import (
    POSITIVE,
    FloatImage,
    Image,
    Pair,
    Probability,
    apply_at_random,
    as_array,
    check_pair,
    to_floats,
)

_ATTEMPTS = 10

BOX_DRAWS = 2 * _ATTEMPTS + 2
"""Number of uniform random numbers that :func:`sample_box` uses."""


def crop_resize(
    image: Image,
    box: Int[Array | np.ndarray, "4"],
    size: int | tuple[int, int],
    *,
    flipped: bool | np.bool_ | Bool[Array, ""] = False,
) -> Float[Array, "..."]:
    r"""Crops a box and resizes it by linear interpolation with antialiasing.

    When a side of n pixels is resized to m, pixel i is centred at :math:`(i + ½)\,n/m`. The weight
    of pixel j of the box, centred at :math:`j + ½`, is proportional to
    :math:`\max(0, 1 - |j + ½ - (i + ½)\,n/m| / \max(n/m, 1)))`: the kernel widens when downscaling,
    so that every pixel contributes. Pixels outside the box have weight 0.

    Args:
      image: As for :func:`adjust_brightness`.
      box: Top, left, height and width in pixels, inside the image; may be traced.
      size: Height and width of the result, or one number for both; static.
      flipped: Whether the result is flipped horizontally, at no cost; may be traced.

    Returns:
      Floats in [0, 1], ``[..., *size, channels]``.

    Raises:
      ValueError: If the box is not inside the image, or ``image`` is invalid.

    References:
      Pillow, ``Image.crop`` and ``Image.resize`` with ``BILINEAR``; torchvision,
      ``resized_crop`` with ``antialias=True``.
    """
    x = to_floats(image)
    *batch, height, width, channels = x.shape
    out = (size, size) if isinstance(size, (int, np.integer)) else size
    for side in out:
        check_count("size", side)
    _check_box(box, height, width)
    top, left, box_height, box_width = box
    # One product per axis with the matrix of the weights, which suits accelerators.
    rows = _resize_weights(top, box_height, height, out[0], False, x.dtype)
    columns = _resize_weights(left, box_width, width, out[1], flipped, x.dtype)
    precision = jax.lax.Precision.HIGHEST  # accelerators would round values to half precision
    # Columns first, with channels next to rows: two plain products without a transposition between.
    x = jnp.swapaxes(x, -1, -2).reshape(*batch, height * channels, width)
    x = jnp.matmul(x, columns.T, precision=precision).reshape(*batch, height, channels * out[1])
    x = jnp.matmul(rows, x, precision=precision).reshape(*batch, out[0], channels, out[1])
    return jnp.swapaxes(x, -1, -2)


def flip(image: Image) -> FloatImage:
    """Flips horizontally; shapes, range and errors as for :func:`adjust_brightness`."""
    return to_floats(image)[..., ::-1, :]


def random_flip(key: Key[Array, ""], image: Image, *, rate: Probability = 0.5) -> FloatImage:
    """Applies :func:`flip` at random.

    Args:
      rate: Probability of the flip, in [0, 1].

    Other arguments and the result are those of :func:`color_jitter`.
    """
    return apply_at_random(key, flip, image, rate)


def random_crop_box(
    key: Key[Array, ""],
    height: int,
    width: int,
    *,
    scale: Pair = (0.08, 1.0),
    ratio: Pair = (3 / 4, 4 / 3),
) -> Int[Array, "4"]:
    """Samples a box of random area and aspect ratio.

    The box's share of the image's area is uniform in ``scale``, and the logarithm of its aspect
    ratio is uniform in that of ``ratio``; its sides are rounded. The first of ten such boxes that
    fits into the image is placed uniformly. If none fits, the result is the largest centred box
    whose aspect ratio is in ``ratio``.

    Args:
      key: Random key.
      height, width: Size of the image; static.
      scale: Range of the share of the area, above 0.
      ratio: Range of width over height, above 0.

    Returns:
      Top, left, height and width, int32.

    Raises:
      ValueError: If an argument is out of range.

    References:
      Szegedy et al., `Going Deeper with Convolutions <https://arxiv.org/abs/1409.4842>`_, 2015,
      section 6; torchvision, ``RandomResizedCrop``.
    """
    check_count("height", height)
    check_count("width", width)
    check_pair("scale", scale, POSITIVE)
    check_pair("ratio", ratio, POSITIVE)
    uniform = jax.random.uniform(key, (BOX_DRAWS,), jnp.float32)
    return sample_box(uniform, height, width, scale, ratio)


def sample_box(
    uniform: Float[Array, "22"], height: int, width: int, scale: Pair, ratio: Pair
) -> Int[Array, "4"]:
    """Computes :func:`random_crop_box` from uniform random numbers."""
    scale, ratio = as_array(scale), as_array(ratio)
    area = height * width * _interpolate(scale, uniform[:_ATTEMPTS])
    aspect = jnp.exp(_interpolate(jnp.log(ratio), uniform[_ATTEMPTS:-2]))
    sides = jnp.round(jnp.sqrt(jnp.stack([area / aspect, area * aspect])))
    limits = jnp.asarray([height, width], jnp.float32)
    fits = jnp.all((sides > 0) & (sides <= limits[:, None]), axis=0)
    sampled = sides[:, jnp.argmax(fits)]
    corner = jnp.floor(uniform[-2:] * (limits - sampled + 1))

    aspect = jnp.clip(width / height, ratio[0], ratio[1])
    fallback = jnp.minimum(jnp.round(jnp.stack([width / aspect, height * aspect])), limits)
    fallback = jnp.maximum(fallback, 1)
    centred = jnp.floor((limits - fallback) / 2)

    box = jnp.where(jnp.any(fits), jnp.stack([corner, sampled]), jnp.stack([centred, fallback]))
    return box.ravel().astype(jnp.int32)


def _interpolate(ends: Float[Array, "2"], uniform: Float[Array, "n"]) -> Float[Array, "n"]:
    return ends[0] + uniform * (ends[1] - ends[0])


def _resize_weights(
    start: Any, length: Any, n: int, out: int, flipped: Any, dtype: Any
) -> Float[Array, "out n"]:
    """Weights of the ``n`` input pixels in each output pixel along one axis."""
    start, length = (jnp.asarray(x).astype(dtype) for x in (start, length))
    step = length / out
    i = jnp.arange(out, dtype=dtype)
    i = jnp.where(flipped, out - 1 - i, i)
    centre = ((i + 0.5) * step)[:, None]
    pixel = (jnp.arange(n, dtype=dtype) - start + 0.5)[None, :]
    weight = jnp.maximum(1 - jnp.abs(pixel - centre) / jnp.maximum(step, 1), 0)
    weight = jnp.where((pixel > 0) & (pixel < length), weight, 0)
    return weight / jnp.sum(weight, axis=1, keepdims=True)


def _check_box(box: Any, height: int, width: int) -> None:
    if box.shape != (4,):
        raise ValueError(f"`box` must be [top, left, height, width], got shape {box.shape}.")
    if isinstance(box, Tracer):
        return
    top, left, box_height, box_width = (int(x) for x in np.asarray(box))
    inside = 0 <= top < top + box_height <= height and 0 <= left < left + box_width <= width
    if not inside:
        raise ValueError(
            f"`box` must lie inside the image of {height} by {width} pixels, got top {top}, "
            f"left {left}, height {box_height}, width {box_width}."
        )
