"""Text files: decompression, blocks of lines, delimited rows, JSON lines and lists of items.

A file is opened once and read forward, so that pipes are read like other files. Blocks of regular
lines are parsed by polars. Quotes, blank lines and malformed lines are left to the ``csv`` module,
which knows the number of each line.
"""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from .._checks import is_canonical_integer
from ._errors import DataError, shorten, warn_about_blank_lines, warn_if
from ._ids import IdEncoder
from ._records import RecordBuilder, Records
from ._values import canonical_integers

Progress = Callable[[Path, float], None]
"""``progress(path, fraction)``: fraction of a file's bytes that has been read, up to 1."""
ROWS_PER_BATCH = 1 << 9  # stays in the processor's cache; larger batches are measurably slower
_HEAD, _BLOCK = 1 << 16, 1 << 23  # bytes of the first block and of the others
_STEP = 1 << 16  # bytes between calls of the progress callback
_MAX_FIELD = 1 << 27  # characters; the default of the csv module is 131,072

_COMPRESSED: dict[str, tuple[bytes, str, Callable[[Any], io.BufferedIOBase]]] = {
    ".gz": (b"\x1f\x8b", "gzip", lambda file: gzip.GzipFile(fileobj=file)),
    ".bz2": (b"BZh", "bzip2", bz2.BZ2File),
    ".xz": (b"\xfd7zXZ\0", "xz", lzma.LZMAFile),
}
_ZIP, _ZSTANDARD = b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
SUFFIXES = (*_COMPRESSED, ".zip")


@dataclass(frozen=True)
class Layout:
    """Syntax of a delimited file."""

    delimiter: str  # one character, or "::"
    header: bool = True
    names: tuple[str, ...] | None = None  # without a header; by default positions, from "0"
    quote_char: str | None = None
    typed: bool = False  # whether the header has the form ``name:type`` of RecBole


class TextBlocks:
    """Text of one file as UTF-8 blocks of complete lines; the first one is ``head``."""

    def __init__(self, path: Path, stream: io.BufferedIOBase, encoding: str) -> None:
        self.path, self.n_lines, self.ends_with_newline = path, 0, True
        self._stream, self._encoding = stream, encoding
        self._text: TextIO | None = None
        if codecs.lookup(encoding).name not in ("utf-8", "utf-8-sig", "ascii"):
            self._text = io.TextIOWrapper(stream, encoding=encoding, newline="")  # pyright: ignore[reportArgumentType]
        self.head = self._read(_HEAD).removeprefix(codecs.BOM_UTF8)

    def __iter__(self) -> Iterator[bytes]:
        block = self.head
        while block:
            self.ends_with_newline = block.endswith((b"\n", b"\r"))
            yield block
            self.n_lines += block.count(b"\n")
            block = self._read(_BLOCK)

    def first_line(self) -> str:
        """First line that is not blank, without its line end; "" if there is none."""
        lines = io.StringIO(self.head.decode())
        return next((line.rstrip("\r\n") for line in lines if line.strip()), "")

    def take_row(self, layout: Layout) -> list[str]:
        """Removes the first row from the head and returns its fields."""
        lines = io.StringIO(self.head.decode(), newline="")
        row, self.n_lines = next(csv_rows(self.path, lines, layout), ([], 0))
        self.head = lines.read().encode() or self._read(_BLOCK)
        return row

    def _read(self, size: int) -> bytes:
        with _convert_read_errors(self.path):
            if self._text is not None:
                try:
                    return (self._text.read(size) + self._text.readline()).encode()
                except UnicodeError as error:
                    raise DataError(
                        f"{self.path}: expected text in {self._encoding}, got {error}."
                    ) from None
            block = self._stream.read(size)
            block += b"" if block.endswith(b"\n") else self._stream.readline()
            try:
                if not block.isascii():
                    block.decode()
            except UnicodeDecodeError as error:
                line = self.n_lines + block.count(b"\n", 0, error.start) + 1
                raise DataError(
                    f"{self.path}:{line}: expected UTF-8 text, got the byte "
                    f"{block[error.start]:#04x}; pass `encoding` if the file has another."
                ) from None
            return block


