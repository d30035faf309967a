"""Tables in text files: tab-separated, CSV, JSON lines, numbered lines and plain lines."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._archive import Encoding, read_text
from .._errors import DataError, warn_if

Column = str | int

_NUMBERED = re.compile(r"(-?\d+)(?:\s+(.*))?", re.DOTALL)
_MAX_FIELD = 2**31 - 1


@dataclass(frozen=True)
class Table:
    """Cells of the non-blank lines of a file.

    Attributes:
      path: The file.
      rows: Cells of each row, without surrounding blanks.
      lines: Line number of each row, from 1.
      names: Column names, or None without a header.
      separator: "tab", "comma" (also for semicolons), "json", "blank", or "line" for one column.
    """

    path: Path
    rows: list[list[str]]
    lines: list[int]
    names: list[str] | None
    separator: str

    @property
    def width(self) -> int:
        """Minimum number of cells of a row."""
        return len(self.names) if self.names else min(map(len, self.rows), default=0)

    @property
    def columns(self) -> str:
        """Description of the columns for messages."""
        return ", ".join(self.names or [f"{self.width} columns"])

    def index(self, column: Column, what: str) -> int:
        """Returns the index of a column.

        Raises:
          DataError: If there is no such name or index.
        """
        if isinstance(column, str):
            if self.names is None or column not in self.names:
                there = ", ".join(self.names or ["no names"])
                raise DataError(
                    f"{self.path}: expected a column {column!r} of {what}, got {there}."
                )
            return self.names.index(column)
        if not 0 <= column < self.width:
            raise DataError(
                f"{self.path}: expected a column {column} of {what}, got {self.width} columns."
            )
        return column

    def column(self, column: Column, what: str) -> list[str]:
        """Returns the cells of a column.

        Raises:
          DataError: As in :meth:`index`, or if a cell is empty.
        """
        index = self.index(column, what)
        values = [row[index] for row in self.rows]
        for value, line in zip(values, self.lines, strict=True):
            if not value:
                raise DataError(f"{self.path}:{line}: expected {what}, got an empty field.")
        return values

    def drop_empty(self, column: Column, what: str) -> "Table":
        """Drops rows with an empty cell in a column; a warning counts them."""
        index = self.index(column, what)
        kept = [i for i, row in enumerate(self.rows) if row[index]]
        n_empty = len(self.rows) - len(kept)
        warn_if(n_empty, f"skipped {{n}} lines without {what}", of=str(self.path))
        return replace(self, rows=[self.rows[i] for i in kept], lines=[self.lines[i] for i in kept])

    def find(self, candidates: Sequence[str]) -> str | None:
        """Returns the first column with one of the names; case and ``_`` are ignored."""
        by_plain_name = {_plain(name): name for name in self.names or ()}
        return next((by_plain_name[x] for x in candidates if x in by_plain_name), None)


def read_table(
    path: Path,
    encoding: Encoding | None,
    known: Sequence[str],
    columns: Sequence[Column | None],
    labelled: bool | None = True,
) -> Table:
    """Reads a table, whose format is detected.

    Columns are separated by tabs if the first line has one, or else by commas or semicolons in a
    file ``.csv``, where fields may be quoted. A file ``.json`` or ``.jsonl`` has an object per
    line. Otherwise each line is an integer, a blank and a text. The first line is a header if its
    fields are distinct single words, of which one is known or asked for.

    Args:
      path: The file, possibly gzipped.
      encoding: See :func:`decode_text`.
      known: Usual column names.
      columns: Columns that the user asks for, of which names may be in the header.
      labelled: Whether there are at least two columns. With None, a ``.csv`` may have one column,
        and a line without tabs is a text if most lines do not start with an integer; with False,
        if one does not.

    Raises:
      DataError: If a line differs from the format of the others.
    """
    text = read_text(path, encoding)
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in (".json", ".jsonl"):
        return _json_table(path, text)
    all_lines = [line.removesuffix("\r") for line in text.split("\n")]
    kept = [(number, line) for number, line in enumerate(all_lines, 1) if line.strip()]
    if not kept:
        raise DataError(f"{path}: expected a text in each line, got none.")
    warn_if(kept[-1][0] - len(kept), "skipped {n} blank lines between the others", of=str(path))
    lines = [number for number, _ in kept]
    if "\t" in kept[0][1]:
        separator, rows = "tab", [_split_tabs(path, *line) for line in kept]
    elif suffix == ".csv":
        separator, (rows, lines) = "comma", _split_csv(path, text, labelled)
    elif _is_plain(kept, labelled):
        separator, rows = "line", [_whole_line(path, *line) for line in kept]
    else:
        separator, rows = "blank", [_split_number(path, *line) for line in kept]
    header_words = {*known, *(_plain(name) for name in columns if name and isinstance(name, str))}
    header = rows[0]
    if (
        not any(_plain(name) in header_words for name in header)
        or not _are_words(header)
        or len(set(header)) < len(header)
    ):
        return Table(path, rows, lines, None, separator)
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            raise DataError(
                f"{path}:{line}: expected {len(header)} fields, as the first line has, "
                f"got {len(row)}."
            )
    return Table(path, rows[1:], lines[1:], header, separator)


def refuse_unknown_header(table: Table, label: int) -> None:
    """Raises ``DataError`` if the first row looks like a header of unknown names.

    This is so if its fields are single words, and its label is the only one that occurs once.
    """
    if table.names or not table.rows or not _are_words(table.rows[0]):
        return
    counts = Counter(row[label] for row in table.rows)
    once = [name for name, n in counts.items() if n == 1]
    if once == [table.rows[0][label]] and len(counts) > 1:
        names = ", ".join(table.rows[0])
        raise DataError(
            f"{table.path}:{table.lines[0]}: cannot determine whether {names} is a header; set "
            "`text_col` and `label_col` to the names of columns, or to their positions if it is "
            "none."
        )


def _are_words(fields: Sequence[str]) -> bool:
    return all(re.fullmatch(r"\w+", field) for field in fields)


def _plain(name: str) -> str:
    """Lower case without punctuation."""
    return re.sub(r"[\W_]", "", name.lower())


def _is_plain(kept: Sequence[tuple[int, str]], labelled: bool | None) -> bool:
    """Whether lines are texts rather than an integer label and a text."""
    n_numbered = sum(_NUMBERED.fullmatch(line.strip()) is not None for _, line in kept)
    if labelled:
        return False
    # A slip in a file of numbered lines must not turn the others into texts.
    return 2 * n_numbered < len(kept) if labelled is None else n_numbered < len(kept)


def _whole_line(path: Path, number: int, line: str) -> list[str]:
    if "\t" in line:
        raise DataError(
            f"{path}:{number}: expected a text without tabs, as the first line is, "
            f"got {line!r:.60}."
        )
    return [line.strip()]


def _split_tabs(path: Path, number: int, line: str) -> list[str]:
    if "\t" not in line:
        raise DataError(
            f"{path}:{number}: expected fields with tabs, as the first line has, got {line!r:.60}."
        )
    return [field.strip() for field in line.split("\t")]


def _split_number(path: Path, number: int, line: str) -> list[str]:
    match = _NUMBERED.fullmatch(line.strip())
    if match is None:
        raise DataError(
            f"{path}:{number}: expected fields with tabs, or a whole number, a blank and a text, "
            f"got {line!r:.60}."
        )
    return [match[1], match[2] or ""]


def _split_csv(path: Path, text: str, labelled: bool | None) -> tuple[list[list[str]], list[int]]:
    """Splits CSV by semicolons if only these give two or more fields in every row, else commas."""
    rows, lines, error = _csv_rows(path, text, ",")
    if error or len(set(map(len, rows))) > 1 or max(map(len, rows), default=0) < 2:
        other, other_lines, other_error = _csv_rows(path, text, ";")
        widths = set(map(len, other))
        if other_error is None and len(widths) == 1 and min(widths) > 1:
            return other, other_lines
    if error:
        raise error
    if not rows:
        raise DataError(f"{path}: expected a text in each line, got none.")
    if not labelled and len(rows[0]) == 1:
        for row, line in zip(rows, lines):
            if len(row) > 1:
                raise DataError(
                    f"{path}:{line}: expected one field, as the first line has, got {len(row)}; "
                    "quote a text with commas."
                )
    elif min(map(len, rows)) < 2:
        line = next(line for row, line in zip(rows, lines) if len(row) < 2)
        raise DataError(f"{path}:{line}: expected two fields or more, got one.")
    return rows, lines


def _csv_rows(
    path: Path, text: str, delimiter: str
) -> tuple[list[list[str]], list[int], DataError | None]:
    """Parses CSV; returns the rows, their line numbers, and the error that ended parsing."""
    rows, lines, previous = [], [], 0
    with _unlimited_fields():
        reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
        try:
            for row in reader:
                if any(field.strip() for field in row):
                    rows.append([field.strip() for field in row])
                    lines.append(previous + 1)
                previous = reader.line_num
        except csv.Error as error:
            message = f"{path}:{previous + 1}: expected fields with commas, got {error}."
            return rows, lines, DataError(message)
    return rows, lines, None


@contextmanager
def _unlimited_fields() -> Iterator[None]:
    """Lifts the limit of 131,072 characters per field, which is global to the process."""
    limit = csv.field_size_limit(_MAX_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _json_table(path: Path, text: str) -> Table:
    objects: list[dict[str, Any]] = []
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: expected JSON, got {error}.") from None
        if not isinstance(row, dict) or (objects and row.keys() != objects[0].keys()):
            names = ", ".join(objects[0]) if objects else "names"
            raise DataError(f"{path}:{number}: expected an object of {names}, got {line!r:.60}.")
        objects.append(row)
        lines.append(number)
    if not objects:
        raise DataError(f"{path}: expected an object in each line, got none.")
    names = list(objects[0])
    cell: Callable[[Any], str] = lambda value: "" if value is None else str(value).strip()  # noqa: E731
    return Table(
        path, [[cell(row[name]) for name in names] for row in objects], lines, names, "json"
    )
