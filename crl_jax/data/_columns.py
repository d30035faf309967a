"""Column roles: user, item, rating and time of a table."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .._checks import is_canonical_integer
from ._errors import DataError

# Compared without case, blanks, "_", "-" and ".": user_id, userId and "User ID" are one name.
# An event type ("view", "purchase") is neither a rating nor a time, so no name matches it.
_KNOWN_NAMES = {
    "user": {
        *("user", "userid", "userindex", "uid", "users", "customerid", "reviewerid"),
        *("visitorid", "memberid", "personid"),
    },
    "item": {
        *("item", "itemid", "itemindex", "iid", "items", "movie", "movieid", "product"),
        *("productid", "asin", "parentasin", "bookid", "isbn", "trackid", "songid", "artistid"),
        *("businessid", "gameid", "articleid", "newsid", "locationid", "poiid", "venueid"),
        *("videoid", "contentid", "recipeid", "animeid"),
    },
    "rating": {
        *("rating", "ratings", "userrating", "bookrating", "reviewrating", "score", "stars"),
        "overall",
    },
    "time": {"timestamp", "timestamps", "time", "ts", "unixtime", "unixreviewtime"},
}


class ColumnSpec(NamedTuple):
    """Columns requested by the caller, by name or position.

    None is resolved by name. An empty name disables ratings or times.
    """

    user: str | int | None = None
    item: str | int | None = None
    rating: str | int | None = None
    time: str | int | None = None

    def positions(self) -> dict[str, int]:
        """Roles whose column is an integer or a string of digits."""
        return {
            role: int(column)
            for role, column in self._asdict().items()
            if column is not None and is_canonical_integer(str(column))
        }


class ColumnIndices(NamedTuple):
    """Positions of the columns; rating and time are optional."""

    user: int
    item: int
    rating: int | None
    time: int | None


@dataclass(frozen=True)
class Columns:
    """Column names that are read from one source.

    Attributes:
      origin: File or dataset.
      user: User column; its position if the text has no header.
      item: Item column.
      rating: Rating column, or None.
      time: Timestamp column, or None.
      ignored: All other columns.

    >>> print(Columns("ratings.csv", "userId", "movieId", "rating", None, ("title", "genres")))
    user = userId, item = movieId, rating = rating; ignored: title, genres
    """

    origin: str
    user: str
    item: str
    rating: str | None
    time: str | None
    ignored: tuple[str, ...]

    @classmethod
    def from_names(cls, origin: str, names: Sequence[str], indices: ColumnIndices) -> "Columns":
        """Creates the record for a table with columns ``names``."""
        user, item, *optional = indices
        rating, time = (None if index is None else names[index] for index in optional)
        ignored = tuple(name for index, name in enumerate(names) if index not in indices)
        return cls(origin, names[user], names[item], rating, time, ignored)

    def __str__(self) -> str:
        roles = ("user", "item", "rating", "time")
        used = ", ".join(f"{role} = {name}" for role in roles if (name := getattr(self, role)))
        return f"{used}; ignored: {', '.join(self.ignored)}" if self.ignored else used


def find_columns(names: Sequence[str], spec: ColumnSpec, where: str) -> ColumnIndices:
    """Returns the position of each role among ``names``.

    Raises:
      DataError: If a requested column is absent or its name is ambiguous, no column is named like
        a user or an item, or several are. The message lists the columns.
    """
    user, item, rating, time = (
        _find(role, names, column, where) for role, column in spec._asdict().items()
    )
    if user is None or item is None:
        role = "user" if user is None else "item"
        raise DataError(
            f"{where}: expected a column with the {role}, got {list(names)}; "
            f"pass `{role}_col`, its name, or its position from 0 if there is no header."
        )
    chosen = Counter(index for index in (user, item, rating, time) if index is not None)
    if shared := [names[index] for index, count in chosen.items() if count > 1]:
        raise DataError(f"{where}: expected one role for each column, got several for {shared}.")
    return ColumnIndices(user, item, rating, time)


def is_known_name(role: str, name: str) -> bool:
    """Whether a column of this name is read as ``role`` by default."""
    return re.sub(r"[\s_.-]", "", name).lower() in _KNOWN_NAMES[role]


def _find(role: str, names: Sequence[str], column: str | int | None, where: str) -> int | None:
    if column == "" and role in ("rating", "time"):
        return None
    if column is None:
        matches = [index for index, name in enumerate(names) if is_known_name(role, name)]
    else:
        matches = [index for index, name in enumerate(names) if name == column]
        if not matches and is_canonical_integer(str(column)) and int(column) < len(names):
            return int(column)
        if not matches:
            raise DataError(
                f"{where}: expected a column {column!r} (`{role}_col`), got {list(names)}."
            )
    if len(matches) > 1:
        matching = [names[index] for index in matches]
        if len(set(matching)) < len(matching):
            raise DataError(
                f"{where}: expected distinct column names, got {matching}; choose with "
                f"`{role}_col`, or with its position if the file has no header."
            )
        raise DataError(
            f"{where}: expected one column with the {role}, got {matching}; "
            f"choose with `{role}_col`."
        )
    return matches[0] if matches else None
