"""Images of TensorFlow Datasets."""

from pathlib import Path
from typing import Any

import numpy as np

from ..._optional import import_optional
from .._errors import DataError, Note
from .._rows import FileRows
from ._cache import decode_to_disk
from ._decode import resize
from ._images import ImageSplit, LoadedImages, Pixels, as_images, split_images

_SPLITS = {  # in ascending order of precedence
    "train": ("train",),
    "test": ("validation", "test"),
    "unlabelled": ("unlabeled", "unlabelled"),
}


def read_tfds_images(
    name: str,
    size: int | None,
    fraction: float | None,
    labelled: bool = True,
    folder: Path | None = None,
) -> LoadedImages:
    """Reads the features ``image`` and ``label`` of ``tensorflow_datasets.load(name)``.

    ``fraction`` of a dataset with neither ``test`` nor ``validation`` is sampled for testing.
    Images are cached in ``folder``, see :func:`decode_to_disk`, unless it is None.
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

    def read(scratch: Path | None) -> LoadedImages:
        arrays = {
            part: _read_split(tfds, splits[split], f"{origin}, {split}", size, scratch)
            for part, split in used.items()
        }
        highest = max((label for _, labels in arrays.values() for label in labels), default=-1)
        classes = tuple(map(str, range(1 + highest)) if names is None else names)
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
        return LoadedImages(ImageSplit(**parts), notes)

    return read(None) if folder is None else decode_to_disk(folder, {"set": info.full_name}, read)


def _read_split(
    tfds: Any, split: Any, origin: str, size: int | None, scratch: Path | None
) -> tuple[Pixels, list[int]]:
    """Reads images, to a new file in the folder ``scratch`` unless it is None, and labels."""
    pixels: Any = []
    labels: list[int] = []
    shape: tuple[int, ...] = ()
    for i, example in enumerate(tfds.as_numpy(split)):
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
        row = resize(image[None], size)
        if not labels:
            shape = row.shape[1:]
            if scratch is not None:
                file = scratch / f"{len(list(scratch.iterdir()))}.npy"
                pixels = FileRows(file, (len(split), *shape))
        elif row.shape[1:] != shape:
            raise DataError(
                f"{origin}: images differ, and `size` makes them of one size: image 0 has shape "
                f"{shape}, image {i} {row.shape[1:]}."
            )
        pixels.append(row)
        labels.append(int(np.asarray(example["label"])))
    if not labels:
        raise DataError(f"{origin}: expected images, got none.")
    return (np.concatenate(pixels) if scratch is None else pixels.close()), labels
