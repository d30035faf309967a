"""One name for all data: files, folders, TensorFlow datasets, MovieLens, simulated data."""

import re
from collections.abc import Set
from pathlib import Path
from typing import Literal, Unpack, overload

from ._download import MOVIELENS, download_movielens
from ._interactions import Interactions, Split
from ._outcomes import DataError
from ._readers import ReadOptions, read, read_merged, read_split, requested_columns
from ._records import rated_at_least, to_interactions
from ._synthetic import simulate
from ._tfds import read_tfds

_SUFFIXES = r"(?:csv|tsv|txt|parquet|inter)(?:\.gz)?"
_PART = re.compile(rf"(?:(?P<name>.+)\.)?(?P<part>train|valid|validation|val|test)\.{_SUFFIXES}")
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
    source: str | Path,
    *,
    merge: Literal[True],
    cache: str | Path | None = None,
    **options: Unpack[ReadOptions],
) -> Interactions: ...


@overload
def load(
    source: str | Path,
    *,
    merge: bool = False,
    cache: str | Path | None = None,
    **options: Unpack[ReadOptions],
) -> Interactions | Split: ...


def load(
    source: str | Path,
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
          and ``NAME.test.inter``, it is a split (``valid`` may be there too), whatever else
          lies there; otherwise it must have one ``u.data``, ``ratings.*`` or ``NAME.inter``,
          or else one ``interactions.*``, or else one file that :func:`read` takes;
        * ``tfds:NAME``, for instance ``tfds:movielens/100k-ratings``;
        * ``movielens:NAME``: ``100k``, ``1m``, ``20m`` or ``25m``, downloaded once;
        * ``"simulated"``: the interactions of :func:`simulate`, which also tells the truth
          behind them. (A file of that name is ``"./simulated"``.)
      merge: Whether to put the parts of a given split together, as :func:`union` does, to be
        cut anew.
      cache: Where downloads are kept, see :func:`download_movielens`.
      **options: As for :func:`read`; ``format`` and ``delimiter`` belong to files, and
        columns to files and ``tfds:``.

    Returns:
      A :class:`Split` for a folder with a given split, unless it is merged; else
      :class:`Interactions`.

    Raises:
      DataError: If the data are not as expected, or a folder has no or several candidates;
        the message lists them.
      FileNotFoundError: If there is no such file or folder.
      ImportError: If the source needs a package that is not installed.
      ConnectionError: If a download fails.
    """
    text = str(source)
    if source == "simulated":
        return _load_simulated(options)
    if text.startswith("tfds:"):
        return _load_tfds(text.removeprefix("tfds:"), options)
    if text.startswith("movielens:"):
        return _load_movielens(text.removeprefix("movielens:"), cache, options)
    path = Path(source)
    return _load_folder(path, merge, options) if path.is_dir() else read(path, **options)


def _load_simulated(options: ReadOptions) -> Interactions:
    requested_columns(options)  # refuses what is no option at all
    _refuse(options, options.keys() - {"min_rating"}, "simulated data")
    return rated_at_least(simulate().interactions, options.get("min_rating"), "simulated")


def _load_movielens(name: str, cache: str | Path | None, options: ReadOptions) -> Interactions:
    if name not in MOVIELENS:
        known = ", ".join(f"movielens:{release}" for release in MOVIELENS)
        raise ValueError(f"`source` must be one of {known}, got 'movielens:{name}'.")
    return read(download_movielens(name, cache=cache), **options)


def _load_tfds(name: str, options: ReadOptions) -> Interactions:
    _refuse(options, {"format", "delimiter"}, f"tfds:{name}")
    records = read_tfds(name, requested_columns(options))
    return to_interactions([records], min_rating=options.get("min_rating"))[0]


def _refuse(options: ReadOptions, unused: Set[str], where: str) -> None:
    for name in sorted(unused):
        if options.get(name) is not None:
            raise ValueError(f"`{name}` belongs to files, not to {where}.")


def _load_folder(folder: Path, merge: bool, options: ReadOptions) -> Interactions | Split:
    names = sorted(child.name for child in folder.iterdir() if child.is_file())
    parts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    datasets = set()
    for name in names:
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
        paths = {part: folder / found[0] for part, found in parts.items() if found}
        if merge:
            return read_merged([*paths.values()], str(folder), options)
        return read_split(**paths, **options)

    found = ([name for name in names if kind.fullmatch(name)] for kind in _WHOLE)
    candidates = next(filter(None, found), [])
    if len(candidates) != 1:
        raise DataError(
            f"{folder}: expected {_EXPECTED}; got {candidates or names or 'an empty folder'}. "
            "Give the path of the file itself if it is another."
        )
    return read(folder / candidates[0], **options)
