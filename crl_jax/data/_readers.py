"""Files of interactions: the format, then the reader, then indices."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypedDict, Unpack, get_args

import numpy as np

from ._columns import Columns, Requested, is_usual
from ._delimited import (
    Layout,
    Progress,
    first_row,
    last_character,
    open_text,
    read_delimited,
    text_columns,
)
from ._errors import DataError, warn_if
from ._interactions import Interactions, Split, membership_mask
from ._lightgcn import lightgcn_columns, read_lightgcn
from ._parquet import parquet_columns, read_parquet
from ._records import Collector, Records, rated_at_least, to_interactions
from ._splits import union

Format = Literal["u.data", "ratings.dat", "csv", "parquet", "inter", "lightgcn"]

_RATED = ("user", "item", "rating", "timestamp")
_LAYOUTS: dict[str, Layout] = {
    "u.data": Layout("\t", header=False, names=_RATED),
    "ratings.dat": Layout("::", header=False, names=_RATED),
    "inter": Layout("\t", typed=True),
}
_BY_SUFFIX: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".inter": "inter",
    ".dat": "ratings.dat",
}
_DELIMITERS = ",\t;|"


Paths = str | Path | Sequence[str | Path]
"""A file, or the files of one log."""


class ReadOptions(TypedDict, total=False):
    """The keyword arguments of :func:`read`."""

    format: Format | None
    user_col: str | int | None
    item_col: str | int | None
    rating_col: str | int | None
    time_col: str | int | None
    delimiter: str | None
    header: bool | None
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
    min_rating: int | float | None = None,
    progress: Progress | None = None,
) -> Interactions:
    """Reads one file of interactions, or several as if they were one.

    ============= ===================================================================
    Format        Content
    ============= ===================================================================
    u.data        MovieLens 100K: user, item, rating, timestamp; tabs, no header
    ratings.dat   MovieLens 1M: the same, separated by ``::``
    csv           any text: commas, tabs, semicolons, bars or blanks; quotes
    parquet       a table with named columns (needs polars)
    inter         RecBole: tabs, a header of ``name:type``
    lightgcn      ``user item item ...``, a line a user; integers
    ============= ===================================================================

    Text is UTF-8, with or without a byte order mark, any line ends, gzipped if the name
    ends in ``.gz``. No line is a comment. Blank lines at the end mean nothing, others are
    counted in a warning. A last line without a line end is normal in files with a header,
    which people and tools write in many ways; in ``u.data``, ``ratings.dat`` and
    ``lightgcn`` files, whose writers end every line, it brings a warning, for there a file
    cut inside a number would still read well.

    Ids are integers if every id of a column is one (``12.0`` counts if every id is so
    written), else text. Ratings are kept as float32; timestamps as int64 or float64, dates
    of ISO 8601 (UTC where they name no zone) as seconds since 1970.

    Args:
      path: The file, or the shards of one log in their order: tables with the same columns.
        Tables in Parquet are read a part at a time, so that shards of any size take the memory
        that their interactions need.
      format: One of the names above; by default told by the file's name, then its first
        line.
      user_col: Column name (in ``inter`` files without its type), or its position from 0, as
        a number or as text where no column has that name; by default the one among ``user``,
        ``user_id``, ``userId``, ``uid``, ...
      item_col: The same; ``item``, ``item_id``, ``movieId``, ``product_id``, ...
      rating_col: The same; ``rating``, ``score``, ...; there need be none, and ``""`` reads none.
      time_col: The same; ``timestamp``, ``time``, ...; there need be none, and ``""`` reads none.
      delimiter: Of ``csv`` text; by default what separates the first line.
      header: Whether the first line of ``csv`` text has the names; by default it has, unless
        a column is given by its position. Then it is data, and an error if it looks like names.
      min_rating: Only interactions rated at least this are kept. Their users and items
        keep an index; users left with nothing are counted in a warning.
      progress: Called with the path and the share of its bytes read so far, up to 1, while
        text is read: a thousand times at most. What it raises ends the reading.

    Raises:
      DataError: If anything in the file is not as said, with ``file:line: expected ...,
        got ...``.
      FileNotFoundError: If there is no such file; it lists what there is.
      ImportError: If the format needs a package that is not installed.
    """
    options = ReadOptions(
        format=format,
        user_col=user_col,
        item_col=item_col,
        rating_col=rating_col,
        time_col=time_col,
        delimiter=delimiter,
        header=header,
        progress=progress,
    )
    return to_interactions([_read_records(path, options)], min_rating=min_rating)[0]


def read_split(
    train: Paths,
    test: Paths,
    *,
    valid: Paths | None = None,
    **options: Unpack[ReadOptions],
) -> Split:
    """Reads a split that was published as files.

    The vocabularies are the union of the files'. An interaction that stands in an earlier
    part too (train, then valid, then test) is removed from the later one, where it would
    be masked; that, and users or items of a later part that training never saw, are
    counted in warnings.

    Args:
      train: The file of training interactions, or its shards, as for :func:`read`.
      test: The file of test interactions, or its shards.
      valid: The file of validation interactions, or its shards.
      **options: As for :func:`read`, for every file.

    Raises:
      DataError, FileNotFoundError, ImportError: As :func:`read` does, or if a part is left
        empty.
    """
    paths = {"train": train, "valid": valid, "test": test}
    paths = {name: as_paths(path) for name, path in paths.items() if path is not None}
    records = [_read_records(path, options) for path in paths.values()]
    parts = to_interactions(records, min_rating=options.get("min_rating"))

    result: dict[str, Interactions] = {}
    for (name, files), part in zip(paths.items(), parts, strict=True):
        path = name_of(files)
        for earlier_name, earlier in result.items():
            repeated = membership_mask(earlier, part)
            warn_if(
                int(repeated.sum()),
                f"removed {{n}} interactions that are in the {earlier_name} part too",
                of=path,
            )
            part = part.select(~repeated)
        if not len(part):
            raise DataError(f"{path}: expected interactions of its own, got none.")
        if result:
            _warn_of_unseen(result["train"], part, path)
        result[name] = part
    return Split(**result)


def read_merged(paths: Sequence[Paths], origin: str, options: ReadOptions) -> Interactions:
    """Reads files as if they were one; ``min_rating`` judges what is left of all repetitions."""
    whole = union(*to_interactions([_read_records(path, options) for path in paths]))
    return rated_at_least(whole, options.get("min_rating"), origin)


def columns_of(path: Path, options: ReadOptions) -> Columns:
    """What :func:`read` would take from the columns of a file."""
    _check_file(path)
    requested = requested_columns(options)
    match _format(path, options, requested):
        case "parquet":
            names, found = parquet_columns(path, requested)
        case "lightgcn":
            names, found = lightgcn_columns(path, requested)
        case format:
            layout = _layout(path, format, options, requested)
            names, found = text_columns(path, layout, requested)
    return Columns.from_names(str(path), names, found)


def as_paths(paths: Paths) -> list[Path]:
    """One path or several as a list; ValueError for none."""
    found = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not found:
        raise ValueError("`path` must be a file or a list of some, got an empty one.")
    return found


def name_of(paths: Sequence[Path]) -> str:
    """What messages call a file, or the shards of a log."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def requested_columns(options: ReadOptions) -> Requested:
    """The column names among the options; TypeError if one is no option of :func:`read`."""
    if unknown := options.keys() - ReadOptions.__annotations__.keys():
        raise TypeError(f"unknown options {sorted(unknown)}")
    return Requested(
        options.get("user_col"),
        options.get("item_col"),
        options.get("rating_col"),
        options.get("time_col"),
    )


