"""Files of interactions: the format, then the reader, then indices."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, TypedDict, Unpack, get_args

import numpy as np

from ._columns import Requested
from ._interactions import Interactions, Split, in_both
from ._lightgcn import read_lightgcn
from ._outcomes import DataError, warn_if
from ._parquet import read_parquet
from ._records import Records, rated_at_least, to_interactions
from ._splits import union
from ._text import Layout, last_character, open_text, read_delimited

Format = Literal["u.data", "ratings.dat", "csv", "parquet", "inter", "lightgcn"]

_RATED = ("user", "item", "rating", "timestamp")
_LAYOUTS: dict[str, Layout] = {
    "u.data": Layout("\t", names=_RATED),
    "ratings.dat": Layout("::", names=_RATED),
    "inter": Layout("\t", typed=True),
}
_BY_SUFFIX: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".inter": "inter",
    ".dat": "ratings.dat",
}


class ReadOptions(TypedDict, total=False):
    """The keyword arguments of :func:`read`."""

    format: Format | None
    user_col: str | None
    item_col: str | None
    rating_col: str | None
    time_col: str | None
    delimiter: str | None
    min_rating: int | float | None


def read(
    path: str | Path,
    *,
    format: Format | None = None,
    user_col: str | None = None,
    item_col: str | None = None,
    rating_col: str | None = None,
    time_col: str | None = None,
    delimiter: str | None = None,
    min_rating: int | float | None = None,
) -> Interactions:
    """Reads one file of interactions.

    ============= ===================================================================
    Format        Content
    ============= ===================================================================
    u.data        MovieLens 100K: user, item, rating, timestamp; tabs, no header
    ratings.dat   MovieLens 1M: the same, separated by ``::``
    csv           any text with a header: commas, tabs, semicolons or bars; quotes
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
      path: The file.
      format: One of the names above; by default told by the file's name, then its first
        line.
      user_col: Column name (in ``inter`` files without its type); by default the one
        among ``user``, ``user_id``, ``userId``, ``uid``, ...
      item_col: The same; ``item``, ``item_id``, ``movieId``, ``product_id``, ...
      rating_col: The same; ``rating``, ``score``, ...; there need be none.
      time_col: The same; ``timestamp``, ``time``, ...; there need be none.
      delimiter: Of ``csv`` text; by default what separates the header.
      min_rating: Only interactions rated at least this are kept. Their users and items
        keep an index; users left with nothing are counted in a warning.

    Raises:
      DataError: If anything in the file is not as said, with ``file:line: expected ...,
        got ...``.
      FileNotFoundError: If there is no such file; it lists what there is.
      ImportError: If the format needs a package that is not installed.
    """
    requested = Requested(user_col, item_col, rating_col, time_col)
    records = _read_records(Path(path), format, requested, delimiter)
    return to_interactions([records], min_rating=min_rating)[0]


def read_split(
    train: str | Path,
    test: str | Path,
    *,
    valid: str | Path | None = None,
    **options: Unpack[ReadOptions],
) -> Split:
    """Reads a split that was published as files.

    The vocabularies are the union of the files'. An interaction that stands in an earlier
    part too (train, then valid, then test) is removed from the later one, where it would
    be masked; that, and users or items of a later part that training never saw, are
    counted in warnings.

    Args:
      train: The file of training interactions.
      test: The file of test interactions.
      valid: The file of validation interactions.
      **options: As for :func:`read`, for every file.

    Raises:
      DataError, FileNotFoundError, ImportError: As :func:`read` does, or if a part is left
        empty.
    """
    paths = {"train": train, "valid": valid, "test": test}
    paths = {name: Path(path) for name, path in paths.items() if path is not None}
    records = _read_all(paths.values(), options)
    parts = to_interactions(records, min_rating=options.get("min_rating"))

    result: dict[str, Interactions] = {}
    for (name, path), part in zip(paths.items(), parts, strict=True):
        for earlier_name, earlier in result.items():
            repeated = in_both(earlier, part)
            warn_if(
                int(repeated.sum()),
                f"removed {{n}} interactions that are in the {earlier_name} part too",
                of=str(path),
            )
            part = part.select(~repeated)
        if not len(part):
            raise DataError(f"{path}: expected interactions of its own, got none.")
        if result:
            _warn_of_unseen(result["train"], part, path)
        result[name] = part
    return Split(**result)


def read_merged(paths: Sequence[Path], origin: str, options: ReadOptions) -> Interactions:
    """Reads files as if they were one; ``min_rating`` judges what is left of all repetitions."""
    whole = union(*to_interactions(_read_all(paths, options)))
    return rated_at_least(whole, options.get("min_rating"), origin)


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


def _warn_of_unseen(train: Interactions, part: Interactions, path: Path) -> None:
    for kind, seen, here in (
        ("users", train.degrees, part.degrees),
        ("items", train.item_counts, part.item_counts),
    ):
        unseen = int(np.sum((here > 0) & (seen == 0)))
        warn_if(unseen, f"{{n}} {kind} have no interaction in training", of=str(path))


def _read_all(paths: Iterable[Path], options: ReadOptions) -> list[Records]:
    requested = requested_columns(options)
    return [
        _read_records(path, options.get("format"), requested, options.get("delimiter"))
        for path in paths
    ]


def _read_records(
    path: Path, format: Format | None, requested: Requested, delimiter: str | None
) -> Records:
    _check_file(path)
    if format is not None and format not in get_args(Format):
        raise ValueError(f"`format` must be one of {get_args(Format)}, got {format!r}.")
    format = format or _sniff(path)
    if delimiter is not None and (format != "csv" or len(delimiter) != 1):
        raise ValueError(
            f"`delimiter` must be one character and belongs to the format csv, "
            f"got {delimiter!r} for {format}."
        )
    if format == "parquet":
        return read_parquet(path, requested)
    if format in ("u.data", "ratings.dat", "lightgcn"):
        unended = last_character(path) not in ("", "\n", "\r")
        warn_if(unended, "the last line has no line end: the file may be truncated", of=str(path))
    if format == "lightgcn":
        return read_lightgcn(path, requested)
    layout = _LAYOUTS.get(format) or _csv_layout(path, delimiter)
    return read_delimited(path, layout, requested)


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path}: expected a file, got a folder; name the file in it.")
    if not path.exists():
        folder = next(parent for parent in path.absolute().parents if parent.is_dir())
        names = sorted(child.name for child in folder.iterdir())
        listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        raise FileNotFoundError(f"{path}: no such file; {folder} has {listed or 'nothing'}.")


def _first_line(path: Path) -> str:
    with open_text(path) as file:
        return next((line.rstrip("\n") for line in file if line.strip()), "")


def _sniff(path: Path) -> Format:
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
        "lightgcn": lambda x: all(word.isdigit() for word in x.split(" ") if word),
        "csv": lambda x: any(d in x for d in ",\t;|"),
    }
    for format, fits in tests.items():
        if fits(line):
            return format
    raise DataError(
        f"{path}:1: expected one of the formats {', '.join(get_args(Format))}, got {line[:80]!r}; "
        "choose with `format`."
    )


def _csv_layout(path: Path, delimiter: str | None) -> Layout:
    if delimiter is None and Path(path.name.removesuffix(".gz")).suffix.lower() == ".tsv":
        delimiter = "\t"
    header = _first_line(path)
    # Names rarely hold a delimiter, so the most frequent one is it; commas win a tie.
    return Layout(delimiter or max(",\t;|", key=header.count), quoted=True)
