"""The fields of a line, whichever way they are told apart."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from .._errors import DataError, warn_if

Encoding = Literal["utf-8", "latin-1"]
Single = Literal["never", "told", "asked"]
"""Whether rows may have a single field: never; where the file tells so; wherever it may be."""

_BLANK_SEPARATED = re.compile(r"(-?\d+)(?:\s+(.*))?", re.DOTALL)


def decoded(path: Path, encoding: Encoding | None) -> str:
    """What a file holds, without a mark of its order of bytes."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig" if encoding in (None, "utf-8") else "latin-1")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        if encoding is not None:
            byte = content[error.start]
            raise DataError(
                f"{path}:{line}: expected UTF-8 text, got the byte {byte:#04x}."
            ) from None
        warn_if(1, f"line {line} is not UTF-8, and the file was read as Latin-1", of=str(path))
        return content.decode("latin-1")


def is_single(kept: Sequence[tuple[int, str]], single: Single) -> bool:
    """Whether each of the lines is a text, and none begins with its class."""
    n = sum(_BLANK_SEPARATED.fullmatch(line.strip()) is not None for _, line in kept)
    # A slip in a file of numbered lines must not make texts of the others.
    return {"never": False, "told": 2 * n < len(kept), "asked": n < len(kept)}[single]


def whole(path: Path, number: int, line: str) -> list[str]:
    """A line that is a text."""
    if "\t" in line:
        raise DataError(
            f"{path}:{number}: expected a text without tabs, as the first line is, "
            f"got {line!r:.60}."
        )
    return [line.strip()]


def by_commas(path: Path, text: str, single: Single) -> tuple[list[list[str]], list[int]]:
    """The rows of a file ``.csv``, and where each begins."""
    rows, numbers = [], []
    reader, before = csv.reader(io.StringIO(text, newline=""), strict=True), 0
    try:
        for row in reader:
            if any(field.strip() for field in row):
                rows.append([field.strip() for field in row])
                numbers.append(before + 1)
            before = reader.line_num
    except csv.Error as error:
        raise DataError(f"{path}:{before + 1}: expected fields with commas, got {error}.") from None
    if not rows:
        raise DataError(f"{path}: expected a text in each line, got none.")
    if single != "never" and len(rows[0]) == 1:
        for row, number in zip(rows, numbers):
            if len(row) > 1:
                raise DataError(
                    f"{path}:{number}: expected one field, as the first line has, got {len(row)}; "
                    "a text with commas stands in quotes."
                )
    elif min(map(len, rows)) < 2:
        at = next(i for i, row in enumerate(rows) if len(row) < 2)
        raise DataError(f"{path}:{numbers[at]}: expected two fields or more, got one.")
    return rows, numbers


def by_tabs(path: Path, number: int, line: str) -> list[str]:
    """The fields between tabs."""
    if "\t" not in line:
        raise DataError(
            f"{path}:{number}: expected fields with tabs, as the first line has, got {line!r:.60}."
        )
    return [field.strip() for field in line.split("\t")]


def numbered(path: Path, number: int, line: str) -> list[str]:
    """A number, and the text behind it."""
    found = _BLANK_SEPARATED.fullmatch(line.strip())
    if found is None:
        raise DataError(
            f"{path}:{number}: expected fields with tabs, or a whole number, a blank and a text, "
            f"got {line!r:.60}."
        )
    return [found[1], found[2] or ""]
