"""Loading of interactions by path, folder, dataset name or from memory."""

import re
from collections.abc import Iterator, Set
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Unpack, overload

import numpy as np

from .._optional import import_optional
from ._columns import ROLES, Columns, find_columns
from ._datasets import DATASETS
from ._download import download
from ._errors import DataError
from ._from_arrays import as_interactions, from_columns
from ._interactions import HeldOutSplit, Interactions
from ._readers import (
    YAHOO_R3,
    ReadOptions,
    column_spec,
    detect_columns,
    missing_file_message,
    read,
    read_merged,
    read_split,
)
from ._records import filter_by_rating
from ._synthetic import simulate

_COMPRESSED = r"(?:\.(?:gz|bz2|xz|zip))?"
_TABLE = rf"(?:csv|tsv|parquet|inter|jsonl|json|ndjson){_COMPRESSED}"
_PART = re.compile(
    rf"(?:(?P<name>.+)\.|{YAHOO_R3}v1_0-)?"
    rf"(?P<part>train|valid|validation|val|test)\.(?:txt{_COMPRESSED}|{_TABLE})",
    re.IGNORECASE,
)
# Named by Spark, Hugging Face and TensorFlow: part-00000-c000.snappy.parquet,
# train-00000-of-00008.parquet.
_SHARD = re.compile(
    r"(?P<name>.+?)-\d{5}(?:-of-(?P<count>\d+))?(?:-[-\w]+)?(?:\.snappy|\.zstd|\.gz)?"
    rf"(?P<suffix>\.{_TABLE})",
    re.IGNORECASE,
)
# File of a folder without parts, the most specific names first: other tables may describe users
# and items, and a text file may be anything.
_SINGLE = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:u\.data|ratings\.(?:dat|csv|tsv|parquet|jsonl)|.+\.inter){_COMPRESSED}",
        rf"interactions\.(?:txt{_COMPRESSED}|dat{_COMPRESSED}|{_TABLE})",
        rf".+\.(?:dat{_COMPRESSED}|{_TABLE})",
        rf".+\.txt{_COMPRESSED}",
    )
)
_EXPECTED = (
    "train.* and test.* (csv, tsv, txt, parquet), NAME.train.inter and NAME.test.inter, one of "
    "u.data, ratings.*, NAME.inter, interactions.*, or a single csv, tsv, parquet, dat or txt file"
)


@overload
def load(
    source: Any,
    *,
    merge: Literal[True],
    cache: str | Path | None = None,
    **options: Unpack[ReadOptions],
) -> Interactions: ...


@overload
def load(
    source: Any,
    *,
    merge: bool = False,
    cache: str | Path | None = None,
    **options: Unpack[ReadOptions],
) -> Interactions | HeldOutSplit: ...


def load(
    source: Any,
    *,
    merge: bool = False,
    cache: str | Path | None = None,
    **options: Unpack[ReadOptions],
) -> Interactions | HeldOutSplit:
    """Loads interactions, or the split that a source provides.

    Args:
      source: One of

        * a file, see :func:`read`;
        * a folder. With ``train.*`` and ``test.*`` files, or ``NAME.train.inter`` and
          ``NAME.test.inter`` of RecBole, or the two files of Yahoo!-R3, it is a split, with an
          optional ``valid`` part. Otherwise
          it must contain one ``u.data``, ``ratings.*`` or ``NAME.inter``, or else one
          ``interactions.*``, or else one file that :func:`read` accepts. Shards, such as
          ``train-00000-of-00008.parquet``, count as one file; names that begin with ``.`` or
          ``_`` are ignored;
        * a name in :data:`DATASETS`, such as ``movielens:100k``, downloaded once;
        * ``tfds:NAME``, for instance ``tfds:movielens/100k-ratings``;
        * ``"simulated"``: the interactions of :func:`simulate`. (A file of that name is
          ``"./simulated"``.)
        * data in memory, see :func:`as_interactions`.
      merge: Whether to merge the parts of a given split by :func:`union`.
      cache: Folder for downloads, see :func:`download`.
      **options: Options of :func:`read`. ``format``, ``delimiter``, ``header``, ``quote_char`` and
        ``encoding`` apply to files, columns to files, tables and ``tfds:``.

    Returns:
      A :class:`HeldOutSplit` for a folder with a given split, unless it is merged; otherwise
      :class:`Interactions`.

    Raises:
      ValueError: If ``source`` or an option is invalid.
      DataError: If the data are invalid, or a folder has no or several candidates; the message
        lists them.
      FileNotFoundError: If there is no such file or folder.
      ImportError: If the source requires a package that is not installed.
      ConnectionError: If a download fails.
    """
    spec, min_rating = column_spec(options), options.get("min_rating")
    if not isinstance(source, str | Path):
        _refuse(options, _FILE_OPTIONS, "data in memory")
        by_name: Any = {f"{role}_col": column for role, column in spec.items()}
        return as_interactions(source, **by_name, min_rating=min_rating)
    text = str(source)
    if source == "simulated":
        _refuse(options, _FILE_OPTIONS | _TABLE_OPTIONS, "simulated data")
        return filter_by_rating(simulate().interactions, min_rating, text)
    if text.startswith("tfds:"):
        examples, names, indices = _open_tfds(text, options)
        values: dict[int, list[Any]] = {index: [] for index in indices.values()}
        for example in examples:
            for index, column in values.items():
                value = example[names[index]]
                column.append(value if isinstance(value, bytes) else np.asarray(value).item())
        return filter_by_rating(
            from_columns(text, names, values.__getitem__, spec), min_rating, text
        )
    paths, options = _paths(source, cache, options)
    if "single" in paths:
        return read(paths["single"], **options)
    if merge:
        return read_merged([*paths.values()], text, options)
    return read_split(**paths, **options)


