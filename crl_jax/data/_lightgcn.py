"""LightGCN's lists: a line a user, the user's id and then the ids of the items."""

from array import array
from pathlib import Path

import numpy as np

from . import _ids
from ._columns import Found, Requested, find_columns
from ._outcomes import DataError, warn_if
from ._records import Records
from ._text import open_text, warn_of_blank_lines


def read_lightgcn(path: Path, requested: Requested) -> Records:
    """Reads ``user item item ...`` lines, ids being integers.

    A user may have several lines, or a line without items: that user stays in the
    vocabulary, and a warning counts them.

    Raises:
      DataError: If a word is not a non-negative integer; the message gives the line.
    """
    lightgcn_columns(path, requested)
    users, items = _ids.Encoder(), _ids.Encoder()
    heads: list[str] = []
    lengths, codes = array("q"), array("q")
    blank = blank_at_end = 0
    with open_text(path) as file:
        for line in file:
            words = line.split()
            if not words:
                blank_at_end += 1
                continue
            blank, blank_at_end = blank + blank_at_end, 0
            heads.append(words[0])
            lengths.append(len(words) - 1)
            codes.frombytes(items(words[1:]).tobytes())
    if not heads:
        raise DataError(f"{path}: expected interactions, got an empty file.")
    _check_words(path, [*heads, *items.codes])
    warn_of_blank_lines(blank, path)

    rows = users(heads)
    taken = np.bincount(rows, weights=lengths, minlength=len(users.codes))
    warn_if(int(np.sum(taken == 0)), "{n} users have no items", of=str(path))
    return Records(
        str(path),
        list(users.codes),
        list(items.codes),
        users=np.repeat(rows, lengths),
        items=np.array(codes, np.int64),
    )


def lightgcn_columns(path: Path, requested: Requested) -> tuple[list[str], Found]:
    """The two columns that lists amount to; there is nothing to choose."""
    names = ["user", "item"]
    found = find_columns(names, requested, str(path))
    if found[:2] != (0, 1):
        raise DataError(f"{path}: expected the user first in each line, got `user_col` = 'item'.")
    return names, found


def _check_words(path: Path, words: list[str]) -> None:
    bad = {word for word in words if not _ids.is_whole(word)}
    if not bad:
        return
    with open_text(path) as file:
        line, word = next(
            (number, word)
            for number, line in enumerate(file, 1)
            for word in line.split()
            if word in bad
        )
    raise DataError(
        f"{path}:{line}: expected non-negative integers 'user item item ...', got {word!r}."
    )
