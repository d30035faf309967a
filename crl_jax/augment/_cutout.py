"""Cutout: a square of an image is replaced by a constant."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from ._images import (
    PROBABILITY,
    Channels,
    FloatImage,
    Image,
    Probability,
    as_channels,
    bernoulli,
    to_floats,
)


def cutout(image: Image, box: Int[Array | np.ndarray, "4"], *, fill: Channels = 0.0) -> FloatImage:
    """Replaces the pixels of a box by a constant.

    Args:
      image: As for :func:`adjust_brightness`. So are result and errors.
      box: Top, left, height and width in pixels; may be traced. Parts outside the image have no
        effect, and neither has a box of height or width 0 or less.
      fill: Value of the box, in [0, 1]; one number, or one per channel.

    References:
      DeVries and Taylor, `Improved Regularization of Convolutional Neural Networks with Cutout
      <https://arxiv.org/abs/1708.04552>`_, 2017.
    """
    x = to_floats(image)
    if box.shape != (4,):
        raise ValueError(f"`box` must be [top, left, height, width], got shape {box.shape}.")
    height, width = x.shape[-3:-1]
    top, left, box_height, box_width = box
    row, column = jnp.arange(height), jnp.arange(width)
    in_rows = (row >= top) & (row < top + box_height)
    in_columns = (column >= left) & (column < left + box_width)
    inside = in_rows[:, None, None] & in_columns[None, :, None]
    return jnp.where(jnp.broadcast_to(inside, x.shape), as_channels("fill", fill, x), x)


def random_cutout(
    key: Key[Array, ""],
    image: Image,
    *,
    size: Probability = 0.5,
    rate: Probability = 0.5,
    fill: Channels = 0.0,
) -> FloatImage:
    """Applies :func:`cutout` with probability ``rate``, to a square with a uniform centre.

    The centre is any pixel with equal probability, so that the square may extend over the border.

    Args:
      key, image, rate: As for :func:`color_jitter`.
      size: Side of the square relative to the shorter side of the image, in [0, 1]; the published
        side for CIFAR-10 is 16 of 32 pixels.
      fill: As for :func:`cutout`.
    """
    PROBABILITY.check("size", size)
    PROBABILITY.check("rate", rate)
    x = to_floats(image)
    height, width = x.shape[-3:-1]
    uniform = jax.random.uniform(key, (3,), jnp.float32)
    side = jnp.round(jnp.asarray(size, jnp.float32) * min(height, width))
    side = jnp.where(bernoulli(uniform[2], rate), side, 0).astype(jnp.int32)
    centre = jnp.floor(uniform[:2] * jnp.array([height, width], jnp.float32)).astype(jnp.int32)
    box = jnp.concatenate([centre - side // 2, jnp.stack([side, side])])
    return cutout(x, box, fill=fill)
