"""Image types, conversion to floats and channel planes, and checks of arguments."""

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Key, UInt8

from .._floats import at_least_float32
from .._hyperparams import Range, Scalar

Image: TypeAlias = (
    Float[Array | np.ndarray, "*batch height width channels"]
    | UInt8[Array | np.ndarray, "*batch height width channels"]
)
"""Floats in [0, 1], or uint8."""

FloatImage: TypeAlias = Float[Array, "*batch height width channels"]
"""Floats in [0, 1], at least float32."""

Planes: TypeAlias = Float[Array, "*batch channels height width"]
"""Image with channels first: contiguous rows of one channel vectorize well."""

Pair: TypeAlias = tuple[Any, Any] | Float[Array | np.ndarray, "2"]
"""Lower and upper end of a distribution."""

Channels: TypeAlias = Any
"""One number, or one per channel."""

PROBABILITY = Range(0, 1)
Probability: TypeAlias = Annotated[Scalar, PROBABILITY]

FACTOR = Range(0, high_open=True)
Factor: TypeAlias = Annotated[Scalar, FACTOR]

POSITIVE = Range(0, low_open=True, high_open=True)


def check_axes(image: Any) -> None:
    """Raises ``ValueError`` unless an image has three axes or more."""
    if image.ndim < 3:
        raise ValueError(
            f"`image` must have the axes [..., height, width, channels], got shape {image.shape}."
        )


def to_floats(image: Any) -> Array:
    """Converts an image to floats in [0, 1], at least float32; refuses other arrays."""
    check_axes(image)
    if image.dtype == np.uint8:
        return jnp.asarray(image).astype(jnp.float32) / 255
    if not jnp.issubdtype(image.dtype, jnp.floating):
        raise ValueError(f"`image` must hold floats in [0, 1] or uint8, got {image.dtype}.")
    return at_least_float32(image)[0]


def to_planes(image: Any) -> Planes:
    """Converts to floats with channels first; compilers remove it after :func:`to_image`."""
    return jnp.moveaxis(to_floats(image), -1, -3)


def to_color_planes(image: Any) -> Planes:
    """Converts a grayscale or RGB image to floats with channels first."""
    planes = to_planes(image)
    if planes.shape[-3] not in (1, 3):
        raise ValueError(f"`image` must have 1 or 3 channels, got {planes.shape[-3]}.")
    return planes


def to_image(planes: Planes) -> FloatImage:
    """Moves the channels last."""
    return jnp.moveaxis(planes, -3, -1)


def check_pair(name: str, pair: Any, range: Range) -> None:
    """Raises ``ValueError`` unless a pair is ordered and in range; traced values pass."""
    if not hasattr(pair, "__len__") or len(pair) != 2:
        raise ValueError(f"`{name}` must be a pair (low, high), got {pair}.")
    for number in pair:
        range.check(name, number)
    if not any(isinstance(x, Tracer) for x in pair):
        low, high = (np.asarray(x) for x in pair)
        if np.any(low > high):
            raise ValueError(f"`{name}` must be a pair (low, high), got {tuple(pair)}.")


def as_array(numbers: Any, dtype: Any = jnp.float32) -> Array:
    """Stacks a tuple of numbers, some of which may be traced, into one array."""
    if isinstance(numbers, (tuple, list)):
        return jnp.stack([jnp.asarray(number, dtype) for number in numbers])
    return jnp.asarray(numbers, dtype)


def as_channels(
    name: str, numbers: Channels, image: Float[Array, "*batch height width channels"]
) -> Float[Array, "*batch height width channels"]:
    """Broadcasts one number, or one per channel, to the shape and dtype of an image."""
    values = as_array(numbers, image.dtype)
    if values.shape not in ((), image.shape[-1:]):
        raise ValueError(
            f"`{name}` must be one number or one for each of the {image.shape[-1]} channels, "
            f"got shape {values.shape}."
        )
    return jnp.broadcast_to(values, image.shape)


def bernoulli(uniform: Float[Array, ""], rate: Any) -> Bool[Array, ""]:
    """Whether an event of probability ``rate`` occurs, from a uniform random number."""
    return uniform < jnp.asarray(rate, jnp.float32)


def sample_or_zero(uniform: Float[Array, "2"], ends: Pair, rate: Any) -> Float[Array, ""]:
    """Uniform number between two ends with probability ``rate``, else 0, from random numbers."""
    low, high = as_array(ends)
    return jnp.where(bernoulli(uniform[1], rate), low + uniform[0] * (high - low), 0)


def apply_at_random(
    key: Key[Array, ""], function: Callable[[Any], Array], image: Any, rate: Any
) -> Array:
    """Applies a function of images with probability ``rate``."""
    PROBABILITY.check("rate", rate)
    uniform = jax.random.uniform(key, (), jnp.float32)
    return jnp.where(bernoulli(uniform, rate), function(image), to_floats(image))
