"""One door for all data: files, folders, datasets by name, simulated data, data in memory."""

import re
from collections.abc import Set
from pathlib import Path
from typing import Any, Literal, Unpack, overload

from ._columns import Columns, Requested
from ._datasets import DATASETS
from ._download import download
from ._errors import DataError
from ._from_arrays import as_interactions
from ._interactions import Interactions, Split
from ._readers import (
    ReadOptions,
    columns_of,
    read,
    read_merged,
    read_split,
    requested_columns,
    say_missing,
)
from ._records import rated_at_least, to_interactions
from ._synthetic import simulate
from ._tfds import read_tfds, tfds_columns

_SUFFIXES = r"(?:csv|tsv|txt|parquet|inter)(?:\.gz)?"
_PART = re.compile(rf"(?:(?P<name>.+)\.)?(?P<part>train|valid|validation|val|test)\.{_SUFFIXES}")
# As Spark, Hugging Face and TensorFlow name them: part-00000-c000.snappy.parquet,
# train-00000-of-00008.parquet.
_SHARD = re.compile(
    r"(?P<name>.+?)-\d{5}(?:-of-(?P<count>\d+))?(?:-[-\w]+)?(?:\.snappy|\.zstd|\.gz)?"
    r"(?P<suffix>\.(?:csv|tsv|parquet|inter)(?:\.gz)?)"
)
# What a folder holds if it holds no parts, the surest names first: the rest may be about users
# and items, and a text file about anything.
_WHOLE = (
    re.compile(r"(?:u\.data|ratings\.(?:dat|csv|tsv|parquet)|.+\.inter)(?:\.gz)?"),
    re.compile(r"interactions\.(?:csv|tsv|parquet|txt|dat)(?:\.gz)?"),
    re.compile(r".+\.(?:csv|tsv|parquet|dat)(?:\.gz)?"),
    re.compile(r".+\.txt(?:\.gz)?"),
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
) -> Interactions | Split: ...


def load(
    source: Any,
    *,
    merge: bool = False,
    cache: str | Path | None = None,
    **options: Unpack[ReadOptions],
) -> Interactions | Split:
    """Loads interactions, or the split that the source gives.

    Args:
      source: One of

        * a file, as :func:`read` takes it;
        * a folder. With ``train.*`` and ``test.*`` files, or RecBole's ``NAME.train.inter``
          and ``NAME.test.inter``, it is a split, whatever else lies there; ``valid`` may be there
          too. Otherwise it must have one ``u.data``, ``ratings.*`` or ``NAME.inter``, or else one
          ``interactions.*``, or else one file that :func:`read` takes. Shards, such as
          ``train-00000-of-00008.parquet`` and the rest, count as one file;
        * a name in :data:`DATASETS`, such as ``movielens:100k``, downloaded once;
        * ``tfds:NAME``, for instance ``tfds:movielens/100k-ratings``;
        * ``"simulated"``: the interactions of :func:`simulate`, which also tells the truth
          behind them. (A file of that name is ``"./simulated"``.)
        * data in memory, as :func:`as_interactions` takes them.
      merge: Whether to put the parts of a given split together, as :func:`union` does, to be
        cut anew.
      cache: Where downloads are kept, see :func:`download`.
      **options: As for :func:`read`. ``format``, ``delimiter`` and ``header`` belong to files.
        Columns belong to files, tables and ``tfds:``.

    Returns:
      A :class:`Split` for a folder with a given split, unless it is merged. Everything else gives
      :class:`Interactions`.

    Raises:
      ValueError: If ``source`` or an option is none of these.
      DataError: If the data are not as expected, or a folder has no or several candidates.
        The message lists them.
      FileNotFoundError: If there is no such file or folder.
      ImportError: If the source needs a package that is not installed.
      ConnectionError: If a download fails.
    """
    if not isinstance(source, str | Path):
        return _load_memory(source, options)
    text = str(source)
    if source == "simulated":
        return _load_simulated(options)
    if text.startswith("tfds:"):
        return _load_tfds(text, options)
    paths = _paths(source, cache)
    if "whole" in paths:
        return read(paths["whole"], **_with_format(text, options))
    if merge:
        return read_merged([*paths.values()], text, options)
    return read_split(**paths, **options)


