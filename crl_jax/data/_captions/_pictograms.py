"""Pictograms with names: a table, and arrays of drawings."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int32, UInt8

from .._archive import open_tree
from .._errors import DataError, Note
from .._images._decode import resize
from ._captioned import CaptionedImages, join_captions
from ._folder import read_rows

TABLE = "pairs.tsv"
_ROW = "_row"  # suffix of a column with row indices into an array of drawings
_TONE = "skin tone"


def read_pictograms(
    folder: Path, size: int | None, column: str, drawings: Sequence[str] | None
) -> tuple[CaptionedImages, list[Note]]:
    """Reads ``pairs.tsv`` with captions in ``column``, and the drawings that it refers to.

    A column ``NAME_row`` has the index of each pictogram in the array ``images`` of ``NAME.npz`` or
    ``NAME_….npz``, -1 if it has no drawing; ``drawings`` are the NAMEs to read, None reads all.

    Raises:
      DataError: If the table and the drawings are inconsistent.
    """
    path = folder / TABLE
    table = list(read_rows(path))
    header = table[0][1] if table else []
    for line, cells in table:
        if len(cells) != len(header):
            raise DataError(f"{path}:{line}: expected {len(header)} cells, got {len(cells)}.")
    lines = [line for line, _ in table[1:]]
    rows = [dict(zip(header, cells)) for _, cells in table[1:]]
    if not rows:
        raise DataError(f"{path}: expected a line for each pictogram, got none.")
    known = [name.removesuffix(_ROW) for name in header if name.endswith(_ROW)]
    wanted = known if drawings is None else list(drawings)
    if not wanted or not set(wanted) <= set(known):
        raise DataError(f"{path}:1: expected columns NAME{_ROW} of {wanted}, got those of {known}.")
    if column not in header:
        raise DataError(f"{path}:1: expected a column {column}, got {', '.join(header)}.")
    texts, groups = [row[column] for row in rows], _groups(rows)
    images, row_indices = [], []
    for name in wanted:
        pixels = _read_drawings(folder, name)
        index = _drawing_index(path, lines, [row[name + _ROW] for row in rows], len(pixels))
        images.append(resize(pixels[index[index >= 0]], size))
        row_indices.append(np.flatnonzero(index >= 0))
    shapes = {pixels.shape[1:] for pixels in images}
    if len(shapes) > 1:
        raise DataError(
            f"{folder}: drawings differ in size, got {sorted(shapes)}; set `size` to resize them."
        )
    row_of_image = np.concatenate(row_indices)
    for i in row_of_image:
        if not texts[i]:
            raise DataError(f"{path}:{lines[i]}: expected a text in {column}, got none.")
    all_images = np.concatenate(images)
    all_images.setflags(write=False)
    captions = [[texts[i]] for i in row_of_image]
    data = join_captions(all_images, captions, groups[row_of_image])
    n_missing = len(rows) - len(np.unique(row_of_image))
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
            rest = ", ".join(part for part in tail.split(", ") if not part.endswith(_TONE))
            name = f"{head}: {rest}" if rest and f"{head}: {rest}" in plain else head
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
    found = sorted(
        path for path in folder.glob("*.npz")
        if path.stem == name or path.stem.startswith(f"{name}_")
    )  # fmt: skip
    if len(found) != 1:
        raise DataError(
            f"{folder}: expected one file {name}.npz or {name}_….npz, got {len(found)}."
        )
    with open_tree(found[0]) as tree:
        if "images.npy" not in tree.sizes:
            raise DataError(f"{found[0]}: expected an array images, got {', '.join(tree.sizes)}.")
        try:
            pixels = np.load(tree.root / "images.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{found[0]}: array images is not readable ({error}).") from error
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[-1] not in (1, 3):
        raise DataError(
            f"{found[0]}: expected images uint8 [n, height, width, 1 or 3], "
            f"got {pixels.dtype} {list(pixels.shape)}."
        )
    return pixels
