"""Images with texts in memory, and the parts of a set of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, UInt8
from numpy.typing import ArrayLike

from ..._checks import check_range, check_shape
from .._errors import DataError
from .._split_sampling import places_of, read_only

_VALID, _TEST = 0.1, 0.2


@dataclass(frozen=True, eq=False, repr=False)
class CaptionedImages:
    """Images of one size with texts that describe them, on the host.

    Arrays are read-only; a writable argument is copied.

    Attributes:
      images: Pixels in 0 … 255, uint8 ``[n, height, width, channels]``.
      texts: All texts; an image may have several.
      image_of_text: The image that each text describes, int32 ``[len(texts)]``.
      groups: What each image shows, int32 ``[n]``: those with one number are equal, such as
        variants of a pictogram. A negative number is none. None if nothing is known to be equal.

    Raises:
      ValueError: If a field breaks what is said above; the message names it.

    >>> data = CaptionedImages(
    ...     np.zeros((2, 8, 8, 1), np.uint8),
    ...     ("a cat", "a black cat", "a dog"),
    ...     np.array([0, 0, 1], np.int32),
    ... )
    >>> data
    Captioned(2 images of 8 × 8 × 1, 3 texts)
    >>> data.take([1]).texts
    ('a dog',)
    """

    images: UInt8[np.ndarray, "n height width channels"]
    texts: tuple[str, ...]
    image_of_text: Int32[np.ndarray, " n_texts"]
    groups: Int32[np.ndarray, " n"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", read_only("images", self.images, np.uint8, 4))
        object.__setattr__(self, "texts", tuple(self.texts))
        of_text = read_only("image_of_text", self.image_of_text, np.int32, 1)
        object.__setattr__(self, "image_of_text", of_text)
        if self.groups is not None:
            object.__setattr__(self, "groups", read_only("groups", self.groups, np.int32, 1))
        check_shape("image_of_text", of_text, (len(self.texts),))
        check_shape("groups", self.groups, (len(self.images),))
        for text in self.texts:
            if not isinstance(text, str):
                raise ValueError(f"`texts` must be strings, got {text!r:.100}.")
        if len(of_text) and not (of_text.min() >= 0 and of_text.max() < len(self.images)):
            raise ValueError(
                f"`image_of_text` must lie in [0, {len(self.images)}), "
                f"got {of_text.min()} to {of_text.max()}."
            )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.images.shape[1:]))
        return f"Captioned({len(self)} images of {shape}, {len(self.texts)} texts)"

    @property
    def image_groups(self) -> Int32[np.ndarray, " n"]:
        """What each image shows: its group, or its own number where there are no groups."""
        return np.arange(len(self), dtype=np.int32) if self.groups is None else self.groups

    @property
    def text_groups(self) -> Int32[np.ndarray, " n_texts"]:
        """What the image of each text shows: with :attr:`image_groups`, what belongs together."""
        return self.image_groups[self.image_of_text]

    def take(self, index: ArrayLike | slice) -> "CaptionedImages":
        """Some of the images, in the order of ``index``, with their texts.

        Args:
          index: Places ``[k]`` as integers, a mask ``[n]``, or a slice; none of them twice.

        Raises:
          ValueError: If ``index`` is none of these, or has a place twice.
          IndexError: If it leaves the images.
        """
        places = np.arange(len(self))[index if isinstance(index, slice) else places_of(index)]
        now = np.full(len(self), -1, np.int32)
        now[places] = np.arange(len(places))
        if np.count_nonzero(now >= 0) != len(places):
            raise ValueError("`index` must name each image once.")
        kept = np.flatnonzero(now[self.image_of_text] >= 0)
        return CaptionedImages(
            self.images[places],
            tuple(self.texts[i] for i in kept),
            now[self.image_of_text[kept]],
            None if self.groups is None else self.groups[places],
        )


@dataclass(frozen=True, eq=False)
class CaptionedImageSplit:
    """Parts of one set of images with texts, of one size.

    Attributes:
      train: What a model may learn from.
      test: What it is judged by.
      valid: What its settings are chosen by, or None.

    Raises:
      ValueError: If the parts differ in the size of images.
    """

    train: CaptionedImages
    test: CaptionedImages
    valid: CaptionedImages | None = None

    def __post_init__(self) -> None:
        for name, part in self.parts():
            check_shape(name, part.images, (len(part), *self.train.images.shape[1:]))

    def parts(self) -> Iterator[tuple[str, CaptionedImages]]:
        """The name and the data of every part that is there, train first."""
        for name in ("train", "valid", "test"):
            if (part := getattr(self, name)) is not None:
                yield name, part


def cut_captioned(
    data: CaptionedImages,
    valid: float | None,
    test: float | None,
    seed: int,
    origin: str,
    *,
    by_group: bool,
) -> CaptionedImageSplit:
    """Draws the parts uniformly: of n images, or groups, ``round(share * n)``, one at least.

    Args:
      data: All of it.
      valid: The share for validation, by default 0.1.
      test: The share for testing, by default 0.2.
      seed: Of the draw, which depends on nothing else but the numbers of images and groups.
      origin: What the data are, for messages.
      by_group: Whether all images of a group go to one part. An image without a group is its own.

    Raises:
      ValueError: If the shares leave nothing to learn from.
      DataError: If there are fewer than three images or groups.
    """
    valid, test = _VALID if valid is None else valid, _TEST if test is None else test
    for name, share in (("valid", valid), ("test", test)):
        check_range(name, share, 0, 1, low_open=True, high_open=True, dtype=float)
    if valid + test >= 1:
        raise ValueError(f"`valid` and `test` must leave some to learn from, got {valid} + {test}.")
    alike = np.arange(len(data))
    if by_group:
        own = data.image_groups.astype(np.int64)
        _, alike = np.unique(np.where(own < 0, -1 - alike, own), return_inverse=True)
    n = 1 + int(alike.max(initial=-1))
    if n < 3:
        kind = "groups of images" if by_group else "images"
        raise DataError(f"{origin}: expected at least 3 {kind}, one for each part, got {n}.")
    n_test = min(max(round(test * n), 1), n - 2)
    n_valid = min(max(round(valid * n), 1), n - 1 - n_test)
    drawn = np.empty(n, np.int64)
    drawn[np.random.default_rng(seed).permutation(n)] = np.arange(n)
    place = drawn[alike]
    return CaptionedImageSplit(
        train=data.take(place >= n_test + n_valid),
        valid=data.take((place >= n_test) & (place < n_test + n_valid)),
        test=data.take(place < n_test),
    )
