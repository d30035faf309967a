"""Records of the files of a source, and their conversion to interactions with shared ids."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Shaped

from .._checks import check_range
from . import _ids
from ._errors import DataError, shorten, warn_if
from ._interactions import Interactions
from ._values import Column, InvalidValue, parse_ratings, parse_times


class Records(NamedTuple):
    """Interactions of one file in their order; ids are distinct ids and the codes into them."""

    origin: str
    users: tuple[_ids.Names, Shaped[np.ndarray, " n"]]
    items: tuple[_ids.Names, Shaped[np.ndarray, " n"]]
    ratings: Float32[np.ndarray, " n"] | None = None
    timestamps: Shaped[np.ndarray, " n"] | None = None


class RecordBuilder:
    """Collects the columns of one source, whose names are given by role, batch by batch."""

    def __init__(self, origin: str, names: Mapping[str, str]) -> None:
        self._origin, self._names = origin, names
        self._encoders = {"user": _ids.IdEncoder(), "item": _ids.IdEncoder()}
        self._numbers: dict[str, list[np.ndarray]] = {"rating": [], "time": []}

    def add(self, columns: Mapping[str, Column], where: Callable[[int], str]) -> None:
        """Adds one batch by role; ``where`` names the place of a row in messages."""
        for role, column in columns.items():
            try:
                if role in self._encoders:
                    self._encoders[role].add(column)
                elif role == "rating":
                    self._numbers[role].append(parse_ratings(column))
                else:
                    self._numbers[role].append(parse_times(column))
            except InvalidValue as error:
                raise DataError(
                    f"{where(error.index)}: expected {error.expected} as {self._names[role]!r}, "
                    f"got {shorten(error.value)}."
                ) from None

    def build(self) -> Records:
        """Returns all records; the builder is then exhausted."""
        numbers = [
            np.concatenate(parts) if (parts := self._numbers.pop(role)) else None
            for role in ("rating", "time")
        ]
        encoded = []
        for role, encoder in self._encoders.items():
            names, codes = encoder.result()
            count, marks = _ids.count_missing_marks(names, codes)
            warn_if(
                count,
                f"{{n}} {role} ids are {marks}, which mark missing values",
                origin=self._origin,
            )
            encoded.append((_ids.strip_float_suffix(names), codes))
        return Records(self._origin, *encoded, *numbers)


def to_interactions(
    logs: Sequence[tuple[str, Sequence[Records]]], *, min_rating: int | float | None = None
) -> list[Interactions]:
    """Converts logs, each a display name and its files, to interactions with shared ids."""
    for origin, files in logs:
        if not any(len(file.users[1]) for file in files):
            raise DataError(f"{origin}: expected interactions, got none.")
        for name in ("ratings", "timestamps"):
            for file in files[1:]:
                if (getattr(file, name) is None) != (getattr(files[0], name) is None):
                    raise DataError(
                        f"{file.origin}: expected {name} in all files of a log or in none."
                    )
    every_file = [file for _, files in logs for file in files]
    user_ids = _vocabulary(logs[0][0], [file.users[0] for file in every_file])
    item_ids = _vocabulary(logs[0][0], [file.items[0] for file in every_file])
    parts = []
    for origin, files in logs:
        part = Interactions._from_indices(
            np.concatenate([_ids.indices(*file.users, user_ids) for file in files]),
            np.concatenate([_ids.indices(*file.items, item_ids) for file in files]),
            _concatenate([file.ratings for file in files]),
            _concatenate([file.timestamps for file in files]),
            user_ids,
            item_ids,
            origin=origin,
        )
        parts.append(filter_by_rating(part, min_rating, origin))
    return parts


def _vocabulary(origin: str, names: Sequence[_ids.Names]) -> np.ndarray:
    try:  # one by one, as all together may take much more memory
        return reduce(_ids.vocabulary, names[1:], _ids.vocabulary(names[0]))
    except DataError as error:
        raise DataError(f"{origin}: {error}") from None


def _concatenate(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    arrays = [part for part in parts if part is not None]
    return np.concatenate(arrays) if arrays else None


def filter_by_rating(
    data: Interactions, min_rating: int | float | None, origin: str
) -> Interactions:
    """Keeps interactions rated at least ``min_rating``, or all if it is None."""
    if min_rating is None:
        return data
    check_range("min_rating", min_rating, -np.inf, np.inf)
    if data.ratings is None:
        raise DataError(f"{origin}: expected ratings, as `min_rating` is given, got none.")
    selected = data.select(data.ratings >= min_rating)
    if not len(selected):
        raise DataError(
            f"{origin}: expected ratings of at least `min_rating` = {min_rating}, "
            f"got none above {data.ratings.max()}."
        )
    emptied = int(np.sum((data.degrees > 0) & (selected.degrees == 0)))
    warn_if(emptied, f"{{n}} users have no rating of at least {min_rating}", origin=origin)
    return selected
