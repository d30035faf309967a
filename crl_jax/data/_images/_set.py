"""Labelled images in memory, and the parts of a set of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Shaped, UInt8
from numpy.typing import ArrayLike

from ..._checks import check_shape
from .._errors import Note
from .._split_sampling import drawn_for_test, places_of, read_only

NO_LABEL = -1


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Images of one size with their labels, on the host.

    Arrays are read-only; a writable argument is copied.

    Attributes:
      images: Pixels in 0 … 255, uint8 ``[n, height, width, channels]``; readers give 1 channel
        (grey) or 3 (red, green, blue).
      labels: The class of each image in ``[0, len(classes))``, or -1 without one; int32 ``[n]``.
      classes: The name of each class, distinct.
      names: Of the file of each image, ``[n]``; None where images have no files of their own.

    Raises:
      ValueError: If a field breaks what is said above; the message names it.

    >>> grey = np.zeros((3, 8, 8, 1), np.uint8)
    >>> data = Images(grey, np.array([0, 1, -1], np.int32), ("cat", "dog"))
    >>> data
    Images(3 of 8 × 8 × 1, 2 classes)
    >>> data.take(data.labels >= 0)
    Images(2 of 8 × 8 × 1, 2 classes)
    """

    images: UInt8[np.ndarray, "n height width channels"]
    labels: Int32[np.ndarray, " n"]
    classes: tuple[str, ...]
    names: Shaped[np.ndarray, " n"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", read_only("images", self.images, np.uint8, 4))
        object.__setattr__(self, "labels", read_only("labels", self.labels, np.int32, 1))
        object.__setattr__(self, "classes", tuple(self.classes))
        check_shape("labels", self.labels, (len(self.images),))
        if self.names is not None:
            names = np.asarray(self.names)
            if names.dtype.kind != "U":
                raise ValueError(f"`names` must be strings, got {names.dtype}.")
            object.__setattr__(self, "names", read_only("names", names, names.dtype, 1))
            check_shape("names", names, (len(self.images),))
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"`classes` must be distinct, got {self.classes}.")
        if len(self) and not (
            self.labels.min() >= NO_LABEL and self.labels.max() < len(self.classes)
        ):
            raise ValueError(
                f"`labels` must lie in [-1, {len(self.classes)}), "
                f"got {self.labels.min()} to {self.labels.max()}."
            )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.images.shape[1:]))
        classes = f"{len(self.classes)} classes" if self.classes else "no labels"
        return f"Images({len(self)} of {shape}, {classes})"

    def take(self, index: ArrayLike | slice) -> "Images":
        """Some of the images, in the order of ``index``.

        Args:
          index: Places ``[k]`` as integers, a mask ``[n]``, or a slice, which copies nothing.

        Raises:
          ValueError: If ``index`` is none of these.
          IndexError: If it leaves the images.
        """
        if not isinstance(index, slice):
            index = places_of(index)
        images, labels = self.images[index], self.labels[index]
        names = None if self.names is None else self.names[index]
        for array in (images, labels, names):
            if array is not None:
                array.setflags(write=False)
        return Images(images, labels, self.classes, names)

    def without_labels(self) -> "Images":
        """The same images with no label and no class."""
        return Images(self.images, np.full_like(self.labels, NO_LABEL), (), self.names)


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Parts of one set of images, of one size and with the same classes.

    Attributes:
      train: What a model may learn from.
      test: What it is judged by.
      unlabelled: More images to learn from, all labels -1, or None.

    Raises:
      ValueError: If the parts differ in the size of images or in their classes.
    """

    train: Images
    test: Images
    unlabelled: Images | None = None

    def __post_init__(self) -> None:
        for name, part in self.parts():
            check_shape(name, part.images, (len(part), *self.train.images.shape[1:]))
            if part.classes != self.train.classes:
                raise ValueError(f"`{name}` must have the classes of `train`.")

    def parts(self) -> Iterator[tuple[str, Images]]:
        """The name and the images of every part that is there, train first."""
        for name in ("train", "test", "unlabelled"):
            if (part := getattr(self, name)) is not None:
                yield name, part


def cut(data: Images, share: float | None, origin: str) -> ImageSplit:
    """The split of :func:`drawn_for_test`."""
    drawn = drawn_for_test(data.labels, share, origin)
    return ImageSplit(data.take(~drawn), data.take(drawn))


class Read(NamedTuple):
    """What a reader of images gives: a split, and notes on it."""

    split: ImageSplit
    notes: list[Note]
