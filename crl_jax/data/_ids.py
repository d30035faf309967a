"""Original ids: what a valid one is, when a column of them is numbers, and their numbering."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped
from numpy.typing import ArrayLike

from .._checks import is_whole
from ._outcomes import DataError

_WHOLE_FLOAT = re.compile(r"(?:0|[1-9][0-9]{0,18})\.0")
_NEGATIVE = re.compile(r"-[0-9]+(?:\.0*)?")
_POWERS_OF_TEN = 10 ** np.arange(1, 19)
_INT64_MAX = np.iinfo(np.int64).max


class Encoder:
    """Numbers ids, which come in one batch after another.

    As long as all of them are integers as Python writes them they are kept as integers, and
    numbered by a sort at the end: to look each one up among all others, as text must be, would
    take half the time of reading a file.
    """

    def __init__(self) -> None:
        self._numbers: list[np.ndarray] | None = [np.empty(0, np.int64)]
        self._places: dict[str, int] = {}
        self._codes = [np.empty(0, np.int64)]

    def add(self, column: Sequence[str]) -> None:
        """Takes one more batch."""
        if self._numbers is not None:
            if (numbers := _as_integers(column)) is not None:
                self._numbers.append(numbers)
                return
            earlier, self._numbers = self._numbers, None
            for numbers in earlier:
                self._look_up([str(number) for number in numbers.tolist()])
        self._look_up(column)

    def result(self) -> tuple[list[str], Int64[np.ndarray, " n"]]:
        """The distinct ids, and the place among them of every id that came."""
        if self._numbers is None:
            return list(self._places), np.concatenate(self._codes)
        distinct, codes = np.unique(np.concatenate(self._numbers), return_inverse=True)
        return [str(number) for number in distinct.tolist()], codes

    def _look_up(self, column: Sequence[str]) -> None:
        places = self._places
        for name in column:
            if name not in places:
                places[name] = len(places)
        self._codes.append(np.fromiter(map(places.__getitem__, column), np.int64, len(column)))


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


def fault(name: str) -> str | None:
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


def first_fault(names: Iterable[str]) -> tuple[str, str] | None:
    """The first invalid id and what was expected of it, or None."""
    return next(((name, expected) for name in names if (expected := fault(name))), None)


def unfloat(names: Sequence[str]) -> list[str]:
    """Drops the ".0" that a table writer added to integers, if every id of the column has it."""
    if names and all(map(_WHOLE_FLOAT.fullmatch, names)):
        return [name[:-2] for name in names]
    return list(names)


def vocabulary(names: Sequence[str]) -> Shaped[np.ndarray, " n"]:
    """Distinct ids in ascending order: int64 if every one is an integer as Python writes it.

    One "01" or "a" keeps the whole column text, so that "1" and "01" stay two ids.
    """
    if all(map(is_whole, names)) and max(map(int, names), default=0) <= _INT64_MAX:
        return np.unique(np.array([int(name) for name in names], np.int64))
    return np.unique(np.array(names, np.str_))


def places(
    names: Sequence[str], vocabulary: Shaped[np.ndarray, " n_ids"]
) -> Int64[np.ndarray, " n_names"]:
    """Where each id stands in an ascending vocabulary that has them all."""
    return np.searchsorted(vocabulary, np.array(names, np.str_).astype(vocabulary.dtype))


def ranks(ids: Shaped[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """The place of each id in an order that depends on the ids alone.

    Whole numbers come first, by value, and then all other ids, by code points: 9, 10, "010",
    "a". It makes no difference whether a vocabulary holds them as integers or as text.
    """
    if ids.dtype.kind != "U":
        order = np.argsort(ids)
    else:
        keys = [(0, int(name), "") if is_whole(name) else (1, 0, name) for name in ids.tolist()]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    places = np.empty(len(ids), np.int64)
    places[order] = np.arange(len(ids))
    return places


def encode(column: ArrayLike, name: str) -> tuple[list[str], Int64[np.ndarray, " n"]]:
    """The distinct ids of an array as text, and the place of every entry among them.

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
    distinct, codes = np.unique(array, return_inverse=True)
    if distinct.dtype.kind == "f":
        # Beyond 2^53 neighbouring integers share one float.
        bad = ~np.isfinite(distinct) | (distinct != np.trunc(distinct)) | (distinct > 2**53)
        if bad.any():
            raise DataError(
                f"{name} must hold whole numbers up to 2**53 where it holds floats, "
                f"got {distinct[bad][0]}."
            )
        distinct = distinct.astype(np.int64)
    names = [str(x) for x in distinct.tolist()]
    if found := first_fault(names):
        place = int(np.argmax(codes == names.index(found[0])))
        raise DataError(f"{name}: expected {found[1]}, got {found[0]!r} at place {place}.")
    return unfloat(names), codes.astype(np.int64)
