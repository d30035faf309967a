"""Delimited text: columns read in bulk, and the exact line looked up when one is bad."""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np

from . import _ids
from ._columns import Found, Requested, find_columns
from ._errors import DataError, warn_if
from ._plain import read_plain
from ._records import Collector

Progress = Callable[[Path, float], None]
"""``progress(path, share)``: which share of a file's bytes has been read, up to 1."""
ROWS_AT_A_TIME = 1 << 9  # stays in the processor's cache; larger is measurably slower
_BLOCK = 1 << 17  # bytes of plain numbers that are read together


@dataclass(frozen=True)
class Layout:
    """How a delimited file is written.

    Attributes:
      delimiter: One character, or "::".
      header: Whether the first line has the names of the columns.
      names: The columns of a file without a header; by default their positions, from "0".
      quoted: Whether fields may stand in double quotes.
      typed: Whether the header says ``name:type``, as RecBole's does.
    """

    delimiter: str
    header: bool = True
    names: tuple[str, ...] | None = None
    quoted: bool = False
    typed: bool = False


def read_delimited(
    path: Path,
    layout: Layout,
    requested: Requested,
    into: Collector,
    progress: Progress | None = None,
) -> None:
    """Reads one interaction a line, and calls ``progress`` meanwhile.

    Raises:
      DataError: If a line has not as many fields as there are columns, an id is invalid or
        a number is not finite; the message gives the line.
    """
    names, columns = text_columns(path, layout, requested)

    def add(encoder: _ids.Encoder, text: Sequence[str], place: int) -> None:
        try:
            encoder.add(text)
        except _ids.InvalidId as error:
            _blame(path, layout, names, place, error.expected, error.name.__eq__)

    def numbers(
        fields: Sequence[Sequence[str]], place: int | None, parse: Callable[..., np.ndarray]
    ) -> np.ndarray | None:
        if place is None:
            return None
        try:
            return parse(fields[place])
        except ValueError:
            expected = "a finite number" + (" or an ISO date" if parse is parse_times else "")
            _blame(path, layout, names, place, expected, lambda x: not _fits(parse, x))

    with _told(path), _open_binary(path, progress) as content:
        n_lines, rest = _read_plain(content, layout, len(names), columns, into)
        for rows in _chunks(path, rest, n_lines, layout, len(names)):
            fields = list(zip(*rows, strict=True))
            add(into.users, fields[columns.user], columns.user)
            add(into.items, fields[columns.item], columns.item)
            into.add_numbers(
                numbers(fields, columns.rating, parse_ratings),
                numbers(fields, columns.time, parse_times),
            )


def _read_plain(
    content: io.BufferedIOBase, layout: Layout, width: int, columns: Found, into: Collector
) -> tuple[int, io.BufferedIOBase]:
    """Reads lines as long as they are plain numbers; how many that were, and what is left."""
    n_lines = 0
    if layout.header:
        head = content.readline()
        if b'"' in head or b"\r" in head.removesuffix(b"\r\n"):
            return 0, _after(head, content)
        n_lines = 1
    while block := content.read(_BLOCK):
        block += content.readline()
        complete = block if block.endswith(b"\n") else block + b"\n"
        found = read_plain(complete, layout.delimiter, width, columns)
        if found is None:
            return n_lines, _after(block, content)
        into.users.add_integers(found.users)
        into.items.add_integers(found.items)
        into.add_numbers(found.ratings, found.timestamps)
        n_lines += len(found.users)
    return n_lines, io.BytesIO()


class _Joined(io.RawIOBase):
    """Bytes that were read already, and then the rest of their file."""

    def __init__(self, head: bytes, rest: io.BufferedIOBase) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if self._head:
            n = min(len(buffer), len(self._head))
            buffer[:n], self._head = self._head[:n], self._head[n:]
            return n
        content = self._rest.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def _after(head: bytes, rest: io.BufferedIOBase) -> io.BufferedIOBase:
    return io.BufferedReader(_Joined(head, rest), _BLOCK)


def text_columns(path: Path, layout: Layout, requested: Requested) -> tuple[list[str], Found]:
    """The names of all columns, and which of them are read."""
    where = f"{path}:1" if layout.header else str(path)
    if not layout.header and layout.names is None:
        where += ", whose columns have no names"
    names = _column_names(path, layout)
    return names, find_columns(names, requested, where)