def columns(
    source: str | Path, *, cache: str | Path | None = None, **options: Unpack[ReadOptions]
) -> list[Columns]:
    """Returns the columns that :func:`load` reads, found from the headers.

    Args:
      source: Source, as for :func:`load`.
      cache: Folder for downloads; missing datasets are downloaded.
      **options: Options, as for :func:`load`.

    Returns:
      One record per file of the source, training first, and one for all shards of a log; none for
      simulated data.

    Raises:
      DataError, FileNotFoundError, ImportError, ConnectionError: As for :func:`load`, as far as
        headers allow.
    """
    column_spec(options)
    if source == "simulated":
        _refuse(options, _FILE_OPTIONS | _TABLE_OPTIONS, "simulated data")
        return []
    if str(source).startswith("tfds:"):
        return [Columns.from_names(str(source), *_open_tfds(str(source), options)[1:])]
    paths, options = _paths(source, cache, options)
    return [detect_columns(files[0], options) for files in paths.values()]


_FILE_OPTIONS = {"format", "delimiter", "header", "quote_char", "encoding"}
_TABLE_OPTIONS = {f"{role}_col" for role in ROLES}


def _refuse(options: ReadOptions, names: Set[str], where: str) -> None:
    for name in sorted(names):
        if options.get(name) is not None:
            raise ValueError(f"`{name}` applies to files, not to {where}.")


def _open_tfds(
    source: str, options: ReadOptions
) -> tuple[Iterator[dict[str, Any]], list[str], dict[str, int]]:
    """Opens the split "train" (MovieLens has no other) of a TensorFlow dataset."""
    _refuse(options, _FILE_OPTIONS, source)
    tfds = import_optional("tensorflow_datasets", f"{source} needs TensorFlow Datasets", "tfds")
    examples = iter(tfds.as_numpy(tfds.load(source.removeprefix("tfds:"), split="train")))
    if (first := next(examples, None)) is None:
        raise DataError(f"{source}: expected interactions, got none.")
    names = list(first)
    return chain([first], examples), names, find_columns(names, column_spec(options), source)


def _paths(
    source: str | Path, cache: str | Path | None, options: ReadOptions
) -> tuple[dict[str, list[Path]], ReadOptions]:
    """Files of a "single" log, or of the parts by name; and the options to read them."""
    text = str(source)
    if text in DATASETS:
        options = {**options, "format": options.get("format") or DATASETS[text].format}
        return {"single": [download(text, cache=cache)]}, options
    if text.split(":")[0] in {name.split(":")[0] for name in DATASETS}:
        raise ValueError(f"`source` must be one of {', '.join(DATASETS)}, got {text!r}.")
    path = Path(source)
    if path.parent == Path() and not path.exists():  # perhaps meant as a dataset name
        names = ", ".join([*DATASETS, "simulated"])
        raise FileNotFoundError(
            f"{missing_file_message(path)} A dataset name must be one of {names}, got {text!r}."
        )
    return _paths_in(path) if path.is_dir() else {"single": [path]}, options


def _paths_in(folder: Path) -> dict[str, list[Path]]:
    files = _logs_in(folder)
    parts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    datasets = set()
    for name in files:
        if match := _PART.fullmatch(name):
            part = match["part"].lower()
            parts["valid" if part.startswith("val") else part].append(name)
            datasets.add(match["name"])

    if any(parts.values()):
        is_ambiguous = len(datasets) > 1 or any(len(names) > 1 for names in parts.values())
        if is_ambiguous or not (parts["train"] and parts["test"]):
            raise DataError(
                f"{folder}: expected one training and one test file (and at most one "
                f"for validation), got {parts}; pass the paths of the files instead."
            )
        return {part: files[names[0]] for part, names in parts.items() if names}

    matches = ([name for name in files if kind.fullmatch(name)] for kind in _SINGLE)
    candidates = next(filter(None, matches), [])
    if len(candidates) != 1:
        folders = sorted(path.name for path in folder.iterdir() if path.is_dir())
        got = candidates or [*files] or (f"the folders {folders}" if folders else "an empty folder")
        raise DataError(
            f"{folder}: expected {_EXPECTED}; got {got}. "
            "Pass the path of the file if it is another."
        )
    return {"single": files[candidates[0]]}


def _logs_in(folder: Path) -> dict[str, list[Path]]:
    """Files of a folder by name; shards are grouped by their common name."""
    logs: dict[str, list[Path]] = {}
    counts: dict[str, int] = {}
    for path in sorted(folder.iterdir()):
        name = path.name
        if name.startswith((".", "_")) or not path.is_file():
            continue
        if match := _SHARD.fullmatch(name):
            name = match["name"] + match["suffix"]
            counts[name] = int(match["count"] or 0)
        logs.setdefault(name, []).append(path)
    for name, count in counts.items():
        if count and len(logs[name]) != count:
            raise DataError(f"{folder}: expected {count} shards of {name}, got {len(logs[name])}.")
    return logs
