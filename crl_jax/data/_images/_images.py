"""Labelled images on the host, their splits, and their construction from arrays."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Shaped, UInt8
from numpy.typing import ArrayLike

from ..._checks import check_shape
from ..._optional import import_optional
from .._errors import Note
from .._rows import DiskArray
from .._split_sampling import (
    Split,
    as_index,
    as_read_only,
    check_labels,
    check_same_classes,
    sample_test_mask,
)

NO_LABEL = -1
Pixels = UInt8[np.ndarray, "n height width channels"] | DiskArray


def as_pixels(images: Any) -> Any:
    """Returns read-only uint8 images ``[n, height, width, channels]``; ValueError for others."""
    if isinstance(images, DiskArray) and (images.ndim, images.dtype) == (4, np.uint8):
        return images
    return as_read_only("images", images, np.uint8, 4)


def take_rows(images: Any, index: Any) -> Any:
    """Selects images; those of a :class:`DiskArray` are not read."""
    return images.take(index) if isinstance(images, DiskArray) else images[index]


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Images of one size with labels, on the host.

    Arrays are read-only; a writable argument is copied.

    Attributes:
      images: Pixels in 0 … 255, uint8 ``[n, height, width, channels]``; readers return 1 channel
        (grey) or 3 (RGB). A :class:`DiskArray` if they remain in files.
      labels: Class of each image in ``[0, len(classes))``, or -1 without a label; int32 ``[n]``.
      classes: Distinct class names.
      names: File of each image, ``[n]``; None for images that are no files.

    Raises:
      ValueError: If a field has another type, shape or range.

    >>> grey = np.zeros((3, 8, 8, 1), np.uint8)
    >>> data = Images(grey, np.array([0, 1, -1], np.int32), ("cat", "dog"))
    >>> data
    Images(3 of 8 × 8 × 1, 2 classes)
    >>> data.take(data.labels >= 0)
    Images(2 of 8 × 8 × 1, 2 classes)
    """

    images: Pixels
    labels: Int32[np.ndarray, " n"]
    classes: tuple[str, ...]
    names: Shaped[np.ndarray, " n"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", as_pixels(self.images))
        object.__setattr__(self, "labels", as_read_only("labels", self.labels, np.int32, 1))
        object.__setattr__(self, "classes", tuple(self.classes))
        check_shape("labels", self.labels, (len(self.images),))
        if self.names is not None:
            names = np.asarray(self.names)
            if names.dtype.kind != "U":
                raise ValueError(f"`names` must be strings, got {names.dtype}.")
            object.__setattr__(self, "names", as_read_only("names", names, names.dtype, 1))
            check_shape("names", names, (len(self.images),))
        check_labels(self.labels, self.classes)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.images.shape[1:]))
        classes = f"{len(self.classes)} classes" if self.classes else "no labels"
        return f"Images({len(self)} of {shape}, {classes})"

    def take(self, index: ArrayLike | slice) -> "Images":
        """Selects images in the order of ``index``.

        Args:
          index: Integers ``[k]``, a mask ``[n]``, or a slice, which copies nothing. Nothing is
            copied of a :class:`DiskArray`.

        Raises:
          ValueError: If ``index`` is none of these.
          IndexError: If it is out of bounds.
        """
        if not isinstance(index, slice):
            index = as_index(index)
        images, labels = take_rows(self.images, index), self.labels[index]
        names = None if self.names is None else self.names[index]
        for array in (images, labels, names):
            if isinstance(array, np.ndarray):
                array.setflags(write=False)
        return Images(images, labels, self.classes, names)

    def without_labels(self) -> "Images":
        """Returns the images without labels and classes."""
        return Images(self.images, np.full_like(self.labels, NO_LABEL), (), self.names)