class _ProgressFile(io.FileIO):
    """File that reports the fraction of bytes read, at most a thousand times."""

    def __init__(self, path: Path, progress: Progress) -> None:
        super().__init__(path)
        self._path, self._progress = path, progress
        self._size, self._read, self._reported = path.stat().st_size, 0, 0.0

    def readinto(self, buffer: Any, /) -> int:
        n = super().readinto(memoryview(buffer)[:_STEP])
        self._read += n
        fraction = min(1.0, self._read / max(1, self._size))
        if fraction - self._reported >= 1e-3 or fraction == 1 > self._reported:
            self._reported = fraction
            self._progress(self._path, fraction)
        return n


@contextmanager
def open_blocks(path: Path, encoding: str, progress: Progress | None = None):
    """Opens a file as :class:`TextBlocks`, decompressed by its first bytes or its suffix."""
    with ExitStack() as stack:
        raw = io.FileIO(path) if progress is None else _ProgressFile(path, progress)
        file: Any = stack.enter_context(io.BufferedReader(raw))
        magic = file.peek(8)[:8]
        for suffix, (prefix, _, decompress) in _COMPRESSED.items():
            if magic.startswith(prefix) or path.suffix.lower() == suffix:
                file = stack.enter_context(decompress(file))
                break
        if magic.startswith(_ZIP):
            with _convert_read_errors(path):
                file = stack.enter_context(_open_zip_member(path, file))
        if magic.startswith(_ZSTANDARD):
            raise DataError(f"{path}: expected text, got a file compressed by zstd; unpack it.")
        yield TextBlocks(path, file, encoding)


def _open_zip_member(path: Path, file: io.BufferedIOBase) -> Any:
    if not file.seekable():
        raise DataError(f"{path}: expected text, got a zip archive in a pipe; unpack it.")
    archive = zipfile.ZipFile(file)
    names = [info.filename for info in archive.infolist() if not info.is_dir()]
    members = [name for name in names if not name.startswith(("__MACOSX/", "."))]
    if members and all(name.endswith(".npy") for name in members):
        raise DataError(
            f"{path}: expected text, got arrays of NumPy; pass them in memory, a sparse matrix "
            "with scipy.sparse.load_npz."
        )
    if len(members) != 1:
        raise DataError(f"{path}: expected a zip archive of one file, got {names[:20]}; unpack it.")
    return archive.open(members[0])


@contextmanager
def _convert_read_errors(path: Path) -> Iterator[None]:
    """Raises :class:`DataError` for a damaged compressed file."""
    try:
        yield
    except RuntimeError as error:  # an encrypted zip, or an unsupported compression method
        raise DataError(f"{path}: expected a zip archive that opens, got {error}.") from None
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile) as error:
        kind = _COMPRESSED.get(path.suffix.lower(), (b"", "compressed"))[1]
        raise DataError(f"{path}: expected a complete {kind} file, got {error}.") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise DataError(f"{path}: expected a complete bzip2 file, got {error}.") from None


def csv_rows(
    path: Path, lines: Iterable[str], layout: Layout, n_lines: int = 0
) -> Iterator[tuple[list[str], int]]:
    """Yields the fields of each row and its last line, where ``n_lines`` lines come before."""
    delimiter = layout.delimiter
    if len(delimiter) > 1:  # csv takes one character: the ASCII unit separator replaces it
        lines = (line.replace(layout.delimiter, "\x1f") for line in lines)
        delimiter = "\x1f"
    quotes = layout.quote_char is not None
    reader = csv.reader(
        lines,
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE,
        quotechar=layout.quote_char,
        strict=True,
        skipinitialspace=quotes,
    )
    limit = csv.field_size_limit(_MAX_FIELD)
    try:
        yield from zip(reader, iter(lambda: n_lines + reader.line_num, None))
    except csv.Error as error:
        raise DataError(
            f"{path}:{n_lines + reader.line_num}: expected delimited fields, got a line that "
            f"cannot be read ({error})."
        ) from None
    finally:
        csv.field_size_limit(limit)


