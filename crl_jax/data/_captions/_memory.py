"""Images and texts in memory, and digits with texts made of their names."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._images._memory import as_images, digits
from ._set import CaptionedImages

_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEMPLATES = (
    "a handwritten {}",
    "the digit {}",
    "a picture of the number {}",
    "{} written by hand",
)


def as_captioned(images: Any, texts: Sequence[Any], groups: Any = None) -> CaptionedImages:
    """Takes pixels and texts as people hold them.

    Args:
      images: As for :func:`crl_jax.data.load_images`.
      texts: A text for each image, or a sequence of several.
      groups: What each image shows, whole numbers ``[n]``, see :class:`CaptionedImages`; or None.

    Raises:
      ValueError: If they are not as said.
    """
    if isinstance(texts, str) or len(texts) != len(images):
        raise ValueError(
            f"`texts` must hold a text, or several, for each of {len(images)} images, "
            f"got {texts!r:.100}."
        )
    own = [[text] if isinstance(text, str) else list(text) for text in texts]
    numbers = np.full(len(own), -1) if groups is None else np.asarray(groups)
    if numbers.shape != (len(own),) or numbers.dtype.kind not in "iu":
        raise ValueError(
            f"`groups` must hold a whole number for each of {len(own)} images, got {groups!r:.100}."
        )
    made = as_images(images, numbers)
    of_text = np.repeat(np.arange(len(own)), [len(some) for some in own]).astype(np.int32)
    texts = tuple(text for some in own for text in some)
    return CaptionedImages(made.images, texts, of_text, None if groups is None else made.labels)


def captioned_digits(seed: int) -> CaptionedImages:
    """Scikit-learn's digits, each with one of a few texts made of its name; groups are digits.

    Raises:
      ImportError: If scikit-learn is not installed.
    """
    data = digits()
    drawn = np.random.default_rng(seed).integers(len(_TEMPLATES), size=len(data))
    texts = tuple(_TEMPLATES[i].format(_NAMES[label]) for i, label in zip(drawn, data.labels))
    return CaptionedImages(data.images, texts, np.arange(len(data), dtype=np.int32), data.labels)
