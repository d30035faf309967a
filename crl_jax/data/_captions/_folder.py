"""A folder of photographs with captions, and lists of the parts."""

from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from .._archive import open_store
from .._errors import DataError, Note
from .._images._decode import FORMATS, decode_all
from .._images._folders import list_files
from ._set import CaptionedImages, CaptionedImageSplit
from ._table import names_of, rows_of

TABLE = "captions.tsv"
_IMAGES = ("images", "images.zip", "images.tar", "images.tar.gz")
_PARTS = {
    "train": ("train.txt",),
    "valid": ("dev.txt", "valid.txt", "val.txt"),
    "test": ("test.txt",),
}


class Read(NamedTuple):
    """What a reader gives: a split, or all data in one, and what to warn of."""

    data: CaptionedImageSplit | CaptionedImages
    notes: list[Note]


def read_folder(folder: Path, size: int | None) -> Read:
    """Reads ``captions.tsv``, the images beside it, and the lists of parts if there are any.

    Raises:
      DataError: If images, captions and lists do not fit together.
    """
    place = next((folder / name for name in _IMAGES if (folder / name).exists()), None)
    if place is None:
        raise DataError(f"{folder}: expected one of {', '.join(_IMAGES)} beside {TABLE}, got none.")
    with open_store(place) as store:
        listed = list_files(store)
        captions = _captions(folder / TABLE, _by_name(listed.images), place)
        images = decode_all(store, list(captions), size)
    notes = [
        listed.hidden_note(),
        listed.others_note(),
        Note(len(listed.images) - len(captions), "{n} images have no caption and are left out"),
    ]
    images.setflags(write=False)
    of_text = np.repeat(np.arange(len(captions)), [len(own) for own in captions.values()])
    texts = tuple(text for own in captions.values() for text in own)
    data = CaptionedImages(images, texts, of_text.astype(np.int32))
    parts = _parts(folder, _by_name(list(captions)))
    if not parts:
        return Read(data, notes)
    number = {name: i for i, name in enumerate(captions)}
    chosen = {part: np.array([number[name] for name in names]) for part, names in parts.items()}
    n_left = len(captions) - sum(map(len, chosen.values()))
    notes.append(Note(n_left, "{n} images are in none of the lists of parts and are left out"))
    return Read(
        CaptionedImageSplit(**{part: data.take(own) for part, own in chosen.items()}), notes
    )


def _by_name(paths: list[str]) -> dict[str, str]:
    """The path of each image by its name, and by the path itself."""
    names: dict[str, list[str]] = {}
    for path in paths:
        names.setdefault(path.rpartition("/")[2], []).append(path)
    alone = {name: found[0] for name, found in names.items() if len(found) == 1}
    return {**alone, **{path: path for path in paths}}


def _captions(table: Path, by_name: dict[str, str], place: Path) -> dict[str, list[str]]:
    """The captions of each image, in the order of the table."""
    captions: dict[str, list[str]] = {}
    for line, (name, *texts) in rows_of(table):
        if line == 1 and PurePosixPath(name).suffix.lower() not in FORMATS:
            continue  # the names of columns
        if name not in by_name:
            raise DataError(f"{table}:{line}: expected an image in {place}, got {name!r:.100}.")
        texts = [text for text in texts if text]
        if not texts:
            raise DataError(f"{table}:{line}: expected a name, a tab and captions, got no caption.")
        captions.setdefault(by_name[name], []).extend(texts)
    if not captions:
        raise DataError(f"{table}: expected a line for each image, got none.")
    return captions


def _parts(folder: Path, by_name: dict[str, str]) -> dict[str, list[str]]:
    """The images of each part, in the order of its list; none without lists."""
    found = {
        part: folder / name for part, names in _PARTS.items() for name in names
        if (folder / name).exists()
    }  # fmt: skip
    if not found:
        return {}
    if missing := {"train", "test"} - found.keys():
        raise DataError(f"{folder}: expected train.txt and test.txt, got no {min(missing)}.txt.")
    parts: dict[str, list[str]] = {}
    taken: dict[str, Path] = {}
    for part, path in found.items():
        parts[part] = []
        for name, line in names_of(path).items():
            image = by_name.get(name)
            if image is None:
                raise DataError(
                    f"{path}:{line}: expected an image with a caption, got {name!r:.100}."
                )
            if image in taken:
                raise DataError(
                    f"{path}:{line}: expected each image once, got {name!r:.100}, which is in "
                    f"{taken[image].name}."
                )
            taken[image] = path
            parts[part].append(image)
    return parts