def column_names(blocks: TextBlocks, layout: Layout) -> list[str]:
    """Column names of a delimited file, whose header is removed from ``blocks``."""
    if layout.names is not None:
        return list(layout.names)
    if not layout.header:
        row, _ = next(csv_rows(blocks.path, [blocks.first_line() + "\n"], layout))
        return [str(index) for index in range(len(row))]
    row = blocks.take_row(layout)
    if layout.typed:
        if not row or not all(":" in name for name in row):
            raise DataError(
                f"{blocks.path}:1: expected a header such as 'user_id:token', got "
                f"{[name for name in row if ':' not in name] or 'no name'}; if the separator is "
                "another, pass `delimiter`."
            )
        row = [name.split(":")[0] for name in row]
    return [name.strip() for name in row]


def read_delimited(
    blocks: TextBlocks,
    layout: Layout,
    width: int,
    indices: Mapping[str, int],
    builder: RecordBuilder,
) -> None:
    """Reads one interaction per line of ``width`` fields; errors give the line."""
    import polars as pl

    n_stripped = 0
    for frame, lines in read_frames(blocks, layout, width, indices):
        if layout.quote_char is not None:
            stripped = frame.select(pl.all().str.strip_chars_end(" "))
            n_stripped += sum((frame[role] != stripped[role]).sum() for role in ("user", "item"))
            frame = stripped
        builder.add(frame.to_dict(), lambda row, lines=lines: f"{blocks.path}:{lines[row]}")
    warn_if(n_stripped, "removed the blanks after {n} ids", origin=str(blocks.path))


def read_frames(
    blocks: TextBlocks, layout: Layout, width: int, indices: Mapping[str, int]
) -> Iterator[tuple[Any, Sequence[int]]]:
    """Yields DataFrames with a column of strings per name, and the line of each of their rows."""
    import polars as pl

    remaining = iter(blocks)
    for block in remaining:
        frame = parse_regular(block, layout, width)
        if frame is None:
            yield from _parse_irregular(chain([block], remaining), blocks, layout, width, indices)
            return
        frame = frame.select(pl.nth(index).alias(role) for role, index in indices.items())
        if layout.quote_char is not None:  # as the csv module does
            frame = frame.select(pl.all().str.strip_chars_start(" "))
        yield frame, range(blocks.n_lines + 1, blocks.n_lines + 1 + len(frame))


def parse_regular(block: bytes, layout: Layout, width: int) -> Any:
    """Parses lines of ``width`` fields without quotes as a DataFrame of strings, or None."""
    import polars as pl

    if layout.quote_char is not None and layout.quote_char.encode() in block:
        return None
    block = block.replace(b"\r\n", b"\n")
    separator = layout.delimiter.encode()
    if b"\r" in block or b"\0" in block or b"\x1f" in block:
        return None
    if len(separator) > 1:
        block, separator = block.replace(separator, b"\x1f"), b"\x1f"
    n_rows = block.count(b"\n") + (not block.endswith(b"\n"))
    # polars refuses lines with more fields, so that none has fewer if the total is right.
    if block.count(separator) != n_rows * (width - 1):
        return None
    try:
        frame = pl.read_csv(
            block,
            has_header=False,
            infer_schema=False,
            quote_char=None,
            separator=separator.decode(),
        )
    except pl.exceptions.PolarsError:
        return None
    return frame.fill_null("") if frame.shape == (n_rows, width) else None


