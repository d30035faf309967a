"""Rotation."""

from typing import Annotated, TypeAlias

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates
from jaxtyping import Array, Key

from .._hyperparams import Range, Scalar
from ._images import (
    PROBABILITY,
    Channels,
    FloatImage,
    Image,
    Pair,
    Probability,
    as_channels,
    check_pair,
    sample_or_zero,
    to_floats,
)

ANGLE = Range(-360, 360)
_Degrees: TypeAlias = Annotated[Scalar, ANGLE]


def rotate(image: Image, degrees: _Degrees, *, fill: Channels = 0.0) -> FloatImage:
    r"""Rotates about the centre, counterclockwise, by linear interpolation between pixels.

    With offsets :math:`(y, x)` from the centre, y downwards, the result at :math:`(y, x)` is the
    image at :math:`(y\cos\theta + x\sin\theta,\; x\cos\theta - y\sin\theta)`, interpolated between
    the four pixels around it. Pixels outside the image have the value ``fill``.

    Args:
      image: As for :func:`adjust_brightness`. So are result and errors.
      degrees: The angle :math:`\theta` in [-360, 360]; 0 returns the image. May be traced.
      fill: Value outside the image, in [0, 1]; one number, or one per channel.

    References:
      SciPy, ``ndimage.rotate`` with ``order=1``, ``mode="grid-constant"`` and ``reshape=False``;
      torchvision, ``rotate`` with ``BILINEAR``.
    """
    ANGLE.check("degrees", degrees)
    x = to_floats(image)
    height, width, n_channels = x.shape[-3:]
    fill = as_channels("fill", fill, x)
    angle = jnp.asarray(degrees, x.dtype) * (jnp.pi / 180)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    middle = (height - 1) / 2, (width - 1) / 2
    down = jnp.arange(height, dtype=x.dtype)[:, None] - middle[0]
    right = jnp.arange(width, dtype=x.dtype)[None, :] - middle[1]
    source = [
        down * cos + right * sin + middle[0],
        right * cos - down * sin + middle[1],
    ]

    def rotate_plane(plane: Array) -> Array:
        return map_coordinates(plane, source, order=1, mode="constant", cval=0.0)

    images = x.reshape(-1, height, width, n_channels)
    rotated = jax.vmap(jax.vmap(rotate_plane, 2, 2))(images).reshape(x.shape)
    covered = rotate_plane(jnp.ones((height, width), x.dtype))[..., None]
    return rotated + fill * (1 - jnp.broadcast_to(covered, x.shape))


def random_rotation(
    key: Key[Array, ""],
    image: Image,
    *,
    degrees: Pair = (-30.0, 30.0),
    rate: Probability = 0.5,
    fill: Channels = 0.0,
) -> FloatImage:
    """Applies :func:`rotate` with probability ``rate`` and a uniform angle.

    Args:
      key, image, rate: As for :func:`color_jitter`.
      degrees: Range of the angle, in degrees.
      fill: As for :func:`rotate`.
    """
    check_pair("degrees", degrees, ANGLE)
    PROBABILITY.check("rate", rate)
    uniform = jax.random.uniform(key, (2,), jnp.float32)
    return rotate(image, sample_or_zero(uniform, degrees, rate), fill=fill)
