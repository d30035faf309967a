"""LightGCN's lists: a line a user, the user's id and then the ids of the items."""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np

from .._checks import is_canonical_integer
from . import _ids
from ._columns import Found, Requested, find_columns
from ._delimited import ROWS_AT_A_TIME, Progress, open_text, warn_of_blank_lines
from ._errors import DataError, warn_if
from ._records import Records


def read_lightgcn(path: Path, requested: Requested, progress: Progress | None = None) -> Records:
    """Reads ``user item item ...`` lines, ids being integers, and calls ``progress`` meanwhile.

    A user may have several lines, or a line without items: that user stays in the
    vocabulary, and a warning counts them.

    Raises:
      DataError: If a word is not a non-negative integer; the message gives the line.
    """
    lightgcn_columns(path, requested)
    users, items = _ids.Encoder(), _ids.Encoder()
    heads: list[str] = []
    taken: list[str] = []
    lengths = array("q")
    blank = blank_at_end = 0
    with _only_integers(path), open_text(path, progress=progress) as file:
        for line in file:
            words = line.split()
            if not words:
                blank_at_end += 1
                continue
            blank, blank_at_end = blank + blank_at_end, 0
            heads.append(words[0])
            lengths.append(len(words) - 1)
            taken += words[1:]
            if len(taken) >= ROWS_AT_A_TIME:
                items.add(taken)
                taken = []
        if not heads:
            raise DataError(f"{path}: expected interactions, got an empty file.")
        items.add(taken)
        users.add(heads)
    (user_names, rows), (item_names, codes) = users.result(), items.result()
    for names in (user_names, item_names):
        if isinstance(names, list) and not all(map(is_canonical_integer, names)):
            _blame_word(path)
    warn_of_blank_lines(blank, path)

    degrees = np.bincount(rows, weights=lengths, minlength=len(user_names))
    warn_if(int(np.sum(degrees == 0)), "{n} users have no items", of=str(path))
    return Records(str(path), user_names, item_names, users=np.repeat(rows, lengths), items=codes)


def lightgcn_columns(path: Path, requested: Requested) -> tuple[list[str], Found]:
    """The two columns that lists amount to; there is nothing to choose."""
    names = ["user", "item"]
    found = find_columns(names, requested, str(path))
    if found[:2] != (0, 1):
        raise DataError(f"{path}: expected the user first in each line, got `user_col` = 'item'.")
    return names, found


@contextmanager
def _only_integers(path: Path) -> Iterator[None]:
    try:
        yield
    except _ids.InvalidId:
        _blame_word(path)


def _blame_word(path: Path) -> NoReturn:
    """Raises the error of the first word that is no integer."""
    with open_text(path) as file:
        words = ((number, word) for number, line in enumerate(file, 1) for word in line.split())
        line, word = next(found for found in words if not is_canonical_integer(found[1]))
    raise DataError(
        f"{path}:{line}: expected non-negative integers 'user item item ...', got {word!r}."
    )
