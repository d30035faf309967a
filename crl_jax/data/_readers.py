"""Readers of interaction files: format detection, Parquet and splits."""

import codecs
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, get_args

from ._columns import ROLES, Columns, ColumnSpec, find_columns, is_known_name, positions
from ._delimited import (
    SUFFIXES,
    Layout,
    Progress,
    TextBlocks,
    column_names,
    csv_rows,
    open_blocks,
    parse_json,
    read_delimited,
    read_json_lines,
    read_lists,
)
from ._errors import DataError, shorten, warn_if
from ._interactions import HeldOutSplit, Interactions, membership_mask
from ._records import RecordBuilder, Records, filter_by_rating, to_interactions
from ._splits import union
from ._values import import_polars

Format = Literal["u.data", "ratings.dat", "ydata", "csv", "parquet", "inter", "lightgcn", "jsonl"]

_MOVIELENS = ("user", "item", "rating", "timestamp")
_LAYOUTS: dict[str, Layout] = {
    "u.data": Layout("\t", header=False, names=_MOVIELENS),
    "ratings.dat": Layout("::", header=False, names=_MOVIELENS),
    "ydata": Layout("\t", header=False, names=_MOVIELENS[:3]),
}
YAHOO_R3 = "ydata-ymusic-rating-study-"
"""Beginning of the file names of Yahoo!-R3, as distributed."""
_BY_SUFFIX: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".inter": "inter",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_DELIMITERS = ",\t;|"
_PARQUET_MAGIC = b"PAR1"
_PARQUET_ROWS = 1 << 21  # per batch: 100 MB at most


Paths = str | Path | Sequence[str | Path]
"""One file, or the files of one log."""


class ReadOptions(TypedDict, total=False):
    """Keyword arguments of :func:`read`."""

    format: Format | None
    user_col: str | int | None
    item_col: str | int | None
    rating_col: str | int | None
    time_col: str | int | None
    delimiter: str | None
    header: bool | None
    quote_char: str
    encoding: str
    min_rating: int | float | None
    progress: Progress | None


def read(
    path: Paths,
    *,
    format: Format | None = None,
    user_col: str | int | None = None,
    item_col: str | int | None = None,
    rating_col: str | int | None = None,
    time_col: str | int | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
    quote_char: str = '"',
    encoding: str = "utf-8",
    min_rating: int | float | None = None,
    progress: Progress | None = None,
) -> Interactions:
    """Reads a file of interactions, or several files as one log.

    ============= ===================================================================
    Format        Content
    ============= ===================================================================
    u.data        MovieLens 100K: user, item, rating, timestamp; tabs, no header
    ratings.dat   MovieLens 1M: the same columns, separated by ``::``
    ydata         Yahoo!-R3: user, item, rating; tabs, no header
    csv           delimited text: commas, tabs, semicolons, bars or blanks; quotes
    parquet       table with named columns
    inter         RecBole: tabs, a header of ``name:type``
    jsonl         one JSON object per line
    lightgcn      ``user item item ...``, one line per user; integers
    ============= ===================================================================

    Text may be compressed by gzip, bzip2, xz or zip (one member), and may come from a pipe. Line
    ends may be LF, CR LF or CR, and a byte order mark is skipped. There are no comments. Blank
    lines at the end are ignored, others are counted in a warning. A missing line end at the end
    of ``u.data``, ``ratings.dat`` and ``lightgcn`` files, whose writers end every line, raises a
    warning, as the file may be truncated within a number.

    Ids are integers if every id of a column is one (``12.0`` counts if every id is written so),
    else text. Ratings are stored as float32 (``4,5`` is 4.5), timestamps as int64 or float64,
    ISO 8601 dates as seconds since 1970 (UTC unless they name a time zone).

    Args:
      path: The file, or the shards of one log in their order: tables with the same columns.
        Files are read in blocks, so that large shards take only the memory of their interactions.
      format: One of the formats above; detected from the file name, then from the first lines.
      user_col: Column name (in ``inter`` files without its type), or position from 0, as an
        integer or as a string that is no column name; by default the one among ``user``,
        ``user_id``, ``userId``, ``uid``, ...
      item_col: Item column; by default ``item``, ``item_id``, ``movieId``, ``product_id``, ...
      rating_col: Rating column, optional; by default ``rating``, ``score``, ... ``""`` reads none.
      time_col: Time column, optional; by default ``timestamp``, ``time``, ... ``""`` reads none.
      delimiter: Delimiter of ``csv`` or ``inter`` text; detected from the first line.
      header: Whether the first line of ``csv`` text has the column names. By default it has,
        unless a column is given by its position; then a first line of known names is an error.
      quote_char: Character that may enclose fields of ``csv`` text; ``""`` disables quoting.
      encoding: Encoding of text, such as ``"latin-1"``.
      min_rating: Lowest rating to keep. Users and items keep their index; users without a
        remaining interaction are counted in a warning.
      progress: Function of the path and the fraction of its bytes read so far, in [0, 1], called
        at most a thousand times per text file. Its exceptions stop the reading.

    Raises:
      DataError: If the content is invalid, with ``file:line: expected ..., got ...``.
      FileNotFoundError: If there is no such file; the message lists the folder.
      ImportError: If polars is not installed.
    """
    options = ReadOptions(
        format=format,
        user_col=user_col,
        item_col=item_col,
        rating_col=rating_col,
        time_col=time_col,
        delimiter=delimiter,
        header=header,
        quote_char=quote_char,
        encoding=encoding,
        progress=progress,
    )
    return _read_logs([path], options, min_rating)[0]