def _warn_of_unseen(train: Interactions, part: Interactions, path: str) -> None:
    for kind, seen, here in (
        ("users", train.degrees, part.degrees),
        ("items", train.item_counts, part.item_counts),
    ):
        unseen = int(np.sum((here > 0) & (seen == 0)))
        warn_if(unseen, f"{{n}} {kind} have no interaction in training", of=path)


def _read_records(paths: Paths, options: ReadOptions) -> Records:
    paths = as_paths(paths)
    requested, progress = requested_columns(options), options.get("progress")
    for path in paths:
        _check_file(path)
    origin, collector = name_of(paths), Collector()
    for path in paths:
        format = _format(path, options, requested)
        if format in ("u.data", "ratings.dat", "lightgcn"):
            unended = last_character(path) not in ("", "\n", "\r")
            warn_if(
                unended, "the last line has no line end: the file may be truncated", of=str(path)
            )
        if format == "parquet":
            read_parquet(path, requested, collector)
        elif format == "lightgcn":
            if len(paths) > 1:
                raise ValueError("`path` must be one file where it holds lists, got several.")
            return read_lightgcn(path, requested, progress)
        else:
            layout = _layout(path, format, options, requested)
            read_delimited(path, layout, requested, collector, progress)
        collector.check_columns(str(path))
    return collector.records(origin)


