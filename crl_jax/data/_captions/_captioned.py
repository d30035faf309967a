"""Images with captions on the host, and their splits."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from jaxtyping import Int32
from numpy.typing import ArrayLike

from ..._checks import check_distinct, check_range, check_shape
from .._errors import DataError
from .._images._images import Pixels, as_pixels, take_rows
from .._split_sampling import Split, check_indices, freeze_arrays, selected_rows

_VALID_FRACTION, _TEST_FRACTION = 0.1, 0.2


@dataclass(frozen=True, eq=False, repr=False)
class CaptionedImages:
    """Images of one size with captions, on the host.

    Arrays are read-only; a writable argument is copied.

    Attributes:
      images: Pixels in 0 … 255, uint8 ``[n, height, width, channels]``; a :class:`DiskArray` if
        they remain in files.
      texts: All captions, non-empty; an image may have several.
      image_of_text: Index of the image of each caption, int32 ``[len(texts)]``.
      groups: Group of each image, int32 ``[n]``: images of one group match the same captions, such
        as variants of a pictogram. Negative without a group. None if there are no groups.

    Raises:
      ValueError: If a field has another type, shape or range.

    >>> data = CaptionedImages(
    ...     np.zeros((2, 8, 8, 1), np.uint8),
    ...     ("a cat", "a black cat", "a dog"),
    ...     np.array([0, 0, 1], np.int32),
    ... )
    >>> data
    CaptionedImages(2 images of 8 × 8 × 1, 3 texts)
    >>> data.take([1]).texts
    ('a dog',)
    """

    images: Pixels
    texts: tuple[str, ...]
    image_of_text: Int32[np.ndarray, " n_texts"]
    groups: Int32[np.ndarray, " n"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", tuple(self.texts))
        object.__setattr__(self, "images", as_pixels(self.images))
        freeze_arrays(self, {"image_of_text": np.int32, "groups": np.int32})
        check_shape("image_of_text", self.image_of_text, (len(self.texts),))
        check_shape("groups", self.groups, (len(self.images),))
        for text in self.texts:
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"`texts` must be non-empty strings, got {text!r:.100}.")
        check_indices("image_of_text", self.image_of_text, len(self.images))

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.images.shape[1:]))
        return f"CaptionedImages({len(self)} images of {shape}, {len(self.texts)} texts)"

    @property
    def image_groups(self) -> Int32[np.ndarray, " n"]:
        """Group of each image; its index if there are no groups."""
        return np.arange(len(self), dtype=np.int32) if self.groups is None else self.groups

    @property
    def text_groups(self) -> Int32[np.ndarray, " n_texts"]:
        """Group of the image of each caption; equal to :attr:`image_groups` for matching pairs."""
        return self.image_groups[self.image_of_text]

    def take(self, index: ArrayLike | slice) -> "CaptionedImages":
        """Selects distinct images with their captions, as :meth:`Images.take` does."""
        index = selected_rows(index, len(self))
        check_distinct("index", index)
        new_index = np.full(len(self), -1, np.int32)
        new_index[index] = np.arange(len(index))
        text_indices = np.flatnonzero(new_index[self.image_of_text] >= 0)
        return CaptionedImages(
            take_rows(self.images, index),
            tuple(self.texts[i] for i in text_indices),
            new_index[self.image_of_text[text_indices]],
            None if self.groups is None else self.groups[index],
        )


@dataclass(frozen=True, eq=False)
class CaptionedImageSplit(Split):
    """Training, test and validation parts of captioned images of one size; the last may be None.

    Raises:
      ValueError: If the parts differ in the size of images.
    """

    train: CaptionedImages
    test: CaptionedImages
    valid: CaptionedImages | None = None

    def __post_init__(self) -> None:
        for name, part in self.parts():
            check_shape(name, part.images, (len(part), *self.train.images.shape[1:]))


def join_captions(
    images: Pixels,
    captions: Sequence[Sequence[str]],
    groups: Int32[np.ndarray, " n"] | None = None,
) -> CaptionedImages:
    """Returns images with the captions of each."""
    index = np.repeat(np.arange(len(captions), dtype=np.int32), [len(x) for x in captions])
    return CaptionedImages(images, tuple(chain(*captions)), index, groups)


def split_captioned(
    data: CaptionedImages,
    valid: float | None,
    test: float | None,
    seed: int,
    origin: str,
    *,
    by_group: bool,
) -> CaptionedImageSplit:
    """Samples uniform parts: ``round(fraction * n)`` of n images or groups, at least one.

    The split depends on the seed and on the number of images and groups only. With ``by_group``,
    all images of a group go to one part; an image without a group is its own.
    """
    valid = _VALID_FRACTION if valid is None else valid
    test = _TEST_FRACTION if test is None else test
    for name, fraction in (("valid", valid), ("test", test)):
        check_range(name, fraction, 0, 1, low_open=True, high_open=True, dtype=float)
    if valid + test >= 1:
        raise ValueError(f"`valid` + `test` must be less than 1, got {valid} + {test}.")
    unit = np.arange(len(data))
    if by_group:
        groups = data.image_groups.astype(np.int64)
        _, unit = np.unique(np.where(groups < 0, -1 - unit, groups), return_inverse=True)
    n = 1 + int(unit.max(initial=-1))
    if n < 3:
        kind = "groups of images" if by_group else "images"
        raise DataError(f"{origin}: expected at least 3 {kind}, one for each part, got {n}.")
    n_test = min(max(round(test * n), 1), n - 2)
    n_valid = min(max(round(valid * n), 1), n - 1 - n_test)
    ranks = np.argsort(np.random.default_rng(seed).permutation(n))[unit]
    return CaptionedImageSplit(
        train=data.take(ranks >= n_test + n_valid),
        valid=data.take((ranks >= n_test) & (ranks < n_test + n_valid)),
        test=data.take(ranks < n_test),
    )