def read_split(
    train: Paths,
    test: Paths,
    *,
    valid: Paths | None = None,
    **options: Unpack[ReadOptions],
) -> HeldOutSplit:
    """Reads a split that was published as files.

    The parts share the union of the files' vocabularies. An interaction of an earlier part
    (train, then valid, then test) is removed from later ones, as evaluation would mask it.
    Warnings count the removed interactions and the users and items without training data.

    Args:
      train: File of training interactions, or its shards, as for :func:`read`.
      test: File of test interactions, or its shards.
      valid: File of validation interactions, or its shards.
      **options: Options of :func:`read`, for every file.

    Raises:
      DataError, FileNotFoundError, ImportError: As for :func:`read`, or if a part is empty.
    """
    sources = {"train": train, "valid": valid, "test": test}
    paths = {name: path for name, path in sources.items() if path is not None}
    parts = _read_logs([*paths.values()], options, options.get("min_rating"))
    result: dict[str, Interactions] = {}
    for name, part in zip(paths, parts, strict=True):
        origin = _display_name(paths[name])
        for earlier_name, earlier in result.items():
            repeated = membership_mask(earlier, part)
            warn_if(
                int(repeated.sum()),
                f"removed {{n}} interactions that are in the {earlier_name} part, too",
                origin=origin,
            )
            part = part.select(~repeated)
        if not len(part):
            raise DataError(f"{origin}: expected interactions, got none.")
        if result:
            train_part = result["train"]
            new_users = (part.degrees > 0) & (train_part.degrees == 0)
            new_items = (part.item_counts > 0) & (train_part.item_counts == 0)
            for kind, new in (("users", new_users), ("items", new_items)):
                warn_if(
                    int(new.sum()), f"{{n}} {kind} have no interaction in training", origin=origin
                )
        result[name] = part
    return HeldOutSplit(**result)


def read_merged(paths: Sequence[Paths], origin: str, options: ReadOptions) -> Interactions:
    """Reads files as one log; ``min_rating`` applies after repeated interactions are dropped."""
    return filter_by_rating(union(*_read_logs(paths, options)), options.get("min_rating"), origin)


def detect_columns(path: Path, options: ReadOptions) -> Columns:
    """Returns the columns that :func:`read` takes from a file."""
    check_file(path)
    if not path.is_file():
        raise DataError(f"{path}: expected a file, got a pipe, which cannot be read twice.")
    with _open(path, options) as file:
        return Columns.from_names(str(path), file.names, file.indices)


def column_spec(options: ReadOptions) -> ColumnSpec:
    """Returns the requested columns; TypeError for a keyword that :func:`read` does not have."""
    if unknown := options.keys() - ReadOptions.__annotations__.keys():
        raise TypeError(f"unknown options {sorted(unknown)}")
    return {role: options.get(f"{role}_col") for role in ROLES}


def missing_file_message(path: Path) -> str:
    """Message for a missing file, with the content of the folder."""
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    names = sorted(child.name for child in folder.iterdir())
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"{path}: no such file; {folder} has {listed or 'nothing'}."


def _as_paths(paths: Paths) -> list[Path]:
    result = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not result:
        raise ValueError("`path` must be a file or a list of files, got an empty list.")
    return result


def _display_name(paths: Paths) -> str:
    first, *others = _as_paths(paths)
    return f"{first} and {len(others)} more" if others else str(first)


def check_file(path: Path) -> None:
    """Raises an error for a folder, and if there is no such file; pipes are files."""
    if path.is_dir():
        raise DataError(f"{path}: expected a file, got a folder; pass a file in it.")
    if not path.exists():
        raise FileNotFoundError(missing_file_message(path))


