"""Random and plain views of an image."""

from dataclasses import field
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from .._checks import check_count
from .._pytree import STATIC, pytree_dataclass
from ._blur import BLUR_DRAWS, check_kernel_size, gaussian_blur
from ._color import JITTER_DRAWS, apply_jitter, check_strengths, luma
from ._crop import BOX_DRAWS, crop_resize, sample_box
from ._cutout import random_cutout
from ._images import (
    FACTOR,
    POSITIVE,
    PROBABILITY,
    Image,
    as_channels,
    bernoulli,
    check_axes,
    check_pair,
    sample_or_zero,
    to_color_planes,
    to_floats,
    to_image,
)
from ._noise import random_noise
from ._rotation import ANGLE, random_rotation

_Probability = Annotated[Any, PROBABILITY]


@pytree_dataclass
class ImageAugmentation:
    """SimCLR's views of an image: random crop, flip, colour jitter, grayscale and blur.

    Rotation, noise and cutout are optional: a step whose rate is None is not part of the program.
    The steps are applied in the order of the attributes.

    ``views(key, image)`` draws a view and standardizes it. The defaults are those of the published
    BCL code, except for ``mean`` and ``std``, which :meth:`cifar10` sets. The parameters that are
    not static are leaves: they may be traced, swept with ``jax.vmap``, or replaced without
    recompilation. ``jax.vmap(views)(keys, images)`` draws the views of a batch: each depends only
    on its own key and image.

    With one channel, saturation, hue and grayscale have no effect.

    Attributes:
      size: Height and width of a view; static.
      blur_kernel: Odd kernel size in pixels, at most ``2 * size - 1``; 1 disables the blur. Static.
      plain_size: Height and width of :meth:`plain` views; None for ``size``. Static.
      scale: Range of the crop's share of the area; see :func:`crl_jax.augment.random_crop_box`.
      ratio: Range of the crop's width over height.
      flip_rate: Probability of a horizontal flip, in [0, 1].
      rotation: Range of the angle in degrees; see :func:`crl_jax.augment.rotate`. Corners outside
        the image have the value ``mean``.
      rotation_rate: Probability of a rotation, in [0, 1]; None for no rotation.
      jitter: Strengths of brightness, contrast, saturation and hue; see
        :func:`crl_jax.augment.color_jitter`.
      jitter_rate: Probability of colour jitter, in [0, 1].
      grey_rate: Probability of grayscale, in [0, 1].
      blur_sigma: Range of the standard deviation of the blur, in pixels.
      blur_rate: Probability of blur, in [0, 1].
      noise_std: Range of the standard deviation of Gaussian noise.
      noise_rate: Probability of noise, in [0, 1]; None for no noise.
      cutout_size: Side of the square that is set to ``mean``, relative to that of the view, in
        [0, 1]; see :func:`crl_jax.augment.random_cutout`.
      cutout_rate: Probability of cutout, in [0, 1]; None for no cutout.
      mean: Subtracted at the end; one number, or one per channel.
      std: Divides the result, > 0; one number, or one per channel.

    Raises:
      ValueError: If an attribute is out of range.

    References:
      Chen et al., `A Simple Framework for Contrastive Learning of Visual Representations
      <https://arxiv.org/abs/2002.05709>`_, 2020, appendix A; the published code of BCL,
      ``utils.py``.

    >>> views = ImageAugmentation(size=8)
    >>> image = jnp.ones((10, 12, 3)) / 2
    >>> jax.jit(views)(jax.random.key(0), image).shape, views.plain(image).shape
    ((8, 8, 3), (8, 8, 3))
    """

    size: int = field(default=32, metadata=STATIC)
    blur_kernel: int = field(default=3, metadata=STATIC)
    plain_size: int | None = field(default=None, metadata=STATIC)
    scale: Any = (0.08, 1.0)
    ratio: Any = (3 / 4, 4 / 3)
    flip_rate: _Probability = 0.5
    rotation: Any = (-30.0, 30.0)
    rotation_rate: _Probability = None
    jitter: Any = (0.4, 0.4, 0.4, 0.1)
    jitter_rate: _Probability = 0.8
    grey_rate: _Probability = 0.2
    blur_sigma: Any = (0.1, 2.0)
    blur_rate: _Probability = 0.5
    noise_std: Any = (0.0, 0.1)
    noise_rate: _Probability = None
    cutout_size: _Probability = 0.5
    cutout_rate: _Probability = None
    mean: Any = 0.0
    std: Any = 1.0

    def __post_init__(self) -> None:
        check_count("size", self.size)
        check_kernel_size("blur_kernel", self.blur_kernel, self.size)
        if self.plain_size is not None:
            check_count("plain_size", self.plain_size)
        check_pair("scale", self.scale, POSITIVE)
        check_pair("ratio", self.ratio, POSITIVE)
        check_pair("rotation", self.rotation, ANGLE)
        check_pair("blur_sigma", self.blur_sigma, FACTOR)
        check_pair("noise_std", self.noise_std, FACTOR)
        check_strengths("jitter", self.jitter)
        for std in self.std if isinstance(self.std, (tuple, list)) else (self.std,):
            POSITIVE.check("std", std)

    @classmethod
    def cifar10(cls, **changes: Any) -> "ImageAugmentation":
        """Augmentation of CIFAR-10 in the published code of BCL, its predecessors and SimCLR.

        ``changes`` are other values of attributes. SimCLR does not blur: ``blur_kernel=1``.
        """
        mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
        return cls(**{"mean": mean, "std": std, **changes})

    @classmethod
    def imagenet(cls, size: int = 224, **changes: Any) -> "ImageAugmentation":
        """SimCLR's augmentation of ImageNet: stronger jitter, and a blur kernel of a tenth of size.

        ``changes`` are other values of attributes. SimCLR leaves values in [0, 1].
        """
        kernel = size // 10 // 2 * 2 + 1
        defaults = {"size": size, "blur_kernel": kernel, "jitter": (0.8, 0.8, 0.8, 0.2)}
        return cls(**{**defaults, **changes})

    def __call__(
        self, key: Key[Array, ""], image: Image
    ) -> Float[Array, "*batch size size channels"]:
        """Draws a random view; images along leading axes, such as video frames, share it.

        Args:
          key: Random key.
          image: ``[..., height, width, channels]``, floats in [0, 1] or uint8; 1 or 3 channels.

        Returns:
          Float32, ``[..., size, size, channels]``.

        Raises:
          ValueError: If ``image`` is invalid, or ``mean`` or ``std`` does not match its channels.
        """
        check_axes(image)
        # One draw for all: each draw is a kernel, whose compilation takes longer than the rest.
        uniform = jax.random.uniform(key, (BOX_DRAWS + JITTER_DRAWS + BLUR_DRAWS + 2,), jnp.float32)
        ends = np.cumsum([BOX_DRAWS, 1, JITTER_DRAWS, 1])
        u_box, u_flip, u_jitter, u_grey, u_blur = jnp.split(uniform, ends)
        # Separate keys, so that an optional step does not change the random numbers of the others.
        rotation_key, noise_key, cutout_key = (jax.random.fold_in(key, i) for i in range(3))
        height, width = image.shape[-3:-1]
        box = sample_box(u_box, height, width, self.scale, self.ratio)
        flipped = bernoulli(u_flip[0], self.flip_rate)
        view = crop_resize(image, box, self.size, flipped=flipped)
        if self.rotation_rate is not None:
            view = random_rotation(
                rotation_key, view, degrees=self.rotation, rate=self.rotation_rate, fill=self.mean
            )
        x = to_color_planes(view)
        x = apply_jitter(u_jitter, x, self.jitter, self.jitter_rate)
        x = jnp.where(bernoulli(u_grey[0], self.grey_rate), luma(x), x)
        view = to_image(x)
        if self.blur_kernel > 1:
            sigma = sample_or_zero(u_blur, self.blur_sigma, self.blur_rate)
            view = gaussian_blur(view, sigma, self.blur_kernel)
        if self.noise_rate is not None:
            view = random_noise(noise_key, view, std=self.noise_std, rate=self.noise_rate)
        if self.cutout_rate is not None:
            view = random_cutout(
                cutout_key, view, size=self.cutout_size, rate=self.cutout_rate, fill=self.mean
            )
        return self._standardize(view)

    def plain(self, image: Image) -> Float[Array, "*batch side side channels"]:
        """Returns the deterministic view for evaluation: centre crop, resized and standardized.

        The crop is the largest centred square. Images of the right size are only standardized.
        Arguments, result and errors are those of a call, with ``plain_size``.
        """
        view = to_floats(image)
        height, width = view.shape[-3:-1]
        size = self.size if self.plain_size is None else self.plain_size
        if (height, width) != (size, size):
            side = min(height, width)
            box = np.array([(height - side) // 2, (width - side) // 2, side, side])
            view = crop_resize(view, box, size)
        return self._standardize(view)

    def _standardize(self, view: Float[Array, "*batch side side channels"]) -> Array:
        view = view.astype(jnp.float32)
        return (view - as_channels("mean", self.mean, view)) / as_channels("std", self.std, view)
