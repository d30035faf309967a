"""Images as floats, channel by channel, and the checks of the numbers that change them."""

from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt8

from .._checks import check_range
from .._floats import at_least_float32

Image: TypeAlias = (
    Float[Array | np.ndarray, "*batch height width channels"]
    | UInt8[Array | np.ndarray, "*batch height width channels"]
)
"""Floats in [0, 1], or whole numbers from 0 to 255."""

FloatImage: TypeAlias = Float[Array, "*batch height width channels"]
"""Floats in [0, 1], at least float32."""

Planes: TypeAlias = Float[Array, "*batch channels height width"]
"""The same with the channels first: long rows of equal things, which processors like."""

Pair: TypeAlias = tuple[Any, Any] | Float[Array | np.ndarray, "2"]
"""The least and the greatest of what is drawn."""


def to_floats(image: Any) -> Array:
    """The image in [0, 1], at least float32.

    Raises:
      ValueError: If it has fewer than three axes, or holds neither floats nor uint8.
    """
    if image.ndim < 3:
        raise ValueError(
            f"`image` must have the axes [..., height, width, channels], got shape {image.shape}."
        )
    if image.dtype == np.uint8:
        return jnp.asarray(image).astype(jnp.float32) / 255
    if not jnp.issubdtype(image.dtype, jnp.floating):
        raise ValueError(f"`image` must hold floats in [0, 1] or uint8, got {image.dtype}.")
    return at_least_float32(image)[0]


def to_planes(image: Any) -> Planes:
    """The image in floats with its channels first.

    Between two functions of this package the compiler takes this and :func:`to_image` out.
    """
    return jnp.moveaxis(to_floats(image), -1, -3)


def to_color_planes(image: Any) -> Planes:
    """The same of an image whose colours mean something.

    Raises:
      ValueError: If it has neither 1 nor 3 channels.
    """
    planes = to_planes(image)
    if planes.shape[-3] not in (1, 3):
        raise ValueError(f"`image` must have 1 or 3 channels, got {planes.shape[-3]}.")
    return planes


def to_image(planes: Planes) -> FloatImage:
    """Back to channels last."""
    return jnp.moveaxis(planes, -3, -1)


def check_pair(name: str, pair: Any, low: float, high: float, *, low_open: bool = False) -> None:
    """Raises ``ValueError`` unless a pair is in order and in its range, as far as it is known."""
    if not is_several(pair):
        return
    if len(pair) != 2:
        raise ValueError(f"`{name}` must be the least and the greatest, got {pair}.")
    for number in pair:
        check_range(name, number, low, high, low_open=low_open, high_open=True)
    least, greatest = pair
    known = all(isinstance(number, (int, float, np.number)) for number in (least, greatest))
    if known and least > greatest:
        raise ValueError(f"`{name}` must be the least and the greatest, got {tuple(pair)}.")


def is_several(numbers: Any) -> bool:
    """Whether these are numbers, and not what stands in for them; see :func:`check_range`."""
    return isinstance(numbers, (tuple, list, np.ndarray, Array))


def as_numbers(numbers: Any, dtype: Any = jnp.float32) -> Array:
    """A tuple of numbers, traced or not, as one array."""
    if isinstance(numbers, (tuple, list)):
        return jnp.stack([jnp.asarray(number, dtype) for number in numbers])
    return jnp.asarray(numbers, dtype)


def chosen(uniform: Float[Array, ""], rate: Any) -> Bool[Array, ""]:
    """Whether what happens with probability ``rate`` happens."""
    return uniform < jnp.asarray(rate, jnp.float32)
