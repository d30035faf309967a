"""Gaussian noise."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from ._images import (
    FACTOR,
    PROBABILITY,
    Factor,
    FloatImage,
    Image,
    Pair,
    Probability,
    check_pair,
    sample_or_zero,
    to_floats,
)


def gaussian_noise(key: Key[Array, ""], image: Image, std: Factor) -> FloatImage:
    r"""Adds independent noise to each value: :math:`\operatorname{clip}(x + \sigma z, 0, 1)`.

    Args:
      key: Random key. Images along leading axes have different noise.
      image: As for :func:`adjust_brightness`. So are result and errors.
      std: Standard deviation :math:`\sigma \ge 0` of the noise; 0 returns the image.
    """
    FACTOR.check("std", std)
    x = to_floats(image)
    return jnp.clip(x + jnp.asarray(std, x.dtype) * jax.random.normal(key, x.shape, x.dtype), 0, 1)


def random_noise(
    key: Key[Array, ""], image: Image, *, std: Pair = (0.0, 0.1), rate: Probability = 0.5
) -> FloatImage:
    """Applies :func:`gaussian_noise` with probability ``rate`` and a uniform deviation.

    Args:
      key, image, rate: As for :func:`color_jitter`. The noise of images along leading axes differs;
        its deviation does not.
      std: Range of the standard deviation of the noise.
    """
    check_pair("std", std, FACTOR)
    PROBABILITY.check("rate", rate)
    key, noise_key = jax.random.split(key)
    uniform = jax.random.uniform(key, (2,), jnp.float32)
    return gaussian_noise(noise_key, image, sample_or_zero(uniform, std, rate))
