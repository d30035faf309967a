"""Readers of folders: images with a table of captions, and pictograms with names."""

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

from .._archive import FileTree, fingerprint, open_tree, read_text
from .._errors import DataError, Note
from .._images._cache import decode_to_disk, source_name
from .._images._decode import decode_images, pillow_version, resize
from .._images._folders import list_images
from .._images._images import NO_LABEL, Images, ImageSplit, LoadedImages
from .._rows import DiskArray
from ._captioned import CaptionedImages, CaptionedImageSplit, join_captions

CAPTIONS = "captions.tsv"
PAIRS = "pairs.tsv"
_IMAGES = ("images", "images.zip", "images.tar", "images.tar.gz")
_PARTS = {
    "train": ("train.txt",),
    "valid": ("dev.txt", "valid.txt", "val.txt"),
    "test": ("test.txt",),
}
_ROW = "_row"  # suffix of a column with row indices into an array of drawings
_TONE = "skin tone"


def read_folder(
    folder: Path, size: int | None, cache: Path | None = None
) -> tuple[CaptionedImageSplit | CaptionedImages, list[Note]]:
    """Reads ``captions.tsv``, the images next to it, and optional lists of parts.

    Pixels remain in files below the folder ``cache`` unless it is None.
    """
    source = next((folder / name for name in _IMAGES if (folder / name).exists()), None)
    if source is None:
        raise DataError(f"{folder}: expected {CAPTIONS} and one of {', '.join(_IMAGES)}, got none.")
    with open_tree(source) as tree:
        names, notes = list_images(tree)
        captions = _read_captions(folder / CAPTIONS, names, source)
        if cache is None:
            images = decode_images(tree, list(captions), size)
        else:
            images = _decode_to_disk(tree, list(captions), size, source, cache)
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


def _decode_to_disk(
    tree: FileTree, names: list[str], size: int | None, source: Path, cache: Path
) -> DiskArray:
    def read(scratch: Path) -> LoadedImages:
        pixels = decode_images(tree, names, size, file=scratch / "images.npy")
        images = Images(pixels, np.full(len(names), NO_LABEL, np.int32), ())
        # The cache is one of image sets, whose parts are a training and a test part.
        return LoadedImages(ImageSplit(images, images.take(slice(1))), [])

    listed = hashlib.sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest()
    key = {"source": fingerprint(source), "names": listed, "pillow": pillow_version()}
    folder = cache / "captioned" / f"{source_name(source)}-size-{size}"
    images: Any = decode_to_disk(folder, key, read).split.train.images
    return images


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
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
    for i, (line, (name, *texts)) in enumerate(_rows(table)):
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
    path_by_image: dict[str, Path] = {}
    for part, path in files.items():
        parts[part], seen = [], set()
        for line, cells in _rows(path):
            name = "\t".join(cells)
            if name in seen:
                raise DataError(f"{path}:{line}: expected each name once, got {name} again.")
            seen.add(name)
            image = find(name)
            if image is None:
                raise DataError(
                    f"{path}:{line}: expected an image with a caption, got {name!r:.100}."
                )
            if image in path_by_image:
                raise DataError(
                    f"{path}:{line}: expected each image once, got {name!r:.100}, which is in "
                    f"{path_by_image[image].name}."
                )
            path_by_image[image] = path
            parts[part].append(image)
        if not seen:
            raise DataError(f"{path}: expected a name of an image in each line, got none.")
    return parts