@dataclass(frozen=True, eq=False)
class ImageSplit(Split):
    """Training, test and unlabelled parts of a dataset of images of one size.

    The last has additional training images with labels -1, or is None.

    Raises:
      ValueError: If the parts differ in the size of images or in their classes.
    """

    train: Images
    test: Images
    unlabelled: Images | None = None

    def __post_init__(self) -> None:
        for name, part in self.parts():
            check_shape(name, part.images, (len(part), *self.train.images.shape[1:]))
        check_same_classes(self)


class LoadedImages(NamedTuple):
    """Data of a reader and its warnings."""

    split: ImageSplit
    notes: list[Note]


def image_test_mask(
    labels: np.ndarray, fraction: float | None, origin: str, labelled: bool = True
) -> np.ndarray:
    """Samples the test part; of one image that is read without a label, it is empty."""
    if not labelled and len(labels) == 1:
        return np.zeros(1, bool)
    return sample_test_mask(labels, fraction, origin)


def split_images(
    data: Images, fraction: float | None, origin: str, labelled: bool = True
) -> ImageSplit:
    """Samples a test part, see :func:`sample_test_mask`."""
    mask = image_test_mask(data.labels, fraction, origin, labelled)
    return ImageSplit(data.take(~mask), data.take(mask))


def as_images(images: Any, labels: Any, classes: tuple[str, ...] | None = None) -> Images:
    """Converts integer arrays to :class:`Images`; raises ``ValueError`` if they are none.

    Images in 0 … 255 are ``[n, height, width]`` or ``[n, height, width, 1 or 3]``, labels >= -1 are
    ``[n]`` or ``[n, 1]``. By default, classes are the distinct labels in their order.
    """
    pixels = images if isinstance(images, DiskArray) else _as_numbers("images", images)
    numbers = _as_numbers("labels", labels)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3):
        raise ValueError(
            "`images` must have shape [n, height, width] or [n, height, width, 1 or 3], "
            f"got {pixels.shape}."
        )
    if pixels.dtype.kind == "f":
        raise ValueError(
            f"`images` must be whole numbers from 0 to 255, got {pixels.dtype}. Convert images in "
            "[0, 1] by np.rint(255 * images).astype(np.uint8)."
        )
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    if numbers.shape != (len(pixels),):
        raise ValueError(
            f"`labels` must have shape ({len(pixels)},), one for each image, got {numbers.shape}."
        )
    high = np.iinfo(np.int32).max if classes is None else len(classes) - 1
    pixels = _as_integers("images", pixels, 0, 255, np.uint8)
    numbers = _as_integers("labels", numbers, NO_LABEL, high, np.int32)
    if classes is None:
        distinct = np.unique(numbers[numbers != NO_LABEL])
        classes = tuple(map(str, distinct.tolist()))
        index = np.searchsorted(distinct, numbers)
        numbers = np.where(numbers == NO_LABEL, NO_LABEL, index).astype(np.int32)
    return Images(pixels, numbers, classes)


def digits() -> Images:
    """Returns scikit-learn's 1,797 handwritten digits, 8 × 8 with 17 grey levels."""
    datasets = import_optional(
        "sklearn.datasets", "The digits are part of scikit-learn", "experiments"
    )
    pixels, labels = datasets.load_digits(return_X_y=True)
    grey = np.rint(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return as_images(grey, labels)


def _as_numbers(name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # ragged lists
        array = np.empty(0, object)
    if array.dtype.kind not in "iufb":
        raise ValueError(f"`{name}` must be an array of numbers, of one size, got {values!r:.100}.")
    return array


def _as_integers(name: str, array: Any, low: int, high: int, dtype: type) -> Any:
    if array.dtype.kind == "f":
        raise ValueError(f"`{name}` must be whole numbers, got {array.dtype}.")
    if array.dtype == dtype and (low, high) == (0, 255):
        return array
    if array.size and (array.min() < low or array.max() > high):
        raise ValueError(
            f"`{name}` must lie in [{low}, {high}], got {array.min()} to {array.max()}."
        )
    array = array.astype(dtype)
    array.setflags(write=False)
    return array
