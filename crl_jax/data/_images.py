"""Labelled images in memory, and the parts of a set of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Shaped, UInt8
from numpy.typing import ArrayLike

from .._checks import check_shape
from ._outcomes import DataError

NO_LABEL = -1
_SHARE = 0.2


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Images of one size with their labels, on the host.

    Arrays are read-only; a writable argument is copied.

    Attributes:
      images: Pixels in 0 … 255, uint8 ``[n, height, width, channels]``; readers give 1 channel
        (grey) or 3 (red, green, blue).
      labels: The class of each image in ``[0, len(classes))``, or -1 without one; int32 ``[n]``.
      classes: The name of each class, distinct.

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", read_only("images", self.images, np.uint8, 4))
        object.__setattr__(self, "labels", read_only("labels", self.labels, np.int32, 1))
        object.__setattr__(self, "classes", tuple(self.classes))
        check_shape("labels", self.labels, (len(self.images),))
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
        return f"Images({len(self)} of {shape}, {len(self.classes)} classes)"

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
        for array in (images, labels):
            array.setflags(write=False)
        return Images(images, labels, self.classes)


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


def drawn_for_test(
    labels: Int32[np.ndarray, " n"],
    share: float | None,
    origin: str,
    *,
    seed: int = 0,
    what: str = "images",
) -> Bool[np.ndarray, " n"]:
    """Which examples are the test part: of each class ``round(share * n)``, drawn uniformly.

    The share is 0.2 if it is None. At least one of each class is drawn, and not all: a class of a
    single one stays in training. The draw depends on nothing but the labels in their order, and the
    seed.

    Raises:
      DataError: If no class has two images.
    """
    share = _SHARE if share is None else share
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    drawn = np.zeros(len(labels), bool)
    for of_class in np.split(order, 1 + np.flatnonzero(np.diff(labels[order]))):
        n_drawn = min(max(round(share * len(of_class)), 1), len(of_class) - 1)
        drawn[of_class[: max(n_drawn, 0)]] = True
    if not drawn.any():
        raise DataError(
            f"{origin}: expected a class of two {what} or more, of which a part is kept for "
            f"testing, got {len(labels)} {what}, each the only one of its class."
        )
    return drawn


def places_of(index: ArrayLike) -> Shaped[np.ndarray, " k"]:
    """Places or a mask as an array that indexes.

    Raises:
      ValueError: If they are neither.
    """
    places = np.asarray(index)
    if places.ndim != 1 or (places.size and places.dtype.kind not in "iub"):
        raise ValueError(
            "`index` must be a slice, or a one-dimensional array of integers or booleans, "
            f"got shape {places.shape} of {places.dtype}."
        )
    return places if places.size else places.astype(np.intp)


def read_only(name: str, array: Any, dtype: type, ndim: int) -> np.ndarray:
    """The array if it is read-only, or a copy that is.

    Raises:
      ValueError: If it has another type or number of axes.
    """
    array = np.asarray(array)
    if array.ndim != ndim or array.dtype != dtype:
        raise ValueError(
            f"`{name}` must have {ndim} dimensions and be of {np.dtype(dtype)}, "
            f"got shape {array.shape} of {array.dtype}."
        )
    if array.flags.writeable:
        array = array.copy()
        array.setflags(write=False)
    return array