def _read_logs(
    logs: Sequence[Paths], options: ReadOptions, min_rating: int | float | None = None
) -> list[Interactions]:
    """Reads logs, each of one or several files, as interactions with shared vocabularies."""
    records: list[tuple[str, list[Records]]] = []
    for log in logs:
        for path in (paths := _as_paths(log)):
            check_file(path)
        # Spark writes files of 0 bytes for empty partitions.
        shards = [path for path in paths if not path.is_file() or path.stat().st_size] or paths
        files = [_read_file(path, options, is_shard=len(paths) > 1) for path in shards]
        records.append((_display_name(log), files))
    return to_interactions(records, min_rating=min_rating)


def _read_file(path: Path, options: ReadOptions, is_shard: bool) -> Records:
    with _open(path, options) as file:
        names = {role: file.names[index] for role, index in file.indices.items()}
        builder = RecordBuilder(str(path), names)
        if file.format == "parquet":
            _read_parquet(path, file.source, names, builder)
            return builder.build()
        if file.format == "lightgcn":
            if is_shard:
                raise ValueError("`path` must be one file in the format lightgcn, got several.")
            records = read_lists(file.source)
        else:
            if file.format == "jsonl":
                read_json_lines(file.source, names, builder)
            else:
                read_delimited(file.source, file.layout, len(file.names), file.indices, builder)
            records = builder.build()
        if file.format in ("u.data", "ratings.dat", "lightgcn"):
            warn_if(
                not file.source.ends_with_newline,
                "the last line has no line end: the file may be truncated",
                origin=str(path),
            )
        return records


class _OpenFile(NamedTuple):
    """Open file whose columns are known: text after its header, or a LazyFrame of Parquet."""

    format: Format
    layout: Layout
    source: Any
    names: list[str]
    indices: dict[str, int]


@contextmanager
def _open(path: Path, options: ReadOptions) -> Iterator[_OpenFile]:
    """Opens a file, detects its format and finds its columns."""
    import_polars("Reading interactions from files")
    spec = column_spec(options)
    format, encoding = options.get("format"), options.get("encoding", "utf-8")
    if format is not None and format not in get_args(Format):
        raise ValueError(f"`format` must be one of {get_args(Format)}, got {format!r}.")
    check_text_options(encoding, options.get("quote_char", '"'))
    with ExitStack() as stack:
        where = str(path)
        if format is None and path.suffix.lower() == ".parquet":
            format = "parquet"
        if format == "parquet":
            layout = _layout(path, format, "", options, spec)
            source = _scan_parquet(path)
            names = source.collect_schema().names()
        else:
            progress = options.get("progress")
            source = blocks = stack.enter_context(open_blocks(path, encoding, progress))
            if not (line := blocks.first_line()):
                raise DataError(f"{path}: expected interactions, got an empty file.")
            format = format or _detect_format(path, blocks, line, bool(positions(spec)))
            layout = _layout(path, format, line, options, spec)
            if format == "lightgcn":
                names = ["user", "item"]
            elif format == "jsonl":
                names = [*parse_json(line, f"{path}:1")]
            else:
                names = column_names(blocks, layout)
                if layout.header:
                    where += ":1"
                elif layout.names is None:
                    where += ", whose columns have no names"
        indices = find_columns(names, spec, where)
        if format == "lightgcn" and indices["user"] != 0:
            raise DataError(
                f"{path}: expected the user first in each line, got `user_col` = 'item'."
            )
        yield _OpenFile(format, layout, source, names, indices)


def _plain_name(path: Path) -> Path:
    """The path without the suffix of a compressed file."""
    return path.with_suffix("") if path.suffix.lower() in SUFFIXES else path


def _detect_format(path: Path, blocks: TextBlocks, line: str, by_position: bool) -> Format:
    path = _plain_name(path)
    if path.name == "u.data":
        return "u.data"
    if path.name.startswith(YAHOO_R3):
        return "ydata"
    if format := _BY_SUFFIX.get(path.suffix.lower()):
        return format
    if "::" in line:
        return "ratings.dat"
    if line.startswith("{"):
        return "jsonl"
    fields = line.split("\t")
    if len(fields) > 1 and all(":" in field for field in fields):
        return "inter"
    if len(fields) == len(_MOVIELENS) and fields[-1].isdigit():
        return "u.data"
    # Lists have no columns: with positions it is a table separated by blanks.
    if not by_position and all(word.isdigit() for word in line.split(" ") if word):
        _check_lists(path, blocks)
        return "lightgcn"
    if any(delimiter in line for delimiter in _DELIMITERS + " " * by_position):
        return "csv"
    raise DataError(
        f"{path}:1: expected one of the formats {', '.join(get_args(Format))}, "
        f"got {shorten(line)}; choose with `format`."
    )


