"""Image sets of TensorFlow Datasets, by name."""

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import UInt8

from .._errors import DataError, Note
from ._memory import as_images
from ._resize import resized
from ._set import Images, ImageSplit, Read, cut

_TEST = ("test", "validation")
_UNLABELLED = ("unlabelled", "unlabeled")


def read_tfds_images(name: str, size: int | None, share: float | None) -> Read:
    """Reads the features ``image`` and ``label`` of a TensorFlow dataset.

    Args:
      name: As ``tensorflow_datasets.load`` takes it, such as ``mnist``.
      size: The side of the squares that the images become, or None.
      share: That of the test part, for a dataset that has neither ``test`` nor ``validation``.

    Raises:
      ImportError: If TensorFlow Datasets is not installed.
      DataError: If a feature is absent, or images are not as :func:`as_images` takes them.
      ValueError: If ``share`` is given for a dataset with a test part.
    """
    origin = f"tfds:{name}"
    tfds = _import(origin)
    splits, info = tfds.load(name, with_info=True)
    if "train" not in splits:
        raise DataError(f"{origin}: expected a split train, got {', '.join(splits) or 'none'}.")
    classes = _class_names(info)
    wanted = {"train": "train"}
    for part, names in (("test", _TEST), ("unlabelled", _UNLABELLED)):
        there = [split for split in names if split in splits]
        if there:
            wanted[part] = there[0]
    if "test" in wanted and share is not None:
        raise ValueError(f"`test` belongs to images without a test part, which {origin} has.")

    parts = {
        part: _images(tfds.as_numpy(splits[split]), f"{origin}, {split}", classes, size)
        for part, split in wanted.items()
    }
    if classes is None:  # by their numbers, of which one part may have more
        most = max((part.classes for part in parts.values()), key=len)
        parts = {key: Images(part.images, part.labels, most) for key, part in parts.items()}
    left = sorted(splits.keys() - set(wanted.values()))
    notes = [Note(len(left), f"{{n}} splits are not read: {', '.join(left)}")]
    if "test" in parts:
        return Read(ImageSplit(**parts), notes)
    halves = cut(parts["train"], share, origin)
    return Read(ImageSplit(halves.train, halves.test, parts.get("unlabelled")), notes)


def _import(origin: str) -> Any:
    try:
        return importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise ImportError(
            f"{origin} needs TensorFlow Datasets: pip install 'crl_jax[tfds]'"
        ) from error


def _class_names(info: Any) -> tuple[str, ...] | None:
    names = getattr(info.features.get("label"), "names", None)
    return None if names is None else tuple(names)


def _images(
    examples: Iterable[dict[str, Any]],
    origin: str,
    classes: tuple[str, ...] | None,
    size: int | None,
) -> Images:
    pixels: list[np.ndarray] = []
    labels: list[int] = []
    for place, example in enumerate(examples):
        if missing := {"image", "label"} - example.keys():
            raise DataError(
                f"{origin}: expected the features image and label, got none named "
                f"{', '.join(sorted(missing))} among {', '.join(example)}."
            )
        pixels.append(_one(np.asarray(example["image"]), f"{origin}, image {place}", size))
        labels.append(int(np.asarray(example["label"])))
        if pixels[-1].shape != pixels[0].shape:
            raise DataError(
                f"{origin}: images differ, and `size` makes them of one size: image 0 has shape "
                f"{pixels[0].shape}, image {place} {pixels[-1].shape}."
            )
    if not pixels:
        raise DataError(f"{origin}: expected images, got none.")
    try:
        return as_images(np.stack(pixels), labels, classes)
    except ValueError as error:
        raise DataError(f"{origin}: {error}") from None


def _one(
    image: np.ndarray, where: str, size: int | None
) -> UInt8[np.ndarray, "height width channels"]:
    if image.ndim != 3 or image.shape[-1] not in (1, 3) or image.dtype != np.uint8:
        raise DataError(
            f"{where}: expected uint8 [height, width, 1 or 3], got {image.shape} of {image.dtype}."
        )
    return resized(image[None], size)[0]