def parse_ratings(text: Sequence[str]) -> np.ndarray:
    """Finite float32 numbers; ValueError where one is not."""
    _only_plain(text)
    with np.errstate(over="ignore"):
        values = np.fromiter(map(float, text), np.float64, len(text)).astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError
    return values


def parse_times(text: Sequence[str]) -> np.ndarray:
    """Finite int64 numbers, or float64 if one is no whole number; ValueError where one is neither.

    A date of ISO 8601 counts as its seconds since 1970; without a time zone it is UTC.
    """
    _only_plain(text)
    try:
        return np.fromiter(map(int, text), np.int64, len(text))
    except (ValueError, OverflowError):
        values = np.fromiter(map(_seconds, text), np.float64, len(text))
    if not np.isfinite(values).all():
        raise ValueError
    return values


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        ctx = datetime.fromisoformat(text)
        return (ctx if ctx.tzinfo else ctx.replace(tzinfo=UTC)).timestamp()


def _only_plain(text: Sequence[str]) -> None:
    # Python's own parsers also take "1_000" and the digits of other scripts.
    joined = "".join(text)
    if "_" in joined or not joined.isascii():
        raise ValueError


def _fits(parse: Callable[..., np.ndarray], text: str) -> bool:
    try:
        parse([text])
    except ValueError:
        return False
    return True


@contextmanager
def open_text(
    path: Path, newline: str | None = None, progress: Progress | None = None
) -> Iterator[TextIO]:
    """Opens UTF-8 text, gzipped where the name ends in ".gz"; a byte order mark is skipped.

    Args:
      path: The file.
      newline: As for :func:`open`.
      progress: Called while the file is read.

    Raises:
      DataError: While reading, if the bytes are not UTF-8 or not a complete gzip file.
    """
    with (
        _told(path),
        _open_binary(path, progress) as content,
        io.TextIOWrapper(content, encoding="utf-8-sig", newline=newline) as file,  # pyright: ignore[reportArgumentType]
    ):
        yield file


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Bytes that cannot be read as a DataError."""
    try:
        try:
            yield
        except UnicodeDecodeError:
            line, byte = _undecodable(path)  # which may meet the end of the archive
            raise DataError(
                f"{path}:{line}: expected UTF-8 text, got the byte {byte:#04x}."
            ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: expected a complete gzip file, got {error}.") from None


def last_character(path: Path) -> str:
    """The last character of a text file, "" if it has none."""
    if path.suffix != ".gz":
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 1))
            return file.read().decode("latin-1")
    last = ""
    with open_text(path, newline="") as file:
        while block := file.read(1 << 20):
            last = block[-1]
    return last


def warn_of_blank_lines(count: int, path: Path) -> None:
    """Warns of blank lines with data after them; those at the end mean nothing."""
    warn_if(count, "skipped {n} blank lines between the others", of=str(path))


class _Watched(io.FileIO):
    """A file that tells which share of it has been read, a thousand times at most."""

    def __init__(self, path: Path, progress: Progress) -> None:
        super().__init__(path)
        self._path, self._progress = path, progress
        self._size, self._read, self._told = path.stat().st_size, 0, 0.0

    def readinto(self, buffer: Any, /) -> int:
        n = super().readinto(buffer)
        self._read += n
        share = min(1.0, self._read / max(1, self._size))
        if share - self._told >= 1e-3 or share == 1 > self._told:
            self._told = share
            self._progress(self._path, share)
        return n


@contextmanager
def _open_binary(path: Path, progress: Progress | None = None) -> Iterator[io.BufferedIOBase]:
    raw = io.FileIO(path) if progress is None else _Watched(path, progress)
    with io.BufferedReader(raw) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=file) as unzipped:
                yield unzipped
        else:
            yield file


def _csv_reader(file: Iterable[str], layout: Layout):
    lines, delimiter = file, layout.delimiter
    if len(delimiter) > 1:  # csv takes one character: the ASCII unit separator stands in
        lines, delimiter = (line.replace(layout.delimiter, "\x1f") for line in file), "\x1f"
    quoting = csv.QUOTE_MINIMAL if layout.quoted else csv.QUOTE_NONE
    return csv.reader(
        lines, delimiter=delimiter, quoting=quoting, strict=True, skipinitialspace=layout.quoted
    )


@contextmanager
def _rows(path: Path, layout: Layout):
    """The file's csv reader, whose errors name the line."""
    with open_text(path, newline="") as file, _naming_lines(path, file, layout) as reader:
        yield reader