def _format(path: Path, options: ReadOptions, requested: Requested) -> Format:
    """The format asked for, or told by the file; checks the options that belong to one."""
    format, delimiter = options.get("format"), options.get("delimiter")
    if format is not None and format not in get_args(Format):
        raise ValueError(f"`format` must be one of {get_args(Format)}, got {format!r}.")
    format = format or _sniff(path, by_position=bool(requested.positions()))
    if delimiter is not None and (format != "csv" or len(delimiter) != 1):
        raise ValueError(
            f"`delimiter` must be one character and belongs to the format csv, "
            f"got {delimiter!r} for {format}."
        )
    if options.get("header") is not None and format != "csv":
        raise ValueError(
            f"`header` belongs to the format csv, got {options.get('header')} for {format}."
        )
    return format


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path}: expected a file, got a folder; name the file in it.")
    if not path.exists():
        raise FileNotFoundError(say_missing(path))


def say_missing(path: Path) -> str:
    """Says that there is no such file, and lists what there is."""
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    names = sorted(child.name for child in folder.iterdir())
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"{path}: no such file; {folder} has {listed or 'nothing'}."


def _first_line(path: Path) -> str:
    with open_text(path) as file:
        return next((line.rstrip("\n") for line in file if line.strip()), "")


def _sniff(path: Path, by_position: bool) -> Format:
    name = path.name.removesuffix(".gz")
    if name == "u.data":
        return "u.data"
    if found := _BY_SUFFIX.get(Path(name).suffix.lower()):
        return found
    line = _first_line(path)
    if not line:
        raise DataError(f"{path}: expected interactions, got an empty file.")
    tests: dict[Format, Callable[[str], bool]] = {
        "ratings.dat": lambda x: "::" in x,
        "inter": lambda x: "\t" in x and all(":" in word for word in x.split("\t")),
        "u.data": lambda x: len(x.split("\t")) == len(_RATED) and x.split("\t")[-1].isdigit(),
        # Lists have no columns: who gives positions means a table, and blanks separate it.
        "lightgcn": lambda x: not by_position and all(y.isdigit() for y in x.split(" ") if y),
        "csv": lambda x: any(d in x for d in _DELIMITERS + " " * by_position),
    }
    for format, fits in tests.items():
        if fits(line):
            return format
    raise DataError(
        f"{path}:1: expected one of the formats {', '.join(get_args(Format))}, got {line[:80]!r}; "
        "choose with `format`."
    )


def _layout(path: Path, format: Format, options: ReadOptions, requested: Requested) -> Layout:
    if format != "csv":
        return _LAYOUTS[format]
    delimiter, header = options.get("delimiter"), options.get("header")
    if delimiter is None and Path(path.name.removesuffix(".gz")).suffix.lower() == ".tsv":
        delimiter = "\t"
    line = _first_line(path)
    # Names rarely hold a delimiter, so the most frequent one is it; commas win a tie.
    guess = max(_DELIMITERS, key=line.count)
    positions = requested.positions()
    layout = Layout(
        delimiter or (guess if guess in line else " "),
        header=not positions if header is None else header,
        quoted=True,
    )
    if header is None and positions:
        _check_for_data(path, first_row(path, layout), positions)
    return layout


def _check_for_data(path: Path, first: list[str], positions: dict[str, int]) -> None:
    if any(
        place < len(first) and is_usual(role, first[place]) for role, place in positions.items()
    ):
        raise DataError(
            f"{path}:1: expected data, for a file whose columns are given by position has no "
            f"header, got {first}; give names instead, or say with `header` what the line is."
        )
