"""Folders of images with a table of captions and lists of parts."""

import io
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from .._archive import open_tree, read_text
from .._errors import DataError, Note
from .._images._decode import decode_images
from .._images._folders import list_images
from ._captioned import CaptionedImages, CaptionedImageSplit

TABLE = "captions.tsv"
_IMAGES = ("images", "images.zip", "images.tar", "images.tar.gz")
_PARTS = {
    "train": ("train.txt",),
    "valid": ("dev.txt", "valid.txt", "val.txt"),
    "test": ("test.txt",),
}


class Loaded(NamedTuple):
    """Data of a reader, split or not, and its warnings."""

    data: CaptionedImageSplit | CaptionedImages
    notes: list[Note]


def read_folder(folder: Path, size: int | None) -> Loaded:
    """Reads ``captions.tsv``, the images next to it, and optional lists of parts.

    Raises:
      DataError: If images, captions and lists are inconsistent.
    """
    source = next((folder / name for name in _IMAGES if (folder / name).exists()), None)
    if source is None:
        raise DataError(f"{folder}: expected {TABLE} and one of {', '.join(_IMAGES)}, got none.")
    with open_tree(source) as tree:
        listing = list_images(tree)
        captions = _read_captions(folder / TABLE, listing.images, source)
        images = decode_images(tree, list(captions), size)
    images.setflags(write=False)
    notes = [
        *listing.notes(),
        Note(len(listing.images) - len(captions), "skipped {n} images without a caption"),
    ]
    index = np.repeat(np.arange(len(captions)), [len(x) for x in captions.values()])
    texts = tuple(text for per_image in captions.values() for text in per_image)
    data = CaptionedImages(images, texts, index.astype(np.int32))
    parts = _read_parts(folder, list(captions), source)
    if not parts:
        return Loaded(data, notes)
    row = {name: i for i, name in enumerate(captions)}
    indices = {part: np.array([row[name] for name in names]) for part, names in parts.items()}
    n_unlisted = len(captions) - sum(map(len, indices.values()))
    notes.append(Note(n_unlisted, "skipped {n} images that are in no list of a part"))
    split = CaptionedImageSplit(**{part: data.take(index) for part, index in indices.items()})
    return Loaded(split, notes)


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the tab-separated, stripped cells of each non-blank line.

    Raises:
      DataError: If the file is not UTF-8.
    """
    for line, text in enumerate(io.StringIO(read_text(path), newline=None), 1):
        if text.strip():
            yield line, [cell.strip() for cell in text.split("\t")]


class _Names:
    """Lookup of images by name or path.

    A path may be relative to the folder of images or to its parent, or absolute.
    """

    def __init__(self, paths: list[str], source: Path) -> None:
        names: dict[str, list[str]] = {}
        for path in paths:
            names.setdefault(path.rpartition("/")[2], []).append(path)
        unique = {name: found[0] for name, found in names.items() if len(found) == 1}
        self._by_name = {**unique, **{path: path for path in paths}}
        self._prefixes = [f"{source.name}/", f"{source}/", f"{source.resolve()}/"]

    def get(self, name: str) -> str | None:
        plain = PurePosixPath(name).as_posix()  # drops "./"
        candidates = [name, plain, *(plain.removeprefix(prefix) for prefix in self._prefixes)]
        return next((self._by_name[x] for x in candidates if x in self._by_name), None)


def _read_captions(table: Path, images: list[str], source: Path) -> dict[str, list[str]]:
    """Reads the captions of each image, in the order of the table."""
    names = _Names(images, source)
    captions: dict[str, list[str]] = {}
    first = True
    for line, (name, *texts) in read_rows(table):
        is_header = first and not PurePosixPath(name).suffix
        first = False
        if is_header:
            continue
        image = names.get(name)
        if image is None:
            raise DataError(f"{table}:{line}: expected an image in {source}, got {name!r:.100}.")
        texts = [text for text in texts if text]
        if not texts:
            raise DataError(f"{table}:{line}: expected a name, a tab and captions, got no caption.")
        captions.setdefault(image, []).extend(texts)
    if not captions:
        raise DataError(f"{table}: expected a line for each image, got none.")
    return captions


def _read_parts(folder: Path, images: list[str], source: Path) -> dict[str, list[str]]:
    """Reads the images of each part in the order of its list; empty if there are no lists."""
    files = {
        part: folder / name for part, names in _PARTS.items() for name in names
        if (folder / name).exists()
    }  # fmt: skip
    if not files:
        return {}
    if missing := {"train", "test"} - files.keys():
        raise DataError(f"{folder}: expected train.txt and test.txt, got no {min(missing)}.txt.")
    names = _Names(images, source)
    parts: dict[str, list[str]] = {}
    file_of_image: dict[str, Path] = {}
    for part, path in files.items():
        parts[part] = []
        line_of_name: dict[str, int] = {}
        for line, cells in read_rows(path):
            name = "\t".join(cells)
            if name in line_of_name:
                raise DataError(f"{path}:{line}: expected each name once, got {name} again.")
            line_of_name[name] = line
            image = names.get(name)
            if image is None:
                raise DataError(
                    f"{path}:{line}: expected an image with a caption, got {name!r:.100}."
                )
            if image in file_of_image:
                raise DataError(
                    f"{path}:{line}: expected each image once, got {name!r:.100}, which is in "
                    f"{file_of_image[image].name}."
                )
            file_of_image[image] = path
            parts[part].append(image)
        if not parts[part]:
            raise DataError(f"{path}: expected a name of an image in each line, got none.")
    return parts