def columns(
    source: str | Path, *, cache: str | Path | None = None, **options: Unpack[ReadOptions]
) -> list[Columns]:
    """Tells which columns :func:`load` reads, by a look at the headers.

    Args:
      source: As for :func:`load`.
      cache: As for :func:`load`; what is to be downloaded is downloaded.
      **options: As for :func:`load`.

    Returns:
      One record for each file of the source, training first, and for the first of shards; none
      for simulated data.

    Raises:
      DataError, FileNotFoundError, ImportError, ConnectionError: As :func:`load` does, as far as
        headers show it.
    """
    text = str(source)
    if source == "simulated":
        _refuse_for_simulated(options)
        return []
    if text.startswith("tfds:"):
        requested = _requested_of_tfds(text, options)
        return [Columns.from_names(text, *tfds_columns(text.removeprefix("tfds:"), requested))]
    options = _with_format(text, options)
    return [columns_of(paths[0], options) for paths in _paths(source, cache).values()]


def _with_format(source: str, options: ReadOptions) -> ReadOptions:
    """The options, with the format that a dataset of this name has."""
    if source in DATASETS and options.get("format") is None:
        return {**options, "format": DATASETS[source].format}
    return options


def _load_memory(source: Any, options: ReadOptions) -> Interactions:
    requested = requested_columns(options)
    _refuse(options, {"format", "delimiter", "header"}, "data in memory")
    return as_interactions(
        source,
        user_col=requested.user,
        item_col=requested.item,
        rating_col=requested.rating,
        time_col=requested.time,
        min_rating=options.get("min_rating"),
    )


def _load_simulated(options: ReadOptions) -> Interactions:
    _refuse_for_simulated(options)
    return rated_at_least(simulate().interactions, options.get("min_rating"), "simulated")


def _refuse_for_simulated(options: ReadOptions) -> None:
    requested_columns(options)  # refuses what is no option at all
    _refuse(options, options.keys() - {"min_rating", "progress"}, "simulated data")


def _load_tfds(source: str, options: ReadOptions) -> Interactions:
    records = read_tfds(source.removeprefix("tfds:"), _requested_of_tfds(source, options))
    return to_interactions([records], min_rating=options.get("min_rating"))[0]


def _requested_of_tfds(source: str, options: ReadOptions) -> Requested:
    _refuse(options, {"format", "delimiter", "header"}, source)
    return requested_columns(options)


def _refuse(options: ReadOptions, unused: Set[str], where: str) -> None:
    for name in sorted(unused):
        if options.get(name) is not None:
            raise ValueError(f"`{name}` belongs to files, not to {where}.")


def _paths(source: str | Path, cache: str | Path | None) -> dict[str, list[Path]]:
    """The files of a source: those of one "whole", or those of its parts by their names."""
    text = str(source)
    if text in DATASETS:
        return {"whole": [download(text, cache=cache)]}
    if text.split(":")[0] in {name.split(":")[0] for name in DATASETS}:
        raise ValueError(f"`source` must be one of {', '.join(DATASETS)}, got {text!r}.")
    path = Path(source)
    if path.parent == Path() and not path.exists():  # meant for a name, it may be
        names = ", ".join([*DATASETS, "simulated"])
        raise FileNotFoundError(
            f"{say_missing(path)} The name of a dataset is one of {names}, got {text!r}."
        )
    return _paths_in(path) if path.is_dir() else {"whole": [path]}


def _paths_in(folder: Path) -> dict[str, list[Path]]:
    files = _logs_in(folder)
    parts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    datasets = set()
    for name in files:
        if match := _PART.fullmatch(name):
            part = match["part"]
            parts["valid" if part.startswith("val") else part].append(name)
            datasets.add(match["name"])

    if any(parts.values()):
        several = len(datasets) > 1 or any(len(found) > 1 for found in parts.values())
        if several or not (parts["train"] and parts["test"]):
            raise DataError(
                f"{folder}: expected one training and one test file (and one for validation "
                f"or none), got {parts}; give the paths of the files instead."
            )
        return {part: files[found[0]] for part, found in parts.items() if found}

    found = ([name for name in files if kind.fullmatch(name)] for kind in _WHOLE)
    candidates = next(filter(None, found), [])
    if len(candidates) != 1:
        raise DataError(
            f"{folder}: expected {_EXPECTED}; got {candidates or [*files] or 'an empty folder'}. "
            "Give the path of the file itself if it is another."
        )
    return {"whole": files[candidates[0]]}


def _logs_in(folder: Path) -> dict[str, list[Path]]:
    """The files of a folder by their names, and shards together by the name that they share."""
    logs: dict[str, list[Path]] = {}
    counts: dict[str, int] = {}
    for path in sorted(child for child in folder.iterdir() if child.is_file()):
        name = path.name
        if match := _SHARD.fullmatch(name):
            name = match["name"] + match["suffix"]
            counts[name] = int(match["count"] or 0)
        logs.setdefault(name, []).append(path)
    for name, count in counts.items():
        if count and len(logs[name]) != count:
            raise DataError(f"{folder}: expected {count} shards of {name}, got {len(logs[name])}.")
    return logs
