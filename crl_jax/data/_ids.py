"""Original ids: validity, integer or text vocabularies, and encoding as indices."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped
from numpy.typing import ArrayLike

from .._checks import check_distinct, is_canonical_integer
from ._errors import DataError, shorten
from ._values import Column, InvalidValue, canonical_integers, parse_ids

_WHOLE_FLOAT = re.compile(r"(?:0|[1-9][0-9]{0,18})\.0")
_NEGATIVE = re.compile(r"-[0-9]+(?:\.0*)?")
_INT32_MAX = np.iinfo(np.int32).max
# A lookup table of this length is cheap however few ids there are.
_SMALL_TABLE = 1 << 20
# NumPy stores text with the width of the longest id, so a single long one multiplies the memory.
_WIDE_ID, _MAX_TEXT_BYTES = 256, 1 << 28
# Written by pandas, SQL databases and Hive where a value is missing.
_MISSING_MARKS = {"\\N", "NULL", "null", "nan", "NaN", "None", "<NA>"}


Names = list[str] | Shaped[np.ndarray, " _"]
"""Distinct ids: text in any order, or an ascending array of integers or text."""


class IdEncoder:
    """Encodes ids that arrive in batches.

    As long as all ids are canonical integers they are stored as integers and encoded together at
    the end: a dictionary lookup of each id would take half the time of reading a file.
    """

    def __init__(self) -> None:
        self._batches: list[np.ndarray] = []
        self._code_by_name: dict[str, int] | None = None  # of text

    def add(self, column: Column) -> None:
        """Adds a batch of ids that :func:`parse_ids` accepts; raises :class:`InvalidValue`."""
        ids = parse_ids(column)
        if self._code_by_name is None and isinstance(ids, np.ndarray):
            self._batches.append(_narrow(ids))
            return
        if self._code_by_name is None:
            self._code_by_name = {}
            self._batches = [self._encode_text(integers) for integers in self._batches]
        self._batches.append(self._encode_text(ids))

    def result(self) -> tuple[Names, Shaped[np.ndarray, " n"]]:
        """Returns the distinct ids and the code of every id; the encoder is then exhausted."""
        if self._code_by_name is None:
            names, encode = _encode_integers(self._batches)
        else:
            names, encode = list(self._code_by_name), lambda codes: codes
        end = sum(map(len, self._batches))
        codes = np.empty(end, np.int32 if len(names) <= _INT32_MAX else np.int64)
        while self._batches:  # frees each batch as soon as it is encoded
            batch = self._batches.pop()
            codes[end - len(batch) : end] = encode(batch)
            end -= len(batch)
        return names, codes

    def _encode_text(self, ids: np.ndarray | list[str]) -> Shaped[np.ndarray, " n"]:
        names = list(map(str, ids.tolist())) if isinstance(ids, np.ndarray) else ids
        code_by_name = self._code_by_name
        assert code_by_name is not None
        for name in names:
            if name not in code_by_name:
                if expected := find_fault(name):
                    raise InvalidValue(names.index(name), expected, name)
                code_by_name[name] = len(code_by_name)
        return _narrow(np.fromiter(map(code_by_name.__getitem__, names), np.int64, len(names)))


def _narrow(integers: Int64[np.ndarray, " n"]) -> Shaped[np.ndarray, " n"]:
    """Converts to int32 if all values fit."""
    return integers.astype(np.int32) if integers.max(initial=0) <= _INT32_MAX else integers


def _encode_integers(
    batches: list[np.ndarray],
) -> tuple[Int64[np.ndarray, " n_ids"], Callable[[np.ndarray], np.ndarray]]:
    """Returns the ascending distinct integers and a function from integers to their codes."""
    largest = max((batch.max(initial=0) for batch in batches), default=0)
    if largest < max(_SMALL_TABLE, sum(map(len, batches))):
        # Linear time, by a table of all integers up to the largest.
        exists = np.zeros(int(largest) + 1, bool)
        for batch in batches:
            exists[batch] = True
        codes = np.cumsum(exists, dtype=np.int32 if largest < _INT32_MAX else np.int64)
        codes -= 1
        return np.flatnonzero(exists), codes.__getitem__
    distinct = np.unique(np.concatenate(batches)).astype(np.int64, copy=False)
    return distinct, partial(np.searchsorted, distinct)


def find_fault(name: str) -> str | None:
    """Noun phrase for what an invalid id should have been, or None for a valid id."""
    if not name:
        return "a non-empty id"
    if name != name.strip():
        return "an id without surrounding blanks"
    if "\0" in name:  # NumPy's fixed-width strings drop it: two ids would become one
        return "an id without a NUL character"
    if "\n" in name or "\r" in name:
        return "an id without line breaks"
    if _NEGATIVE.fullmatch(name):
        return "a non-negative id"
    return None


def strip_float_suffix(names: Names) -> Names:
    """Removes ".0", which table writers append to integers, if every id of the column has it."""
    if isinstance(names, list) and names and all(map(_WHOLE_FLOAT.fullmatch, names)):
        return [name[:-2] for name in names]
    return names


def count_missing_marks(names: Names, codes: Shaped[np.ndarray, " n"]) -> tuple[int, str]:
    """Number of entries such as "NULL", which mark missing values, and the marks found."""
    if isinstance(names, np.ndarray) or not (marks := _MISSING_MARKS.intersection(names)):
        return 0, ""
    marked = [code for code, name in enumerate(names) if name in marks]
    return int(np.isin(codes, marked).sum()), ", ".join(map(repr, sorted(marks)))


def vocabulary(*columns: Names) -> Shaped[np.ndarray, " n"]:
    """Ascending union of ids: int64, or text if one is "01" or "a", so that "1" and "01" differ."""
    integers = [values for column in columns if (values := _as_int64(column)) is not None]
    if len(integers) == len(columns):
        return np.unique(np.concatenate(integers))
    return np.unique(np.concatenate([_as_text(column) for column in columns]))


def indices(
    names: Names, codes: Shaped[np.ndarray, " n"], vocabulary: Shaped[np.ndarray, " n_ids"]
) -> Shaped[np.ndarray, " n"]:
    """Converts codes of ``names`` to indices into an ascending vocabulary that contains them."""
    targets: Any = _as_text(names) if vocabulary.dtype.kind == "U" else _as_int64(names)
    index = np.searchsorted(vocabulary, targets).astype(codes.dtype)
    return codes if np.array_equal(index, np.arange(len(index))) else index[codes]


def _as_int64(names: Names) -> Int64[np.ndarray, " n_names"] | None:
    if isinstance(names, np.ndarray):
        return None if names.dtype.kind == "U" else names
    return canonical_integers(names)


def _as_text(names: Names) -> Shaped[np.ndarray, " n_names"]:
    texts = list(map(str, names))
    width = max(map(len, texts), default=0)
    if width > _WIDE_ID and 4 * width * len(texts) > _MAX_TEXT_BYTES:
        longest = max(texts, key=len)
        raise DataError(
            f"expected ids of at most {_WIDE_ID} characters, as {len(texts)} ids would take "
            f"{4 * width * len(texts) / 1e9:.1f} GB, got {shorten(longest)}."
        )
    return np.array(texts, np.str_)


def id_ranks(ids: Shaped[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Ranks of ids, integers or text: integers first, then by code points: 9, 10, "010", "a"."""
    if ids.dtype.kind != "U":
        order = np.argsort(ids)
    else:
        keys = [
            (0, int(name), "") if is_canonical_integer(name) else (1, 0, name)
            for name in ids.tolist()
        ]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    ranks = np.empty(len(ids), np.int64)
    ranks[order] = np.arange(len(ids))
    return ranks


def encode(column: ArrayLike, name: str) -> tuple[Names, Shaped[np.ndarray, " n"]]:
    """Returns the distinct ids of an array and the code of every entry."""
    array: Any = np.asarray(column)
    if array.ndim != 1:
        raise DataError(f"`{name}` must be one-dimensional, got shape {array.shape}.")
    encoder = IdEncoder()
    try:
        encoder.add(array)
    except InvalidValue as error:
        raise DataError(
            f"`{name}`: expected {error.expected}, got {shorten(error.value)} "
            f"at index {error.index}."
        ) from None
    names, codes = encoder.result()
    return strip_float_suffix(names), codes


def encode_distinct(column: ArrayLike, name: str) -> Shaped[np.ndarray, " n"]:
    """Returns an array of distinct ids as integers or text, in their order.

    Raises:
      ValueError: If an id is invalid, or occurs twice.
    """
    names, codes = encode(column, name)
    ascending = vocabulary(names)
    ids = ascending[indices(names, codes, ascending)]
    if len(names) != len(ids):
        check_distinct(name, ids)
    return ids
