"""Tables of tab-separated text, line by line, and lists of names."""

from collections.abc import Iterator
from pathlib import Path

from .._delimited import open_text
from .._errors import DataError


def rows_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and the cells of each line that is not blank.

    Raises:
      DataError: If the file is not UTF-8.
    """
    with open_text(path) as file:
        for line, text in enumerate(file, 1):
            if text.strip():
                yield line, [cell.strip() for cell in text.rstrip("\r\n").split("\t")]


def names_of(path: Path) -> dict[str, int]:
    """The names in the lines of a file, and where they stand.

    Raises:
      DataError: If a name stands there twice.
    """
    names: dict[str, int] = {}
    for line, cells in rows_of(path):
        name = "\t".join(cells)
        if name in names:
            raise DataError(f"{path}:{line}: expected each name once, got {name} again.")
        names[name] = line
    return names
