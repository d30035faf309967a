"""Which column of a table holds the user, the item, the rating and the time."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .._checks import is_canonical_integer
from ._errors import DataError

# Compared without case, blanks, "_", "-" and ".": user_id, userId and "User ID" are one name.
# A kind of event ("view", "purchase") is neither a rating nor a time: no name stands for it.
_GUESSES = {
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


class Requested(NamedTuple):
    """Columns as the caller gave them: a name, or a position.

    None leaves one to a guess. An empty rating or time is none, whatever the table has.
    """

    user: str | int | None = None
    item: str | int | None = None
    rating: str | int | None = None
    time: str | int | None = None

    def positions(self) -> dict[str, int]:
        """The roles whose column is given by a number, which may be a text of digits."""
        return {
            role: int(wanted)
            for role, wanted in self._asdict().items()
            if wanted is not None and is_canonical_integer(str(wanted))
        }


class Found(NamedTuple):
    """Positions of the columns; a table need not have ratings or times."""

    user: int
    item: int
    rating: int | None
    time: int | None


@dataclass(frozen=True)
class Columns:
    """What is read from the columns of one source.

    Attributes:
      origin: The file or dataset.
      user: Name of the column with the users; of text without a header, its position.
      item: The same for items.
      rating: The same for ratings, or None.
      time: The same for timestamps, or None.
      ignored: Names of the other columns.

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
    def from_names(cls, origin: str, names: Sequence[str], found: Found) -> "Columns":
        """Those of a table with columns ``names`` of which some were ``found``."""
        rating = None if found.rating is None else names[found.rating]
        time = None if found.time is None else names[found.time]
        ignored = tuple(name for place, name in enumerate(names) if place not in found)
        return cls(origin, names[found.user], names[found.item], rating, time, ignored)

    def __str__(self) -> str:
        roles = ("user", "item", "rating", "time")
        used = ", ".join(f"{role} = {name}" for role in roles if (name := getattr(self, role)))
        return f"{used}; ignored: {', '.join(self.ignored)}" if self.ignored else used


def find_columns(names: Sequence[str], requested: Requested, where: str) -> Found:
    """The position of each column among ``names``.

    Raises:
      DataError: If a name stands twice, a requested one is absent, there is no user or
        item column, or several columns could be one. The message lists the columns.
    """
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{where}: expected distinct column names, got {twice} more than once.")
    user, item, rating, time = (
        _find(role, names, wanted, where) for role, wanted in requested._asdict().items()
    )
    if user is None or item is None:
        role = "user" if user is None else "item"
        raise DataError(
            f"{where}: expected a column with the {role}, got {list(names)}; "
            f"give `{role}_col`, its name, or its position from 0 if there is no header."
        )
    chosen = Counter(place for place in (user, item, rating, time) if place is not None)
    if shared := [names[place] for place, count in chosen.items() if count > 1]:
        raise DataError(f"{where}: expected one role for each column, got several for {shared}.")
    return Found(user, item, rating, time)


def is_usual(role: str, name: str) -> bool:
    """Whether a column of this name is taken for the one of ``role``."""
    return re.sub(r"[\s_.-]", "", name).lower() in _GUESSES[role]


def _find(role: str, names: Sequence[str], wanted: str | int | None, where: str) -> int | None:
    if wanted == "" and role in ("rating", "time"):
        return None
    if wanted in names:
        return names.index(str(wanted))
    if wanted is not None:
        if is_canonical_integer(str(wanted)) and int(wanted) < len(names):
            return int(wanted)
        raise DataError(f"{where}: expected a column {wanted!r} (`{role}_col`), got {list(names)}.")
    guesses = [place for place, name in enumerate(names) if is_usual(role, name)]
    if len(guesses) > 1:
        raise DataError(
            f"{where}: expected one column with the {role}, got "
            f"{[names[place] for place in guesses]}; choose with `{role}_col`."
        )
    return guesses[0] if guesses else None
