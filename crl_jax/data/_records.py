"""Records of one source, and their conversion to interactions with shared vocabularies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Shaped

from . import _ids
from ._errors import DataError, shorten, warn_if
from ._interactions import Interactions
from ._values import Column, InvalidValue, parse_ratings, parse_times


@dataclass(frozen=True, eq=False)
class Records:
    """Interactions of one source in their original order, encoded with its own ids.

    Attributes:
      origin: File or dataset, for messages.
      user_names: Distinct valid user ids; ``users`` are codes into them.
      item_names: Distinct valid item ids; ``items`` are codes into them.
    """

    origin: str
    user_names: _ids.Names
    item_names: _ids.Names
    users: Shaped[np.ndarray, " n"]
    items: Shaped[np.ndarray, " n"]
    ratings: Float32[np.ndarray, " n"] | None = None
    timestamps: Shaped[np.ndarray, " n"] | None = None


class RecordBuilder:
    """Collects the columns of one source, batch by batch.

    Args:
      origin: File or dataset, for messages.
      names: Column names by role ("user", "item" and perhaps "rating" and "time").
    """

    def __init__(self, origin: str, names: Mapping[str, str]) -> None:
        self._origin, self._names = origin, names
        self._encoders = {"user": _ids.IdEncoder(), "item": _ids.IdEncoder()}
        self._numbers: dict[str, list[np.ndarray]] = {"rating": [], "time": []}

    def add(self, columns: Mapping[str, Column], where: Callable[[int], str]) -> None:
        """Adds one batch.

        Args:
          columns: Values by role.
          where: Function from a row index of the batch to the place that messages give.

        Raises:
          DataError: If a value cannot be converted.
        """
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
        numbers = {
            role: np.concatenate(parts) if parts else None for role, parts in self._numbers.items()
        }
        self._numbers.clear()
        encoded: dict[str, tuple[_ids.Names, np.ndarray]] = {}
        for role, encoder in self._encoders.items():
            names, codes = encoder.result()
            count, marks = _ids.count_missing_marks(names, codes)
            warn_if(
                count, f"{{n}} {role} ids are {marks}, which mark missing values", of=self._origin
            )
            encoded[role] = _ids.strip_float_suffix(names), codes
        return Records(
            self._origin,
            encoded["user"][0],
            encoded["item"][0],
            encoded["user"][1],
            encoded["item"][1],
            numbers["rating"],
            numbers["time"],
        )


def concatenate(origin: str, shards: Sequence[Records]) -> Records:
    """Joins the shards of one log.

    Raises:
      DataError: If only some of the shards have ratings or timestamps.
    """
    if len(shards) == 1:
        return shards[0]
    for name in ("ratings", "timestamps"):
        for shard in shards[1:]:
            if (getattr(shard, name) is None) != (getattr(shards[0], name) is None):
                raise DataError(
                    f"{shard.origin}: expected {name} in all files of a log or in none."
                )

    def joined(name: str) -> np.ndarray | None:
        parts = [getattr(shard, name) for shard in shards]
        return None if parts[0] is None else np.concatenate(parts)

    def encoded(role: str) -> tuple[_ids.Names, np.ndarray]:
        all_names: list[_ids.Names] = [getattr(shard, f"{role}_names") for shard in shards]
        vocabulary = _vocabulary(origin, all_names[:1])
        for names in all_names[1:]:  # one by one, as all together may take much more memory
            vocabulary = _vocabulary(origin, [vocabulary, names])
        codes = [
            _ids.indices(names, vocabulary, getattr(shard, f"{role}s"))
            for names, shard in zip(all_names, shards, strict=True)
        ]
        return vocabulary, np.concatenate(codes)

    users, items = encoded("user"), encoded("item")
    ratings, timestamps = joined("ratings"), joined("timestamps")
    return Records(origin, users[0], items[0], users[1], items[1], ratings, timestamps)


def _vocabulary(origin: str, names: Sequence[_ids.Names]) -> np.ndarray:
    try:
        return _ids.vocabulary(*names)
    except DataError as error:
        raise DataError(f"{origin}: {error}") from None


def to_interactions(
    sources: Sequence[Records], *, min_rating: int | float | None = None
) -> list[Interactions]:
    """Converts records to interactions that share the union of the sources' vocabularies.

    With ``min_rating``, lower ratings are removed after repeated interactions are dropped; the
    vocabularies stay.
    """
    for source in sources:
        if not len(source.users):
            raise DataError(f"{source.origin}: expected interactions, got none.")
    origin = sources[0].origin
    user_ids = _vocabulary(origin, [source.user_names for source in sources])
    item_ids = _vocabulary(origin, [source.item_names for source in sources])
    parts = []
    for source in sources:
        part = Interactions._from_indices(
            _ids.indices(source.user_names, user_ids, source.users),
            _ids.indices(source.item_names, item_ids, source.items),
            source.ratings,
            source.timestamps,
            user_ids,
            item_ids,
            origin=source.origin,
        )
        parts.append(filter_by_rating(part, min_rating, source.origin))
    return parts


def filter_by_rating(
    data: Interactions, min_rating: int | float | None, origin: str
) -> Interactions:
    """Keeps interactions rated at least ``min_rating``, or all if it is None."""
    if min_rating is None:
        return data
    if data.ratings is None:
        raise DataError(f"{origin}: expected ratings, as `min_rating` is given, got none.")
    kept = data.select(data.ratings >= min_rating)
    if not len(kept):
        raise DataError(
            f"{origin}: expected ratings of at least `min_rating` = {min_rating}, "
            f"got none above {data.ratings.max()}."
        )
    emptied = int(np.sum((data.degrees > 0) & (kept.degrees == 0)))
    warn_if(emptied, f"{{n}} users have no rating of at least {min_rating}", of=origin)
    return kept
