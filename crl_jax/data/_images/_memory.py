"""Images in memory, and the digits that come with scikit-learn."""

import importlib
from typing import Any

import numpy as np

from ._set import NO_LABEL, Images


def as_images(images: Any, labels: Any, classes: tuple[str, ...] | None = None) -> Images:
    """Takes pixels and labels as people hold them.

    Args:
      images: Whole numbers in 0 … 255, ``[n, height, width]`` (grey) or ``[n, height, width,
        channels]`` with 1 or 3 channels.
      labels: Whole numbers from -1 (no label) on, ``[n]`` or ``[n, 1]``.
      classes: The names of the classes; by default they are called by their numbers.

    Raises:
      ValueError: If they are not as said. Numbers with a fraction are refused, for nobody knows
        how to round them.
    """
    pixels, numbers = _array("images", images), _array("labels", labels)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3):
        raise ValueError(
            "`images` must have shape [n, height, width] or [n, height, width, 1 or 3], "
            f"got {pixels.shape}."
        )
    if pixels.dtype.kind == "f":
        raise ValueError(
            f"`images` must be whole numbers from 0 to 255, got {pixels.dtype}. If they lie in "
            "[0, 1], give np.rint(255 * images).astype(np.uint8)."
        )
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    if numbers.shape != (len(pixels),):
        raise ValueError(
            f"`labels` must have shape ({len(pixels)},), one for each image, got {numbers.shape}."
        )
    most = np.iinfo(np.int32).max if classes is None else len(classes) - 1
    pixels = _whole("images", pixels, 0, 255, np.uint8)
    numbers = _whole("labels", numbers, NO_LABEL, most, np.int32)
    if classes is None:
        classes = tuple(map(str, range(1 + int(numbers.max(initial=NO_LABEL)))))
    return Images(pixels, numbers, classes)


def digits() -> Images:
    """The 1,797 handwritten digits of scikit-learn, 8 × 8 with 17 levels of grey.

    Raises:
      ImportError: If scikit-learn is not installed.
    """
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise ImportError(
            "digits come with scikit-learn: pip install 'crl_jax[experiments]'"
        ) from error
    pixels, labels = datasets.load_digits(return_X_y=True)
    grey = np.rint(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return as_images(grey, labels)


def _array(name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # lists of several lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "iufb":
        raise ValueError(f"`{name}` must be an array of numbers, of one size, got {values!r:.100}.")
    return array


def _whole(name: str, array: np.ndarray, low: int, high: int, dtype: type) -> np.ndarray:
    """The same numbers in another type, which holds them all."""
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
