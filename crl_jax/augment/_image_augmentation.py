"""A random view of an image, and the plain one."""

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from .._checks import check_count, check_range
from .._pytree import STATIC, pytree_dataclass
from ._blur import BLUR_DRAWS, check_kernel, drawn_sigma, gaussian_blur
from ._color import grey
from ._conversion import Image, as_numbers, check_pair, chosen, to_color_planes, to_floats, to_image
from ._crop import BOX_DRAWS, crop_resize, drawn_box
from ._jitter import JITTER_DRAWS, check_strengths, jittered


@pytree_dataclass
class ImageAugmentation:
    """``views(key, image)``: crop, flip, jitter, grey, blur, each by chance; then normalised.

    The numbers of the published BCL are the defaults, but for ``mean`` and ``std``:
    :meth:`cifar10` has these too. The numbers are leaves: they may be traced, swept with
    ``jax.vmap``, or replaced, and nothing is compiled anew. Draw the views of a batch with
    ``jax.vmap(views)(keys, images)``: each depends on its own key and image alone.

    With one channel, saturation, hue and grey change nothing.

    Attributes:
      size: Height and width of a view; static.
      blur_kernel: Odd number of pixels, at most ``2 * size - 1``; 1 never blurs. Static.
      plain_size: Height and width of :meth:`plain` images, which a network may see larger than it
        was trained on; None for ``size``. Static.
      scale: Share of the image's area that is seen; see :func:`crl_jax.augment.random_crop_box`.
      ratio: Width over height of what is seen.
      flip_rate: Probability that left and right change places, in [0, 1].
      jitter: Strengths of brightness, contrast, saturation and hue; see
        :func:`crl_jax.augment.color_jitter`.
      jitter_rate: Probability that these change, in [0, 1].
      grey_rate: Probability of grey, in [0, 1].
      blur_sigma: The least and the greatest sigma of the blur, in pixels.
      blur_rate: Probability of blur, in [0, 1].
      mean: Taken from each channel at the end; one number, or one for each channel.
      std: Divides each channel thereafter, above 0; one number, or one for each channel.

    Raises:
      ValueError: If a number leaves its range.

    References:
      Chen et al., `A Simple Framework for Contrastive Learning of Visual Representations
      <https://arxiv.org/abs/2002.05709>`_, 2020, appendix A; the published code of BCL,
      ``utils.py``.

    >>> views = ImageAugmentation(size=8)
    >>> image = jnp.ones((10, 12, 3)) / 2
    >>> views(jax.random.key(0), image).shape, views.plain(image).shape
    ((8, 8, 3), (8, 8, 3))
    """

    size: int = field(default=32, metadata=STATIC)
    blur_kernel: int = field(default=3, metadata=STATIC)
    plain_size: int | None = field(default=None, metadata=STATIC)
    scale: Any = (0.08, 1.0)
    ratio: Any = (3 / 4, 4 / 3)
    flip_rate: Any = 0.5
    jitter: Any = (0.4, 0.4, 0.4, 0.1)
    jitter_rate: Any = 0.8
    grey_rate: Any = 0.2
    blur_sigma: Any = (0.1, 2.0)
    blur_rate: Any = 0.5
    mean: Any = 0.0
    std: Any = 1.0

    def __post_init__(self) -> None:
        check_count("size", self.size)
        check_kernel("blur_kernel", self.blur_kernel, self.size)
        if self.plain_size is not None:
            check_count("plain_size", self.plain_size)
        for name in ("scale", "ratio"):
            check_pair(name, getattr(self, name), 0, jnp.inf, low_open=True)
        check_pair("blur_sigma", self.blur_sigma, 0, jnp.inf)
        check_strengths("jitter", self.jitter)
        for name in ("flip_rate", "jitter_rate", "grey_rate", "blur_rate"):
            check_range(name, getattr(self, name), 0, 1)
        each = self.std if isinstance(self.std, (tuple, list)) else (self.std,)
        for std in each:
            check_range("std", std, 0, jnp.inf, low_open=True, high_open=True)

    @classmethod
    def cifar10(cls, **changes: Any) -> "ImageAugmentation":
        """Those of the published BCL, of its forerunners' code, and of SimCLR, on CIFAR-10.

        Args:
          **changes: Attributes that shall be others. SimCLR does not blur there:
            ``blur_kernel=1``.
        """
        mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
        return cls(**{"mean": mean, "std": std, **changes})

    @classmethod
    def imagenet(cls, size: int = 224, **changes: Any) -> "ImageAugmentation":
        """SimCLR's on ImageNet: a stronger jitter, and a blur over a tenth of the size.

        Args:
          size: See the attributes.
          **changes: Attributes that shall be others. SimCLR leaves values in [0, 1].
        """
        blur = size // 10 // 2 * 2 + 1
        own = {"size": size, "blur_kernel": blur, "jitter": (0.8, 0.8, 0.8, 0.2)}
        return cls(**{**own, **changes})

    def __call__(
        self, key: Key[Array, ""], image: Image
    ) -> Float[Array, "*batch size size channels"]:
        """A random view.

        Args:
          key: Decides all.
          image: ``[..., height, width, channels]``, floats in [0, 1] or uint8; 1 or 3 channels.
            Images along leading axes, such as those of a film, get one view alike.

        Returns:
          Float32, ``[..., size, size, channels]``.

        Raises:
          ValueError: If ``image`` is none, or ``mean`` or ``std`` does not fit it.
        """
        # One draw for all: each is a program of its own, whose compilation takes longer than
        # that of all else here.
        uniform = jax.random.uniform(key, (BOX_DRAWS + JITTER_DRAWS + BLUR_DRAWS + 2,), jnp.float32)
        ends = np.cumsum([BOX_DRAWS, 1, JITTER_DRAWS, 1])
        of_box, of_flip, of_jitter, of_grey, of_blur = jnp.split(uniform, ends)
        height, width = image.shape[-3:-1]
        box = drawn_box(of_box, height, width, self.scale, self.ratio)
        flipped = chosen(of_flip[0], self.flip_rate)
        x = to_color_planes(crop_resize(image, box, self.size, flipped=flipped))
        x = jittered(of_jitter, x, self.jitter, self.jitter_rate)
        x = jnp.where(chosen(of_grey[0], self.grey_rate), grey(x), x)
        view = to_image(x)
        if self.blur_kernel > 1:
            sigma = drawn_sigma(of_blur, self.blur_sigma, self.blur_rate)
            view = gaussian_blur(view, sigma, self.blur_kernel)
        return self._normalized(view)

    def plain(self, image: Image) -> Float[Array, "*batch side side channels"]:
        """The image without chance, for evaluation: resized and normalised.

        Of an image that is not square, the largest square in the middle. An image of the right
        size is only normalised.

        Args:
          image: ``[..., height, width, channels]``, floats in [0, 1] or uint8.

        Returns:
          Float32, ``[..., plain_size, plain_size, channels]``.

        Raises:
          ValueError: If ``image`` is none, or ``mean`` or ``std`` does not fit it.
        """
        view = to_floats(image)
        height, width = view.shape[-3:-1]
        wanted = self.size if self.plain_size is None else self.plain_size
        if (height, width) != (wanted, wanted):
            side = min(height, width)
            box = np.array([(height - side) // 2, (width - side) // 2, side, side])
            view = crop_resize(view, box, wanted)
        return self._normalized(view)

    def _normalized(self, view: Float[Array, "*batch side side channels"]) -> Array:
        moments = {name: as_numbers(getattr(self, name)) for name in ("mean", "std")}
        for name, numbers in moments.items():
            if numbers.shape not in ((), view.shape[-1:]):
                raise ValueError(
                    f"`{name}` must be one number or one for each of the {view.shape[-1]} "
                    f"channels, got shape {numbers.shape}."
                )
        mean, std = (jnp.broadcast_to(numbers, view.shape) for numbers in moments.values())
        return (view.astype(jnp.float32) - mean) / std
