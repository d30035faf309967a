"""Tables in text files: tab-separated, CSV, JSON lines, numbered lines and plain lines."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .._archive import Encoding, read_text
from .._errors import DataError, warn_about_blank_lines, warn_if

Column = str | int
_Rows = list[tuple[int, list[str]]]  # line numbers and cells

_NUMBERED = re.compile(r"(-?\d+)(?:\s+(.*))?", re.DOTALL)
_MAX_FIELD = 2**31 - 1
_EXPECTED = {
    "tab": "fields with tabs, as the first line has",
    "line": "a text without tabs, as the first line is",
    "blank": "fields with tabs, or a whole number, a blank and a text",
}


@dataclass(frozen=True)
class Table:
    """Cells of the non-blank lines of a file, without surrounding blanks.

    Separators are "tab", "comma" (or a semicolon), "json", "blank", and "line" for one column.
    """

    path: Path
    rows: _Rows
    names: list[str] | None
    separator: str

    @property
    def width(self) -> int:
        """Minimum number of cells of a row."""
        return len(self.names or min((row for _, row in self.rows), key=len, default=()))

    @property
    def columns(self) -> str:
        """Description of the columns for messages."""
        return ", ".join(self.names or [f"{self.width} columns"])

    def index(self, column: Column, description: str) -> int:
        """Returns the index of a column; raises ``DataError`` if there is none."""
        names = self.names or []
        if isinstance(column, str) and column in names:
            return names.index(column)
        if not isinstance(column, str) and 0 <= column < self.width:
            return column
        got = ", ".join(names or ["no names"])
        got = got if isinstance(column, str) else f"{self.width} columns"
        raise DataError(f"{self.path}: expected a column {column!r} of {description}, got {got}.")

    def column(self, column: Column, description: str) -> list[str]:
        """Returns the cells of a column; raises ``DataError`` if one is empty."""
        index = self.index(column, description)
        for line, row in self.rows:
            if not row[index]:
                raise DataError(f"{self.path}:{line}: expected {description}, got an empty field.")
        return [row[index] for _, row in self.rows]

    def drop_empty(self, column: Column, description: str) -> "Table":
        """Drops rows with an empty cell in a column; a warning counts them."""
        index = self.index(column, description)
        rows = [row for row in self.rows if row[1][index]]
        n_empty = len(self.rows) - len(rows)
        warn_if(n_empty, f"skipped {{n}} lines without {description}", origin=str(self.path))
        return replace(self, rows=rows)

    def find(
        self,
        requested: Sequence[Column | None],
        names: Sequence[Sequence[str]],
        positions: Sequence[int | None],
    ) -> list[Column | None]:
        """Returns columns as given, or by usual names without case and ``_``, or by position."""
        plain = {_plain(name): name for name in self.names or ()}
        by_name = [next((plain[x] for x in known if x in plain), None) for known in names]
        defaults = by_name if self.names else positions
        return [
            default if column is None else column
            for column, default in zip(requested, defaults, strict=True)
        ]


def read_table(
    path: Path,
    encoding: Encoding | None,
    known: Iterable[Sequence[str]],
    columns: Sequence[Column | None],
    labelled: bool | None = True,
) -> Table:
    """Reads a table, whose format is detected.

    Columns are separated by tabs if the first line has one, or else by commas or semicolons in a
    file ``.csv``, where fields may be quoted. A file ``.json`` or ``.jsonl`` has an object per
    line. Otherwise each line is an integer, a blank and a text. The first line is a header if its
    fields are distinct single words, of which one is known or asked for.

    ``known`` has the usual names of each column, and ``columns`` those that the user asks for, of
    which names may be in the header. There are two columns or more if ``labelled`` is True. With
    None, a ``.csv`` may have one column, and a line without tabs is a text if most lines do not
    start with an integer; with False, if one does not.
    """
    text = read_text(path, encoding)
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in (".json", ".jsonl"):
        return _json_table(path, text)
    lines = list(_lines(text.replace("\r\n", "\n")))
    if not lines:
        raise DataError(f"{path}: expected a text in each line, got none.")
    if "\t" in lines[0][1]:
        separator = "tab"
    elif suffix == ".csv":
        separator = "comma"
    else:
        n_numbered = sum(_NUMBERED.fullmatch(line.strip()) is not None for _, line in lines)
        # A slip in a file of numbered lines must not turn the others into texts.
        is_plain = n_numbered * (2 if labelled is None else 1) < len(lines)
        separator = "line" if is_plain and not labelled else "blank"
    if separator == "comma":
        rows = _split_csv(path, text, labelled)
    else:
        warn_about_blank_lines(lines[-1][0] - len(lines), path)
        rows = [(number, _split(path, number, line, separator)) for number, line in lines]
    header, words = rows[0][1], {_plain(x) for x in columns if x and isinstance(x, str)}
    if (
        not words.union(*known) & {_plain(name) for name in header}
        or not _are_words(header)
        or len(set(header)) < len(header)
    ):
        return Table(path, rows, None, separator)
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"{path}:{line}: expected {len(header)} fields, as the first line has, "
                f"got {len(row)}."
            )
    return Table(path, rows[1:], header, separator)


def refuse_unknown_header(table: Table, label: int) -> None:
    """Raises ``DataError`` if the first row looks like a header of unknown names.

    This is so if its fields are single words, and its label is the only one that occurs once.
    """
    if table.names or not table.rows or not _are_words(table.rows[0][1]):
        return
    line, first = table.rows[0]
    counts = Counter(row[label] for _, row in table.rows)
    if [name for name, n in counts.items() if n == 1] == [first[label]] and len(counts) > 1:
        raise DataError(
            f"{table.path}:{line}: cannot determine whether {', '.join(first)} is a header; set "
            "`text_col` and `label_col` to the names of columns, or to their positions if it is "
            "none."
        )


def _are_words(fields: Sequence[str]) -> bool:
    return all(re.fullmatch(r"\w+", field) for field in fields)


def _plain(name: str) -> str:
    """Lower case without punctuation."""
    return re.sub(r"[\W_]", "", name.lower())


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the number and content of each non-blank line."""
    return ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip())


