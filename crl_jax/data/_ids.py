"""Original ids: what a valid one is, when a column of them is numbers, and their numbering."""

import re
from collections.abc import Callable, Sequence, Sized
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped
from numpy.typing import ArrayLike

from .._checks import is_canonical_integer
from ._errors import DataError

_WHOLE_FLOAT = re.compile(r"(?:0|[1-9][0-9]{0,18})\.0")
_NEGATIVE = re.compile(r"-[0-9]+(?:\.0*)?")
_POWERS_OF_TEN = 10 ** np.arange(1, 19)
_INT32_MAX, _INT64_MAX = np.iinfo(np.int32).max, np.iinfo(np.int64).max
# A table of so many ids costs nothing, however few of them there are.
_SMALL_TABLE = 1 << 20


Names = list[str] | Int64[np.ndarray, " _"]
"""Distinct ids: text in any order, or integers that ascend."""


class InvalidId(ValueError):
    """An id that cannot be one, and what was expected of it."""

    def __init__(self, name: str, expected: str) -> None:
        super().__init__(f"expected {expected}, got {name!r}")
        self.name, self.expected = name, expected


class Encoder:
    """Numbers ids, which come in one batch after another.

    As long as all of them are integers as Python writes them they are kept as integers, and
    numbered together at the end: to look each one up among all others, as text must be, would
    take half the time of reading a file.

    Attributes:
      count: How many ids came.
    """

    def __init__(self) -> None:
        self.count = 0
        self._numbers: list[np.ndarray] | None = []
        self._places: dict[str, int] = {}
        self._codes: list[np.ndarray] = []

    def add(self, column: Sequence[str]) -> None:
        """Takes one more batch, of text; raises :class:`InvalidId`."""
        self.count += len(column)
        if self._numbers is not None:
            if (numbers := _as_integers(column)) is not None:
                self._numbers.append(_narrow(numbers))
                return
            earlier, self._numbers = self._numbers, None
            for numbers in earlier:
                self._look_up(list(map(str, numbers.tolist())))
        self._look_up(column)

    def add_integers(self, column: Shaped[np.ndarray, " n"]) -> None:
        """Takes one more batch, of integers that are not negative."""
        if self._numbers is not None and column.max(initial=0) <= _INT64_MAX:
            self.count += len(column)
            self._numbers.append(_narrow(column.astype(np.int64, copy=False)))
        else:
            self.add(list(map(str, column.tolist())))

    def result(self) -> tuple[Names, Shaped[np.ndarray, " n"]]:
        """The distinct ids, and the place among them of every id that came; ends the encoder."""
        if self._numbers is None:
            return list(self._places), _all_places(self._codes, lambda codes: codes, self._places)
        distinct, place_of = _numbering(self._numbers)
        return distinct, _all_places(self._numbers, place_of, distinct)

    def _look_up(self, column: Sequence[str]) -> None:
        places = self._places
        for name in column:
            if name not in places:
                if expected := _fault(name):
                    raise InvalidId(name, expected)
                places[name] = len(places)
        codes = np.fromiter(map(places.__getitem__, column), np.int64, len(column))
        self._codes.append(_narrow(codes))


def _narrow(numbers: Int64[np.ndarray, " n"]) -> Shaped[np.ndarray, " n"]:
    """In half the memory, if they fit."""
    return numbers.astype(np.int32) if numbers.max(initial=0) <= _INT32_MAX else numbers


def _numbering(
    batches: list[np.ndarray],
) -> tuple[Int64[np.ndarray, " n_ids"], Callable[[np.ndarray], np.ndarray]]:
    """The distinct numbers, ascending, and a function that tells the places of some of them."""
    largest = max((batch.max(initial=0) for batch in batches), default=0)
    if largest < max(_SMALL_TABLE, sum(map(len, batches))):
        # In linear time, by a table of all numbers up to the largest.
        there = np.zeros(int(largest) + 1, bool)
        for batch in batches:
            there[batch] = True
        place = np.cumsum(there, dtype=np.int32 if largest < _INT32_MAX else np.int64)
        place -= 1
        return np.flatnonzero(there), place.__getitem__
    distinct = np.unique(np.concatenate(batches)).astype(np.int64, copy=False)
    return distinct, partial(np.searchsorted, distinct)


def _all_places(
    batches: list[np.ndarray], place_of: Callable[[np.ndarray], np.ndarray], names: Sized
) -> Shaped[np.ndarray, " n"]:
    """The places of all batches in one array; each batch is let go as soon as it is read."""
    end = sum(map(len, batches))
    places = np.empty(end, np.int32 if len(names) <= _INT32_MAX else np.int64)
    while batches:
        batch = batches.pop()
        places[end - len(batch) : end] = place_of(batch)
        end -= len(batch)
    return places


def _as_integers(column: Sequence[str]) -> Int64[np.ndarray, " n"] | None:
    """The ids as numbers, or None unless each is an integer as Python writes it, in int64."""
    try:
        numbers = np.fromiter(map(int, column), np.int64, len(column))
    except (ValueError, OverflowError):
        return None
    # int() also takes "01", "+1", "-1", "1_0" and " 1", which are longer than the digits of their
    # number, and the digits of other scripts.
    text = "".join(column)
    digits = 1 + np.searchsorted(_POWERS_OF_TEN, numbers, side="right")
    return numbers if text.isascii() and len(text) == digits.sum() else None