def _check_lists(path: Path, blocks: TextBlocks) -> None:
    """Raises DataError if lines of integers look like ratings instead of lists of items."""
    rows = [line.split() for line in blocks.head.decode().splitlines() if line.strip()]
    widths = set(map(len, rows))
    if len(rows) < 2 or widths not in ({3}, {4}):
        return
    repeated = len({row[0] for row in rows}) < len(rows)
    rated = len(rows) >= 20 and len({row[2] for row in rows}) <= 10
    if repeated or rated:
        raise DataError(
            f"{path}:1: expected lists 'user item item ...' of different lengths, got "
            f"{widths.pop()} numbers in each line, which look like ratings; pass `format` = "
            "'csv' with `user_col` = 0, `item_col` = 1 and `rating_col` = 2, or `format` = "
            "'lightgcn'."
        )


def check_text_options(encoding: str, quote_char: str) -> None:
    """Raises ``ValueError`` unless the encoding is known and quotes are single characters."""
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ValueError(f"`encoding` must be the name of a codec, got {encoding!r}.") from None
    if len(quote_char) > 1:
        raise ValueError(f"`quote_char` must be one character or empty, got {quote_char!r}.")


def _layout(
    path: Path, format: Format, line: str, options: ReadOptions, spec: ColumnSpec
) -> Layout:
    """Syntax of the text; checks the options that apply to some formats only."""
    delimiter, header = options.get("delimiter"), options.get("header")
    if delimiter is not None and (format not in ("csv", "inter") or len(delimiter) != 1):
        raise ValueError(
            "`delimiter` must be one character and applies to the formats csv and inter, "
            f"got {delimiter!r} for {format}."
        )
    if header is not None and format != "csv":
        raise ValueError(f"`header` applies to the format csv, got {header} for {format}.")
    if format == "inter":
        counts = {d: line.count(d) for d in "\t, ;|" if all(":" in x for x in line.split(d))}
        return Layout(delimiter or max(counts, key=counts.__getitem__, default="\t"), typed=True)
    if format != "csv":
        return _LAYOUTS.get(format, Layout("\t"))
    if delimiter is None and _plain_name(path).suffix.lower() == ".tsv":
        delimiter = "\t"
    # Column names rarely contain a delimiter, so the most frequent one is used; commas win a tie.
    guess = max(_DELIMITERS, key=line.count)
    by_position = positions(spec)
    layout = Layout(
        delimiter or (guess if guess in line else " "),
        header=not by_position if header is None else header,
        quote_char=options.get("quote_char", '"') or None,
    )
    if header is None and by_position:
        first, _ = next(csv_rows(path, [line], layout))
        if any(
            index < len(first) and is_known_name(role, first[index])
            for role, index in by_position.items()
        ):
            raise DataError(
                f"{path}:1: expected data, as a file whose columns are given by position has no "
                f"header, got {first}; pass column names instead, or `header`."
            )
    return layout


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise DataError(f"{path}: expected a readable Parquet file, got {error}.") from None


def _scan_parquet(path: Path) -> Any:
    import polars as pl

    if not path.is_file():
        raise DataError(f"{path}: expected a Parquet file, got a pipe.")
    with path.open("rb") as file:
        head = file.read(len(_PARQUET_MAGIC))
        file.seek(max(0, path.stat().st_size - len(_PARQUET_MAGIC)))
        tail = file.read()
    if head != _PARQUET_MAGIC or tail != _PARQUET_MAGIC:
        raise DataError(
            f"{path}: expected a Parquet file, which begins and ends with {_PARQUET_MAGIC!r}, "
            f"got {head!r} and {tail!r}; it may be truncated."
        )
    with _parquet_errors(path):
        table = pl.scan_parquet(path, glob=False)  # "*", "?" and "[" are part of the name
        table.collect_schema()
        return table


def _read_parquet(path: Path, table: Any, names: dict[str, str], builder: RecordBuilder) -> None:
    """Reads one interaction per row, in batches; messages count rows from 1."""
    import polars as pl

    with _parquet_errors(path):
        table = table.select(pl.col(name).alias(role) for role, name in names.items())
        n_rows = table.select(pl.len()).collect().item()
        for start in range(0, n_rows, _PARQUET_ROWS):
            batch = table.slice(start, _PARQUET_ROWS).collect().to_dict()
            builder.add(batch, lambda row, start=start: f"{path}: row {start + row + 1}")
