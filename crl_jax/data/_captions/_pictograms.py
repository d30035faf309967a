"""Pictograms with their names: drawings in arrays, and a table of what they show."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int32, UInt8

from .._archive import open_store
from .._errors import DataError, Note
from .._images._resize import resized
from ._folder import Read
from ._set import CaptionedImages
from ._table import rows_of

TABLE = "pairs.tsv"
_ROW = "_row"  # ends the name of a column with places in a file of drawings
_LARGEST = 4 << 30
_TONE = "skin tone"


def read_pictograms(
    folder: Path, size: int | None, column: str, drawings: Sequence[str] | None
) -> Read:
    """Reads ``pairs.tsv`` and the drawings that it refers to.

    Each column ``NAME_row`` gives the places of the pictograms in ``NAME.npz`` or ``NAME_….npz``,
    which holds an array ``images``; -1 for those that were not drawn.

    Args:
      folder: Where they are.
      size: The side of the squares that all become; None leaves them as they are.
      column: Which column has the texts.
      drawings: Which NAMEs are read; None for all.

    Raises:
      DataError: If the table and the drawings do not fit together.
    """
    path = folder / TABLE
    header, lines, rows = _table(path)
    known = [name.removesuffix(_ROW) for name in header if name.endswith(_ROW)]
    wanted = known if drawings is None else list(drawings)
    if not wanted or not set(wanted) <= set(known):
        raise DataError(f"{path}:1: expected columns NAME{_ROW} of {wanted}, got those of {known}.")
    if column not in header:
        raise DataError(f"{path}:1: expected a column {column}, got {', '.join(header)}.")
    texts, groups = [row[column] for row in rows], _groups(rows)
    images, of_row = [], []
    for name in wanted:
        drawn = _drawings(folder, name)
        at = _places(path, lines, [row[name + _ROW] for row in rows], len(drawn))
        images.append(resized(drawn[at[at >= 0]], size))
        of_row.append(np.flatnonzero(at >= 0))
    shapes = {pixels.shape[1:] for pixels in images}
    if len(shapes) > 1:
        raise DataError(
            f"Drawings differ in size, and `size` makes them one: got {sorted(shapes)} in {folder}."
        )
    row_of = np.concatenate(of_row)
    for i in row_of:
        if not texts[i]:
            raise DataError(f"{path}:{lines[i]}: expected a text in {column}, got none.")
    all_images = np.concatenate(images)
    all_images.setflags(write=False)
    data = CaptionedImages(
        all_images, tuple(texts[i] for i in row_of),
        np.arange(len(row_of), dtype=np.int32), groups[row_of],
    )  # fmt: skip
    undrawn = len(rows) - len(np.unique(row_of))
    return Read(data, [Note(undrawn, "{n} pictograms have no drawing and are left out")])


def _table(path: Path) -> tuple[list[str], list[int], list[dict[str, str]]]:
    """The names of columns, and the lines and cells of all others."""
    header: list[str] = []
    lines: list[int] = []
    rows: list[dict[str, str]] = []
    for line, cells in rows_of(path):
        if not header:
            header = cells
            continue
        if len(cells) != len(header):
            raise DataError(f"{path}:{line}: expected {len(header)} cells, got {len(cells)}.")
        lines.append(line)
        rows.append(dict(zip(header, cells)))
    if not rows:
        raise DataError(f"{path}: expected a line for each pictogram, got none.")
    return header, lines, rows


def _groups(rows: list[dict[str, str]]) -> Int32[np.ndarray, " n"]:
    """One number for a pictogram and its variants by skin tone; without them each its own.

    A variant is called by the name of what it varies, a colon, and tones: "kiss: woman, man, light
    skin tone". Where there is no "kiss: woman, man", it varies "kiss".
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


def _places(path: Path, lines: list[int], cells: list[str], n: int) -> Int32[np.ndarray, " n"]:
    """Where each pictogram is drawn."""
    places = np.empty(len(cells), np.int32)
    for i, (line, cell) in enumerate(zip(lines, cells)):
        whole = cell.removeprefix("-").isdecimal() and len(cell) < 10
        if not whole or not -1 <= int(cell) < n:
            raise DataError(
                f"{path}:{line}: expected a place in [-1, {n}) of a drawing, got {cell!r:.50}."
            )
        places[i] = int(cell)
    return places


def _drawings(folder: Path, name: str) -> UInt8[np.ndarray, "n height width channels"]:
    """The array ``images`` of the one file of a name."""
    found = sorted(
        path for path in folder.glob("*.npz")
        if path.stem == name or path.stem.startswith(f"{name}_")
    )  # fmt: skip
    if len(found) != 1:
        raise DataError(
            f"{folder}: expected one file {name}.npz or {name}_….npz, got {len(found)}."
        )
    with open_store(found[0]) as store:
        if "images.npy" not in store.sizes:
            raise DataError(f"{found[0]}: expected an array images, got {', '.join(store.sizes)}.")
        content = store.read("images.npy", _LARGEST)
    try:
        pixels = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"{found[0]}: expected an array images, not readable ({error}).") from error
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[-1] not in (1, 3):
        raise DataError(
            f"{found[0]}: expected images uint8 [n, height, width, 1 or 3], "
            f"got {pixels.dtype} {list(pixels.shape)}."
        )
    return pixels