def _split(path: Path, number: int, line: str, separator: str) -> list[str]:
    """Cells of a line without surrounding blanks."""
    cells = [cell.strip() for cell in line.split("\t")]
    if separator == "blank" and (match := _NUMBERED.fullmatch(line.strip())):
        return [match[1], match[2] or ""]
    if separator == "blank" or (len(cells) > 1) != (separator == "tab"):
        raise DataError(f"{path}:{number}: expected {_EXPECTED[separator]}, got {line!r:.60}.")
    return cells


def _split_csv(path: Path, text: str, labelled: bool | None) -> _Rows:
    """Splits CSV by semicolons if only these give two or more fields in every row, else commas."""
    rows, n_blank, error = _csv_rows(path, text, ",")
    widths = {len(row) for _, row in rows}
    if error or len(widths) > 1 or max(widths, default=0) < 2:
        other, other_n_blank, other_error = _csv_rows(path, text, ";")
        other_widths = {len(row) for _, row in other}
        if other_error is None and len(other_widths) == 1 and min(other_widths) > 1:
            warn_about_blank_lines(other_n_blank, path)
            return other
    if error:
        raise error
    if not rows:
        raise DataError(f"{path}: expected a text in each line, got none.")
    is_single = not labelled and len(rows[0][1]) == 1
    for line, row in rows:
        if is_single and len(row) > 1:
            raise DataError(
                f"{path}:{line}: expected one field, as the first line has, got {len(row)}; "
                "quote a text with commas."
            )
        if not is_single and len(row) < 2:
            raise DataError(f"{path}:{line}: expected two fields or more, got one.")
    warn_about_blank_lines(n_blank, path)
    return rows


def _csv_rows(path: Path, text: str, delimiter: str) -> tuple[_Rows, int, DataError | None]:
    """Parses CSV; returns rows, the number of blank ones between them, and an error at the end."""
    rows, n_blank, n_trailing_blank, line = [], 0, 0, 1
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    limit = csv.field_size_limit(_MAX_FIELD)  # global to the process, 131,072 characters by default
    try:
        for row in reader:
            cells = [field.strip() for field in row]
            if any(cells):
                rows.append((line, cells))
                n_blank, n_trailing_blank = n_blank + n_trailing_blank, 0
            else:
                n_trailing_blank += 1
            line = reader.line_num + 1
    except csv.Error as error:
        malformed = DataError(f"{path}:{line}: expected fields with commas, got {error}.")
        return rows, n_blank, malformed
    finally:
        csv.field_size_limit(limit)
    return rows, n_blank, None


def _json_table(path: Path, text: str) -> Table:
    rows, names = [], None
    for number, line in _lines(text):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: expected JSON, got {error}.") from None
        if not isinstance(row, dict) or (names is not None and row.keys() != set(names)):
            expected = ", ".join(names) if names else "names"
            raise DataError(f"{path}:{number}: expected an object of {expected}, got {line!r:.60}.")
        names = list(row) if names is None else names
        cells = ["" if row[name] is None else str(row[name]).strip() for name in names]
        try:
            "".join(cells).encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{path}:{number}: expected Unicode text, got a lone surrogate in {line!r:.60}."
            ) from None
        rows.append((number, cells))
    if names is None:
        raise DataError(f"{path}: expected an object in each line, got none.")
    return Table(path, rows, names, "json")
