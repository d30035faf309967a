"""Crops brought to a size, and mirror images."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Key

from .._checks import check_count, check_range
from .._hyperparams import Scalar
from ._conversion import FloatImage, Image, Pair, as_numbers, check_pair, chosen, to_floats

_TRIES = 10

BOX_DRAWS = 2 * _TRIES + 2
"""Numbers that :func:`drawn_box` takes."""


def crop_resize(
    image: Image,
    box: Int[Array | np.ndarray, "4"],
    size: int | tuple[int, int],
    *,
    flipped: bool | np.bool_ | Bool[Array, ""] = False,
) -> Float[Array, "..."]:
    r"""Cuts a box out and brings it to a size, by linear interpolation along both axes.

    A side of n pixels becomes one of m. Pixel i lies at :math:`(i + ½)\,n/m`, and takes of pixel
    j of the box, at :math:`j + ½`, a share in proportion to
    :math:`\max(0, 1 - |j + ½ - (i + ½)\,n/m| / \max(n/m, 1)))`: wider where pixels get fewer, so
    that none is passed over. What lies outside the box is not seen.

    Each axis is one product with a matrix of these shares, which accelerators do best.

    Args:
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8.
      box: Top, left, height and width in pixels, inside the image; may be traced.
      size: Height and width of the result, or one number for both; static.
      flipped: Whether left and right change places; costs nothing, and may be traced.

    Returns:
      Floats in [0, 1], ``[..., *size, channels]``.

    Raises:
      ValueError: If the box is not inside the image, or ``image`` is none.

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
    rows = _shares(top, box_height, height, out[0], False, x.dtype)
    columns = _shares(left, box_width, width, out[1], flipped, x.dtype)
    exact = jax.lax.Precision.HIGHEST  # accelerators would round values to half precision
    # Columns first, channels beside rows: two plain products without a change of layout between.
    x = jnp.swapaxes(x, -1, -2).reshape(*batch, height * channels, width)
    x = jnp.matmul(x, columns.T, precision=exact).reshape(*batch, height, channels * out[1])
    x = jnp.matmul(rows, x, precision=exact).reshape(*batch, out[0], channels, out[1])
    return jnp.swapaxes(x, -1, -2)


def flip(image: Image) -> FloatImage:
    """Left and right change places.

    Args:
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8.

    Returns:
      Floats in [0, 1], the shape of ``image``.

    Raises:
      ValueError: If ``image`` is none.
    """
    return to_floats(image)[..., ::-1, :]


def random_flip(key: Key[Array, ""], image: Image, *, rate: Scalar = 0.5) -> FloatImage:
    """Left and right change places with probability ``rate``.

    Args:
      key: Decides.
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8. One decision for all
        images along leading axes.
      rate: In [0, 1].

    Returns:
      Floats in [0, 1], the shape of ``image``.

    Raises:
      ValueError: If ``rate`` leaves its range, or ``image`` is none.
    """
    check_range("rate", rate, 0, 1)
    uniform = jax.random.uniform(key, (), jnp.float32)
    return jnp.where(chosen(uniform, rate), flip(image), to_floats(image))


def random_crop_box(
    key: Key[Array, ""],
    height: int,
    width: int,
    *,
    scale: Pair = (0.08, 1.0),
    ratio: Pair = (3 / 4, 4 / 3),
) -> Int[Array, "4"]:
    """A box of random area and shape, anywhere in an image.

    Its share of the image's area is uniform in ``scale``, and the logarithm of its width over its
    height uniform in that of ``ratio``. Its sides are rounded. The first of ten such boxes that
    fits into the image is taken, at a uniform place. Does none fit, it is the largest box in the
    middle whose shape is in ``ratio``.

    Args:
      key: Decides.
      height: Of the image; static.
      width: Of the image; static.
      scale: The least and the greatest share, above 0.
      ratio: The least and the greatest width over height, above 0.

    Returns:
      Top, left, height and width, int32.

    Raises:
      ValueError: If a number leaves its range.

    References:
      Szegedy et al., `Going Deeper with Convolutions <https://arxiv.org/abs/1409.4842>`_, 2015,
      section 6; torchvision, ``RandomResizedCrop``.
    """
    check_count("height", height)
    check_count("width", width)
    check_pair("scale", scale, 0, jnp.inf, low_open=True)
    check_pair("ratio", ratio, 0, jnp.inf, low_open=True)
    uniform = jax.random.uniform(key, (BOX_DRAWS,), jnp.float32)
    return drawn_box(uniform, height, width, scale, ratio)


def drawn_box(
    uniform: Float[Array, "22"], height: int, width: int, scale: Pair, ratio: Pair
) -> Int[Array, "4"]:
    """See :func:`random_crop_box`."""
    scale, ratio = as_numbers(scale), as_numbers(ratio)
    area = height * width * _between(scale, uniform[:_TRIES])
    shape = jnp.exp(_between(jnp.log(ratio), uniform[_TRIES:-2]))
    sides = jnp.round(jnp.sqrt(jnp.stack([area / shape, area * shape])))
    within = jnp.asarray([height, width], jnp.float32)
    fits = jnp.all((sides > 0) & (sides <= within[:, None]), axis=0)
    drawn = sides[:, jnp.argmax(fits)]
    place = jnp.floor(uniform[-2:] * (within - drawn + 1))

    shape = jnp.clip(width / height, ratio[0], ratio[1])
    middle = jnp.minimum(jnp.round(jnp.stack([width / shape, height * shape])), within)
    middle = jnp.maximum(middle, 1)
    central = jnp.floor((within - middle) / 2)

    box = jnp.where(jnp.any(fits), jnp.stack([place, drawn]), jnp.stack([central, middle]))
    return box.ravel().astype(jnp.int32)


def _between(ends: Float[Array, "2"], uniform: Float[Array, "n"]) -> Float[Array, "n"]:
    return ends[0] + uniform * (ends[1] - ends[0])


def _shares(
    start: Any, length: Any, n: int, out: int, flipped: Any, dtype: Any
) -> Float[Array, "out n"]:
    """What each pixel of the result takes of each pixel along one axis."""
    start, length = (jnp.asarray(x).astype(dtype) for x in (start, length))
    step = length / out
    i = jnp.arange(out, dtype=dtype)
    i = jnp.where(flipped, out - 1 - i, i)
    centre = ((i + 0.5) * step)[:, None]
    pixel = (jnp.arange(n, dtype=dtype) - start + 0.5)[None, :]
    share = jnp.maximum(1 - jnp.abs(pixel - centre) / jnp.maximum(step, 1), 0)
    share = jnp.where((pixel > 0) & (pixel < length), share, 0)
    return share / jnp.sum(share, axis=1, keepdims=True)


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