def _fault(name: str) -> str | None:
    """What was expected of an id and does not hold, or None for a valid id."""
    if not name:
        return "a non-empty id"
    if name != name.strip():
        return "an id without surrounding blanks"
    if "\0" in name:  # NumPy's fixed-width strings drop it: two ids would become one
        return "an id without a NUL character"
    if _NEGATIVE.fullmatch(name):
        return "a non-negative id"
    return None


def unfloat(names: Names) -> Names:
    """Drops the ".0" that a table writer added to integers, if every id of the column has it."""
    if isinstance(names, list) and names and all(map(_WHOLE_FLOAT.fullmatch, names)):
        return [name[:-2] for name in names]
    return names


def vocabulary(*columns: Names) -> Shaped[np.ndarray, " n"]:
    """All ids of some columns, ascending: int64 if every one is an integer as Python writes it.

    One "01" or "a" keeps all of them text, so that "1" and "01" stay two ids.
    """
    numbers = [found for column in columns if (found := _as_int64(column)) is not None]
    if len(numbers) == len(columns):
        return np.unique(np.concatenate(numbers))
    return np.unique(np.concatenate([_as_text(column) for column in columns]))


def places(names: Names, vocabulary: Shaped[np.ndarray, " n_ids"]) -> Int64[np.ndarray, " n_names"]:
    """Where each id stands in an ascending vocabulary that has them all."""
    wanted: Any = _as_text(names) if vocabulary.dtype.kind == "U" else _as_int64(names)
    return np.searchsorted(vocabulary, wanted)


def indices(
    names: Names, vocabulary: Shaped[np.ndarray, " n_ids"], codes: Shaped[np.ndarray, " n"]
) -> Shaped[np.ndarray, " n"]:
    """Places among ``names`` as places in a vocabulary, which may be the same ones."""
    place = places(names, vocabulary).astype(codes.dtype)
    return codes if np.array_equal(place, np.arange(len(place))) else place[codes]


def _as_int64(names: Names) -> Int64[np.ndarray, " n_names"] | None:
    """The ids as integers, or None if one is not an integer as Python writes it."""
    return names if isinstance(names, np.ndarray) else _as_integers(names)


def _as_text(names: Names) -> Shaped[np.ndarray, " n_names"]:
    return np.array(list(map(str, names)), np.str_)


def ranks(ids: Shaped[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """The place of each id in an order that depends on the ids alone.

    Whole numbers come first, by value, and then all other ids, by code points: 9, 10, "010",
    "a". It makes no difference whether a vocabulary holds them as integers or as text.
    """
    if ids.dtype.kind != "U":
        order = np.argsort(ids)
    else:
        keys = [
            (0, int(name), "") if is_canonical_integer(name) else (1, 0, name)
            for name in ids.tolist()
        ]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    places = np.empty(len(ids), np.int64)
    places[order] = np.arange(len(ids))
    return places


def encode(column: ArrayLike, name: str) -> tuple[Names, Shaped[np.ndarray, " n"]]:
    """The distinct ids of an array, and the place of every entry among them.

    Args:
      column: Integers, whole floats, or text (bytes are UTF-8), shape ``[n]``.
      name: What messages call the column, such as "`users`".

    Raises:
      DataError: If the array holds anything else, or an id is invalid.
    """
    array: Any = np.asarray(column)
    if array.dtype == object and all(type(x) in (str, int) for x in array.flat):
        array = array.astype(np.str_)
    if array.dtype.kind == "S":
        array = np.strings.decode(array, "utf-8")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iufU"):
        raise DataError(
            f"{name} must be a one-dimensional array of integers or text, "
            f"got shape {array.shape} of {array.dtype}."
        )
    encoder = Encoder()
    if array.dtype.kind == "U":
        try:
            encoder.add(array.tolist())
        except InvalidId as error:
            place = int(np.argmax(array == error.name))
            raise DataError(f"{name}: {error} at place {place}.") from None
    else:
        encoder.add_integers(whole(array, name))
    names, codes = encoder.result()
    return unfloat(names), codes


def whole(array: np.ndarray, name: str) -> Shaped[np.ndarray, " n"]:
    """Numbers as integers; DataError if one is no id."""
    if array.dtype.kind == "f":
        # Beyond 2^53 neighbouring integers share one float.
        bad = ~np.isfinite(array) | (array != np.trunc(array)) | (array > 2**53)
        if bad.any():
            raise DataError(
                f"{name} must hold whole numbers up to 2**53 where it holds floats, "
                f"got {array[bad][0]}."
            )
        array = array.astype(np.int64)
    if array.min(initial=0) < 0:
        place = int(np.argmax(array < 0))
        raise DataError(
            f"{name}: expected a non-negative id, got '{array[place]}' at place {place}."
        )
    return array
