"""Column roles: user, item, rating and time of a table."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .._checks import is_canonical_integer
from ._errors import DataError

ROLES = ("user", "item", "rating", "time")
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


# Column per role as requested by the caller: a name, a position, or None to find it by name.
# An empty name disables ratings or times.
ColumnSpec: TypeAlias = Mapping[str, str | int | None]


def positions(spec: ColumnSpec) -> dict[str, int]:
    """Roles whose column is an integer or a string of digits."""
    return {
        role: int(column)
        for role, column in spec.items()
        if column is not None and is_canonical_integer(str(column))
    }


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
    def from_names(cls, origin: str, names: Sequence[str], indices: Mapping[str, int]) -> "Columns":
        """Creates the record for a table with columns ``names``."""
        used = {role: names[indices[role]] if role in indices else None for role in ROLES}
        ignored = [name for index, name in enumerate(names) if index not in indices.values()]
        return cls(origin, **used, ignored=tuple(ignored))  # pyright: ignore[reportArgumentType]

    def __str__(self) -> str:
        used = ", ".join(f"{role} = {name}" for role in ROLES if (name := getattr(self, role)))
        return f"{used}; ignored: {', '.join(self.ignored)}" if self.ignored else used


def find_columns(names: Sequence[str], spec: ColumnSpec, where: str) -> dict[str, int]:
    """Position of each role among ``names``; the DataError lists the columns."""
    matches = {role: _find(role, names, column, where) for role, column in spec.items()}
    for role in ("user", "item"):
        if matches[role] is None:
            raise DataError(
                f"{where}: expected a column with the {role}, got {list(names)}; "
                f"pass `{role}_col`, its name, or its position from 0 if there is no header."
            )
    indices = {role: index for role, index in matches.items() if index is not None}
    if shared := [names[index] for index, n in Counter(indices.values()).items() if n > 1]:
        raise DataError(f"{where}: expected one role for each column, got several for {shared}.")
    return indices


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
        if not matches and positions({role: column}) and int(column) < len(names):
            return int(column)
        if not matches:
            raise DataError(
                f"{where}: expected a column {column!r} (`{role}_col`), got {list(names)}."
            )
    if len(matches) <= 1:
        return matches[0] if matches else None
    matching = [names[index] for index in matches]
    if len(set(matching)) < len(matching):
        raise DataError(
            f"{where}: expected distinct column names, got {matching}; choose with "
            f"`{role}_col`, or with its position if the file has no header."
        )
    raise DataError(
        f"{where}: expected one column with the {role}, got {matching}; choose with `{role}_col`."
    )