def read_pictograms(
    folder: Path, size: int | None, column: str, drawings: Sequence[str] | None
) -> tuple[CaptionedImages, list[Note]]:
    """Reads ``pairs.tsv`` with captions in ``column``, and the drawings that it refers to.

    A column ``NAME_row`` has the index of each pictogram in the array ``images`` of ``NAME.npz`` or
    ``NAME_….npz``, -1 if it has no drawing; ``drawings`` are the NAMEs to read, None reads all.
    """
    path = folder / PAIRS
    table = list(_rows(path))
    header = table[0][1] if table else []
    for line, cells in table:
        if len(cells) != len(header):
            raise DataError(f"{path}:{line}: expected {len(header)} cells, got {len(cells)}.")
    lines = [line for line, _ in table[1:]]
    rows = [dict(zip(header, cells)) for _, cells in table[1:]]
    if not rows:
        raise DataError(f"{path}: expected a line for each pictogram, got none.")
    known = [name.removesuffix(_ROW) for name in header if name.endswith(_ROW)]
    selected = known if drawings is None else list(drawings)
    if not selected or not set(selected) <= set(known):
        raise DataError(
            f"{path}:1: expected columns NAME{_ROW} of {selected}, got those of {known}."
        )
    if column not in header:
        raise DataError(f"{path}:1: expected a column {column}, got {', '.join(header)}.")
    texts, groups = [row[column] for row in rows], _groups(rows)
    images, row_indices = [], []
    for name in selected:
        pixels = _read_drawings(folder, name)
        index = _drawing_index(path, lines, [row[name + _ROW] for row in rows], len(pixels))
        images.append(resize(pixels[index[index >= 0]], size))
        row_indices.append(np.flatnonzero(index >= 0))
    shapes = {pixels.shape[1:] for pixels in images}
    if len(shapes) > 1:
        raise DataError(
            f"{folder}: drawings differ in size, got {sorted(shapes)}; set `size` to resize them."
        )
    image_rows = np.concatenate(row_indices)
    for i in image_rows:
        if not texts[i]:
            raise DataError(f"{path}:{lines[i]}: expected a text in {column}, got none.")
    all_images = np.concatenate(images)
    all_images.setflags(write=False)
    captions = [[texts[i]] for i in image_rows]
    data = join_captions(all_images, captions, groups[image_rows])
    n_missing = len(rows) - len(np.unique(image_rows))
    return data, [Note(n_missing, "skipped {n} pictograms without a drawing")]


def _groups(rows: list[dict[str, str]]) -> Int32[np.ndarray, " n"]:
    """Assigns one group to a pictogram and its skin-tone variants.

    The name of a variant is that of its pictogram and the tones: "kiss: woman, man, light skin
    tone" is a variant of "kiss: woman, man" if the table has it, otherwise of "kiss".
    """
    if not {"label_en", "skin_variant"} <= rows[0].keys():
        return np.arange(len(rows), dtype=np.int32)
    plain = {row["label_en"] for row in rows if row["skin_variant"] != "1"}
    names = []
    for row in rows:
        name = row["label_en"]
        if row["skin_variant"] == "1":
            head, _, tail = name.partition(": ")
            suffix = ", ".join(part for part in tail.split(", ") if not part.endswith(_TONE))
            name = f"{head}: {suffix}" if suffix and f"{head}: {suffix}" in plain else head
        names.append(name)
    return np.unique(names, return_inverse=True)[1].astype(np.int32)


def _drawing_index(
    path: Path, lines: list[int], cells: list[str], n: int
) -> Int32[np.ndarray, " n"]:
    """Parses the column of row indices of the drawings."""
    index = np.empty(len(cells), np.int32)
    for i, (line, cell) in enumerate(zip(lines, cells)):
        is_integer = cell.removeprefix("-").isdecimal() and len(cell) < 10
        if not is_integer or not -1 <= int(cell) < n:
            raise DataError(
                f"{path}:{line}: expected an index of a drawing in [-1, {n}), got {cell!r:.50}."
            )
        index[i] = int(cell)
    return index


def _read_drawings(folder: Path, name: str) -> UInt8[np.ndarray, "n height width channels"]:
    """Reads the array ``images`` of the file of a name."""
    paths = sorted(
        path for path in folder.glob("*.npz")
        if path.stem == name or path.stem.startswith(f"{name}_")
    )  # fmt: skip
    if len(paths) != 1:
        raise DataError(
            f"{folder}: expected one file {name}.npz or {name}_….npz, got {len(paths)}."
        )
    with open_tree(paths[0]) as tree:
        if "images.npy" not in tree.sizes:
            raise DataError(f"{paths[0]}: expected an array images, got {', '.join(tree.sizes)}.")
        try:
            pixels = np.load(tree.root / "images.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{paths[0]}: array images is not readable ({error}).") from error
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[-1] not in (1, 3):
        raise DataError(
            f"{paths[0]}: expected images uint8 [n, height, width, 1 or 3], "
            f"got {pixels.dtype} {list(pixels.shape)}."
        )
    return pixels