def _parse_irregular(
    remaining: Iterator[bytes],
    blocks: TextBlocks,
    layout: Layout,
    width: int,
    indices: Mapping[str, int],
) -> Iterator[tuple[Any, list[int]]]:
    """Parses the blocks that remain by the csv module; counts blank lines and rows in quotes."""
    import polars as pl

    path = blocks.path
    texts = chain.from_iterable(io.StringIO(block.decode(), newline="") for block in remaining)
    rows = csv_rows(path, texts, layout, last := blocks.n_lines)
    n_blank = n_trailing_blank = n_rows_in_quotes = 0
    while batch := list(islice(rows, ROWS_PER_BATCH)):
        regular: list[list[str]] = []
        lines: list[int] = []
        for row, line in batch:
            previous, last = last, line
            if len(row) != width:
                if len(row) <= 1 and not "".join(row).strip():
                    n_trailing_blank += 1
                    continue
                raise DataError(
                    f"{path}:{line}: expected {width} fields separated by "
                    f"{layout.delimiter!r}, got {len(row)}."
                )
            n_blank, n_trailing_blank = n_blank + n_trailing_blank, 0
            if line - previous > 1:
                inner = chain.from_iterable(field.splitlines()[1:] for field in row)
                n_rows_in_quotes += sum(x.count(layout.delimiter) == width - 1 for x in inner)
            regular.append(row)
            lines.append(line)
        if regular:
            fields = [*zip(*regular, strict=True)]
            yield pl.DataFrame({role: fields[index] for role, index in indices.items()}), lines
    warn_about_blank_lines(n_blank, path)
    warn_if(
        n_rows_in_quotes,
        "{n} lines within quotes look like rows; if quotes are part of the text, "
        'pass `quote_char` = ""',
        origin=str(path),
    )


def read_json_lines(blocks: TextBlocks, names: Mapping[str, str], builder: RecordBuilder) -> None:
    """Reads one JSON object per line; raises :class:`DataError` with the line."""
    for block in blocks:
        rows, lines = [], []
        for line, text in enumerate(block.split(b"\n"), blocks.n_lines + 1):
            if text.strip():
                rows.append(parse_json(text, f"{blocks.path}:{line}"))
                lines.append(line)
        builder.add(
            {role: [row.get(name) for row in rows] for role, name in names.items()},
            lambda row, lines=lines: f"{blocks.path}:{lines[row]}",
        )


def parse_json(text: bytes | str, where: str) -> dict[str, Any]:
    """Parses a JSON object; raises :class:`DataError`."""
    try:
        row = json.loads(text)
    except ValueError as error:
        raise DataError(
            f"{where}: expected a JSON object, got {shorten(text)} ({error})."
        ) from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object in each line, got {shorten(row)}.")
    return row


def read_lists(blocks: TextBlocks) -> Records:
    """Reads LightGCN's ``user item item ...`` lines; users without items keep their id."""
    import polars as pl

    users, items = IdEncoder(), IdEncoder()
    n_items: list[np.ndarray] = []  # of each line
    n_blank = n_trailing_blank = 0
    for block in blocks:
        text = block.decode().replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")
        lists = pl.Series(text.split("\n")).str.extract_all(r"\S+")
        sizes = lists.list.len().to_numpy().astype(np.int64)
        rows = np.flatnonzero(sizes)
        if len(rows):
            n_blank += n_trailing_blank + int(rows[-1]) + 1 - len(rows)
            n_trailing_blank = 0
        n_trailing_blank += len(sizes) - (int(rows[-1]) + 1 if len(rows) else 0)
        words = lists.explode().drop_nulls()
        starts = np.cumsum(sizes[rows]) - sizes[rows]
        ids = canonical_integers(words)
        if ids is None:
            ids = words  # integers beyond int64
            for index, word in enumerate(words.to_list()):
                if not is_canonical_integer(word):
                    row = rows[np.searchsorted(starts, index, side="right") - 1]
                    raise DataError(
                        f"{blocks.path}:{blocks.n_lines + row + 1}: expected non-negative "
                        f"integers 'user item item ...', got {shorten(word)}."
                    )
        users.add(ids[starts])
        items.add(ids[np.delete(np.arange(len(words)), starts)])
        n_items.append(sizes[rows] - 1)
    lengths = np.concatenate(n_items)
    user_names, codes = users.result()
    warn_about_blank_lines(n_blank, blocks.path)
    degrees = np.bincount(codes, weights=lengths, minlength=len(user_names))
    warn_if(int(np.sum(degrees == 0)), "{n} users have no items", origin=str(blocks.path))
    return Records(str(blocks.path), (user_names, np.repeat(codes, lengths)), items.result())