@contextmanager
def _naming_lines(path: Path, file: Iterable[str], layout: Layout, n_lines: int = 0):
    """A csv reader, whose errors name the line; ``n_lines`` of the file stand before."""
    reader = _csv_reader(file, layout)
    try:
        yield reader
    except csv.Error as error:
        raise DataError(
            f"{path}:{n_lines + reader.line_num}: expected fields separated by "
            f"{layout.delimiter!r}, got a line that cannot be read ({error})."
        ) from None


def first_row(path: Path, layout: Layout) -> list[str]:
    """The fields of the first line, which is not blank where it is data."""
    with _rows(path, layout) as reader:
        row = next((row for row in reader if layout.header or not _is_blank(row)), None)
    if row is None:
        raise DataError(f"{path}: expected interactions, got an empty file.")
    return row


def _column_names(path: Path, layout: Layout) -> list[str]:
    first = first_row(path, layout)
    if layout.names is not None:
        return list(layout.names)
    if not layout.header:
        return [str(place) for place in range(len(first))]
    if layout.typed:
        untyped = [name for name in first if ":" not in name]
        if untyped or not first:
            raise DataError(
                f"{path}:1: expected a header such as 'user_id:token', got {first or 'no name'}."
            )
        first = [name.split(":")[0] for name in first]
    return [name.strip() for name in first]


def _chunks(
    path: Path, content: io.BufferedIOBase, n_lines: int, layout: Layout, width: int
) -> Iterator[list[list[str]]]:
    """Rows of ``width`` fields, without the header and blank lines.

    ``content`` is what comes after the first ``n_lines`` lines.
    """
    blank = blank_at_end = 0
    with (
        io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as file,  # pyright: ignore[reportArgumentType]
        _naming_lines(path, file, layout, n_lines) as reader,
    ):
        if layout.header and not n_lines:
            next(reader)
        while rows := list(islice(reader, ROWS_AT_A_TIME)):
            if set(map(len, rows)) != {width}:
                kept = []
                for row in rows:
                    if _is_blank(row):
                        blank_at_end += 1
                        continue
                    blank, blank_at_end = blank + blank_at_end, 0
                    if len(row) != width:
                        _blame_width(path, layout, width)
                    kept.append(row)
                rows = kept
            else:
                blank, blank_at_end = blank + blank_at_end, 0
            if rows:
                yield rows
    warn_of_blank_lines(blank, path)


def _is_blank(row: Sequence[str]) -> bool:
    return len(row) <= 1 and not "".join(row).strip()


def _first_row(
    path: Path, layout: Layout, is_bad: Callable[[list[str]], bool]
) -> tuple[int, list[str]]:
    """The line number and the fields of the first row that is bad; reads the file again."""
    with _rows(path, layout) as reader:
        if layout.header:
            next(reader)
        for row in reader:
            if is_bad(row):
                return reader.line_num, row
    raise DataError(f"{path}: expected a file that nobody writes to, got one that changed.")


def _blame_width(path: Path, layout: Layout, width: int) -> NoReturn:
    line, row = _first_row(path, layout, lambda r: len(r) != width and not _is_blank(r))
    raise DataError(
        f"{path}:{line}: expected {width} fields separated by {layout.delimiter!r}, got {len(row)}."
    )


def _blame(
    path: Path,
    layout: Layout,
    names: Sequence[str],
    place: int,
    expected: str,
    is_bad: Callable[[str], bool],
) -> NoReturn:
    """Raises the error of the first field of a column that is bad."""
    line, row = _first_row(path, layout, lambda r: not _is_blank(r) and is_bad(r[place]))
    raise DataError(f"{path}:{line}: expected {expected} as {names[place]!r}, got {row[place]!r}.")


def _undecodable(path: Path) -> tuple[int, int]:
    """The line and the value of the first byte that is not UTF-8."""
    with _open_binary(path) as file:
        for line, content in enumerate(file, 1):
            try:
                content.decode("utf-8")
            except UnicodeDecodeError as error:
                return line, content[error.start]
    raise DataError(f"{path}: expected a file that nobody writes to, got one that changed.")
