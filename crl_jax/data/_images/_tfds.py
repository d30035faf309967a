"""Images of TensorFlow Datasets."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ..._optional import import_optional
from .._errors import DataError, Note
from ._decode import resize
from ._images import ImageSplit, Loaded, as_images, split_images

_SPLITS = {  # in ascending order of precedence
    "train": ("train",),
    "test": ("validation", "test"),
    "unlabelled": ("unlabeled", "unlabelled"),
}


def read_tfds_images(
    name: str, size: int | None, fraction: float | None, labelled: bool = True
) -> Loaded:
    """Reads the features ``image`` and ``label`` of ``tensorflow_datasets.load(name)``.

    ``fraction`` of a dataset with neither ``test`` nor ``validation`` is sampled for testing.
    """
    origin = f"tfds:{name}"
    tfds = import_optional("tensorflow_datasets", f"{origin} needs TensorFlow Datasets", "tfds")
    splits, info = tfds.load(name, with_info=True)
    if "train" not in splits:
        raise DataError(f"{origin}: expected a split train, got {', '.join(splits) or 'none'}.")
    names = getattr(info.features.get("label"), "names", None)
    used = {
        part: split
        for part, candidates in _SPLITS.items()
        for split in candidates
        if split in splits
    }
    if "test" in used and fraction is not None:
        raise ValueError(f"`test` requires images without a test part, and {origin} has one.")

    arrays = {
        part: _read_split(tfds.as_numpy(splits[split]), f"{origin}, {split}", size)
        for part, split in used.items()
    }
    n_classes = 1 + max((label for _, labels in arrays.values() for label in labels), default=-1)
    classes = tuple(map(str, range(n_classes))) if names is None else tuple(names)
    parts = {}
    for part, (pixels, labels) in arrays.items():
        try:
            parts[part] = as_images(pixels, labels, classes)
        except ValueError as error:
            raise DataError(f"{origin}, {used[part]}: {error}") from None
    unused = sorted(splits.keys() - set(used.values()))
    notes = [Note(len(unused), f"{{n}} splits are not read: {', '.join(unused)}")]
    if "test" not in parts:
        parts.update(split_images(parts["train"], fraction, origin, labelled).parts())
    return Loaded(ImageSplit(**parts), notes)


def _read_split(
    examples: Iterable[dict[str, Any]], origin: str, size: int | None
) -> tuple[UInt8[np.ndarray, "n height width channels"], list[int]]:
    pixels: list[np.ndarray] = []
    labels: list[int] = []
    for i, example in enumerate(examples):
        if missing := {"image", "label"} - example.keys():
            raise DataError(
                f"{origin}: expected the features image and label, got none named "
                f"{', '.join(sorted(missing))} among {', '.join(example)}."
            )
        image = np.asarray(example["image"])
        if image.ndim != 3 or image.shape[-1] not in (1, 3) or image.dtype != np.uint8:
            raise DataError(
                f"{origin}, image {i}: expected uint8 [height, width, 1 or 3], "
                f"got {image.shape} of {image.dtype}."
            )
        pixels.append(resize(image[None], size)[0])
        labels.append(int(np.asarray(example["label"])))
        if pixels[-1].shape != pixels[0].shape:
            raise DataError(
                f"{origin}: images differ, and `size` makes them of one size: image 0 has shape "
                f"{pixels[0].shape}, image {i} {pixels[-1].shape}."
            )
    if not pixels:
        raise DataError(f"{origin}: expected images, got none.")
    return np.stack(pixels), labels
