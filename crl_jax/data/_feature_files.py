"""Reader of files of side features: delimited text with one user or item per line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from .._checks import check_choice
from ._delimited import Layout, TextBlocks, column_names, open_blocks, read_frames
from ._errors import DataError, shorten, warn_if
from ._features import FeatureTable
from ._ids import find_fault
from ._readers import check_file, check_text_options
from ._values import import_polars

FeatureKind = Literal["number", "bag", "ignore"]
"""Kind of a column: a number, a bag of categories, or ignored."""

_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary",
    "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi",
    "Thriller", "War", "Western",
)  # fmt: skip


class _FileFormat(NamedTuple):
    """Layout of a file of MovieLens, and the kinds of columns that would be misread."""

    layout: Layout
    kinds: dict[str, FeatureKind]


def _file_format(delimiter: str, *names: str, **kinds: FeatureKind) -> _FileFormat:
    return _FileFormat(Layout(delimiter, header=False, names=names), kinds)


_FILES = {
    "u.user": _file_format("|", "user", "age", "gender", "occupation", "zip", zip="ignore"),
    "u.item": _file_format(
        "|", "item", "title", "release_date", "video_release_date", "url", *_GENRES,
        title="ignore", video_release_date="ignore", url="ignore",
    ),
    "movies.dat": _file_format("::", "item", "title", "genres", title="ignore"),
    "users.dat": _file_format(
        "::", "user", "gender", "age", "occupation", "zip",
        age="bag", occupation="bag", zip="ignore",
    ),
}  # fmt: skip
_RECBOLE: dict[str, tuple[FeatureKind, str]] = {
    "token": ("bag", ""), "token_seq": ("bag", " "), "float": ("number", ""),
}  # fmt: skip
_DELIMITERS = ",\t;|"


def read_features(
    path: str | Path,
    *,
    id_col: str | None = None,
    kinds: Mapping[str, FeatureKind] | None = None,
    separator: str = "|",
    delimiter: str | None = None,
    quote_char: str = '"',
    encoding: str | None = None,
) -> FeatureTable:
    """Reads side features of users or items from delimited text, one id per line.

    Columns whose values are all finite numbers are numeric; all others are bags of categories,
    which ``separator`` divides, with a :class:`DataWarning` if most values are numbers. Empty
    fields are missing values. Files are those of :func:`read` in the format ``csv``, with a header;
    RecBole's ``.user`` and ``.item``, whose header has the kinds; and ``u.user``, ``u.item``,
    ``users.dat`` and ``movies.dat`` of MovieLens as distributed.

    Args:
      path: The file; text may come from a pipe.
      id_col: Name of the column with the ids; by default the first column.
      kinds: Kinds of columns by name, where they differ from the above, such as ``"bag"`` for
        codes that are integers; ``"ignore"`` reads none.
      separator: Separator of the categories of one field; ``""`` for one category per field.
      delimiter: Delimiter of the fields; detected from the first line.
      quote_char: Character that may enclose fields; ``""`` disables quoting.
      encoding: Encoding of the text; by default UTF-8, or Latin-1 for the files of MovieLens.

    Raises:
      ValueError: If an argument is invalid.
      DataError: If the content is invalid, with ``file:line: expected ..., got ...``.
      FileNotFoundError: If there is no such file; the message lists the folder.
      ImportError: If polars is not installed.
    """
    import_polars("Reading features from files")
    path, kinds = Path(path), dict(kinds or {})
    for name, kind in kinds.items():
        check_choice(f"kinds[{name!r}]", kind, get_args(FeatureKind))
    check_file(path)
    known = _FILES.get(path.name)
    codec = encoding or ("latin-1" if known else "utf-8")
    check_text_options(codec, quote_char)
    if delimiter is not None and len(delimiter) != 1:
        raise ValueError(f"`delimiter` must be one character, got {delimiter!r}.")
    with open_blocks(path, codec) as blocks:
        if not (line := blocks.first_line()):
            raise DataError(f"{path}: expected features, got an empty file.")
        separators: dict[str, str] = {}
        if known is not None:
            layout, kinds = known.layout, known.kinds | kinds
        elif path.suffix in (".user", ".item"):
            layout = Layout(delimiter or "\t", typed=True)
            for column in line.split(layout.delimiter):
                name, _, kind = column.partition(":")
                own, separators[name] = _RECBOLE.get(kind, ("ignore", ""))
                kinds.setdefault(name, own)
        else:
            guess = max(_DELIMITERS, key=line.count)
            layout = Layout(delimiter or guess, quote_char=quote_char or None)
        names = column_names(blocks, layout)
        ids, columns, lines = _read_columns(blocks, layout, names, id_col, kinds)
    parsed: dict[str, Any] = {}
    for name, values in columns.items():
        kind, numbers = kinds.get(name), None
        if kind != "bag":
            numbers = _parse_numbers(values, kind, path, name, lines)
        cut = separators.get(name, separator)
        parsed[name] = [_split(x, cut) for x in values] if numbers is None else numbers
    return FeatureTable.from_columns(ids, parsed, origin=str(path))


def _read_columns(
    blocks: TextBlocks,
    layout: Layout,
    names: Sequence[str],
    id_col: str | None,
    kinds: Mapping[str, FeatureKind],
) -> tuple[list[str], dict[str, list[str]], list[int]]:
    """Returns the ids, the columns as text, and the line of each row."""
    path = blocks.path
    if len(set(names)) != len(names):
        raise DataError(f"{path}:1: expected distinct column names, got {list(names)}.")
    id_col = names[0] if id_col is None else id_col
    for name in (id_col, *kinds):
        if name not in names:
            raise DataError(f"{path}: expected a column {name!r}, got {list(names)}.")
    used = [name for name in names if kinds.get(name) != "ignore" or name == id_col]
    columns: dict[str, list[str]] = {name: [] for name in used}
    lines: list[int] = []
    at = {name: names.index(name) for name in used}
    for frame, block_lines in read_frames(blocks, layout, len(names), at):
        for name in used:
            columns[name] += frame[name].str.strip_chars().to_list()
        lines += block_lines
    ids, first = columns.pop(id_col), dict[str, int]()
    for line, name in zip(lines, ids, strict=True):
        if not name:
            raise DataError(f"{path}:{line}: expected an id as {id_col!r}, got an empty field.")
        if fault := find_fault(name):
            raise DataError(f"{path}:{line}: expected {fault} as {id_col!r}, got {shorten(name)}.")
        if name in first:
            raise DataError(
                f"{path}:{line}: expected one line for each id, got {name!r} again, which is in "
                f"line {first[name]}."
            )
        first[name] = line
    return ids, columns, lines


def _parse_numbers(
    values: Sequence[str], kind: FeatureKind | None, path: Path, name: str, lines: Sequence[int]
) -> np.ndarray | None:
    """Returns finite numbers, NaN where the text is empty; None if other text occurs.

    Warns of other text if most values are numbers and no kind is given.
    """
    import polars as pl

    text = pl.Series(values, dtype=pl.String)
    numbers = text.cast(pl.Float64, strict=False).to_numpy()
    is_present = (text != "").to_numpy()
    is_invalid = is_present & ~np.isfinite(numbers)
    if not is_invalid.any():
        return numbers
    first, n_invalid, n = int(np.argmax(is_invalid)), int(is_invalid.sum()), int(is_present.sum())
    got, line = shorten(values[first]), lines[first]
    if kind == "number":
        raise DataError(f"{path}:{line}: expected a finite number as {name!r}, got {got}.")
    if kind is None and 2 * n_invalid < n:
        warn_if(
            n_invalid,
            f"{name!r} is read as categories, since {{n}} of {n} values are no finite numbers, "
            f"such as {got} in line {line}; `kinds` decides",
            origin=str(path),
        )
    return None


def _split(value: str, separator: str) -> tuple[str, ...]:
    parts = value.split(separator) if separator else [value]
    return tuple(x for part in parts if (x := part.strip()))
