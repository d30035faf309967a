"""Folders of images with a table of captions and lists of parts."""

import io
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from .._archive import open_tree, read_text
from .._errors import DataError, Note
from .._images._decode import decode_images
from .._images._folders import list_images
from ._captioned import CaptionedImages, CaptionedImageSplit, join_captions

TABLE = "captions.tsv"
_IMAGES = ("images", "images.zip", "images.tar", "images.tar.gz")
_PARTS = {
    "train": ("train.txt",),
    "valid": ("dev.txt", "valid.txt", "val.txt"),
    "test": ("test.txt",),
}


def read_folder(
    folder: Path, size: int | None
) -> tuple[CaptionedImageSplit | CaptionedImages, list[Note]]:
    """Reads ``captions.tsv``, the images next to it, and optional lists of parts.

    Raises:
      DataError: If images, captions and lists are inconsistent.
    """
    source = next((folder / name for name in _IMAGES if (folder / name).exists()), None)
    if source is None:
        raise DataError(f"{folder}: expected {TABLE} and one of {', '.join(_IMAGES)}, got none.")
    with open_tree(source) as tree:
        names, notes = list_images(tree)
        captions = _read_captions(folder / TABLE, names, source)
        images = decode_images(tree, list(captions), size)
    images.setflags(write=False)
    notes.append(Note(len(names) - len(captions), "skipped {n} images without a caption"))
    data = join_captions(images, list(captions.values()))
    parts = _read_parts(folder, list(captions), source)
    if not parts:
        return data, notes
    n_unlisted = len(captions) - sum(map(len, parts.values()))
    notes.append(Note(n_unlisted, "skipped {n} images that are in no list of a part"))
    row = {name: i for i, name in enumerate(captions)}
    split = {part: data.take([row[name] for name in names]) for part, names in parts.items()}
    return CaptionedImageSplit(**split), notes


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the tab-separated, stripped cells of each non-blank line."""
    for line, text in enumerate(io.StringIO(read_text(path), newline=None), 1):
        if text.strip():
            yield line, [cell.strip() for cell in text.split("\t")]


def _lookup(paths: list[str], source: Path) -> Callable[[str], str | None]:
    """Returns the lookup of images by name, or by path: of either folder above, or absolute."""
    n_named = Counter(path.rpartition("/")[2] for path in paths)
    known = {path.rpartition("/")[2]: path for path in paths}
    known = {name: path for name, path in known.items() if n_named[name] == 1}
    known |= {path: path for path in paths}
    prefixes = [f"{source.name}/", f"{source}/", f"{source.resolve()}/"]

    def find(name: str) -> str | None:
        plain = PurePosixPath(name).as_posix()  # drops "./"
        candidates = [name, plain, *(plain.removeprefix(prefix) for prefix in prefixes)]
        return next((known[x] for x in candidates if x in known), None)

    return find


def _read_captions(table: Path, images: list[str], source: Path) -> dict[str, list[str]]:
    """Reads the captions of each image, in the order of the table."""
    find = _lookup(images, source)
    captions: dict[str, list[str]] = {}
    for i, (line, (name, *texts)) in enumerate(read_rows(table)):
        if i == 0 and not PurePosixPath(name).suffix:  # a header
            continue
        image = find(name)
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
    find = _lookup(images, source)
    parts: dict[str, list[str]] = {}
    file_of_image: dict[str, Path] = {}
    for part, path in files.items():
        parts[part], seen = [], set()
        for line, cells in read_rows(path):
            name = "\t".join(cells)
            if name in seen:
                raise DataError(f"{path}:{line}: expected each name once, got {name} again.")
            seen.add(name)
            image = find(name)
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
        if not seen:
            raise DataError(f"{path}: expected a name of an image in each line, got none.")
    return parts
