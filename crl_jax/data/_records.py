"""What every reader returns, and how records become interactions with shared vocabularies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Shaped

from . import _ids
from ._errors import DataError, warn_if
from ._interactions import Interactions


@dataclass(frozen=True, eq=False)
class Records:
    """The interactions of one source, in its order, with ids numbered by that source alone.

    Attributes:
      origin: The file or dataset, for messages.
      user_names: Distinct valid original user ids; ``users`` are places among them.
      item_names: Distinct valid original item ids; ``items`` are places among them.
    """

    origin: str
    user_names: _ids.Names
    item_names: _ids.Names
    users: Shaped[np.ndarray, " n"]
    items: Shaped[np.ndarray, " n"]
    ratings: Float32[np.ndarray, " n"] | None = None
    timestamps: Shaped[np.ndarray, " n"] | None = None

    def __post_init__(self) -> None:
        if not len(self.users):
            raise DataError(f"{self.origin}: expected interactions, got none.")


class Collector:
    """Gathers records that come in batches, from one file or from several.

    Attributes:
      users: Numbers the users of the batches.
      items: Numbers their items.
    """

    def __init__(self) -> None:
        self.users, self.items = _ids.Encoder(), _ids.Encoder()
        self._numbers: dict[str, list[np.ndarray]] = {"ratings": [], "timestamps": []}
        self._counts = dict.fromkeys(self._numbers, 0)

    def add_numbers(self, ratings: np.ndarray | None, timestamps: np.ndarray | None) -> None:
        """Takes the ratings and times of a batch, whose ids the encoders were given."""
        for name, column in (("ratings", ratings), ("timestamps", timestamps)):
            if column is not None:
                self._numbers[name].append(column)
                self._counts[name] += len(column)

    def check_columns(self, path: str) -> None:
        """Raises :class:`DataError` unless all files up to this one have the same columns."""
        for name, count in self._counts.items():
            if count not in (0, self.users.count):
                raise DataError(f"{path}: expected {name} in all files of a log or in none.")

    def records(self, origin: str) -> Records:
        """All that came; ends the collector."""
        users, items = self.users.result(), self.items.result()
        return Records(
            origin,
            users[0],
            items[0],
            users=users[1],
            items=items[1],
            ratings=self._joined("ratings"),
            timestamps=self._joined("timestamps"),
        )

    def _joined(self, name: str) -> np.ndarray | None:
        parts, self._numbers[name] = self._numbers[name], []
        return np.concatenate(parts) if parts else None


def to_interactions(
    sources: Sequence[Records], *, min_rating: int | float | None = None
) -> list[Interactions]:
    """Interactions of each source, all with the union of the sources' vocabularies.

    With ``min_rating``, only interactions rated at least that stay, judged after repeated
    interactions gave way to their last; ids keep their place in the vocabularies.
    """
    users = [_ids.unfloat(source.user_names) for source in sources]
    items = [_ids.unfloat(source.item_names) for source in sources]
    user_ids, item_ids = _ids.vocabulary(*users), _ids.vocabulary(*items)
    parts = []
    for source, user_names, item_names in zip(sources, users, items, strict=True):
        part = Interactions._from_indices(
            _ids.indices(user_names, user_ids, source.users),
            _ids.indices(item_names, item_ids, source.items),
            source.ratings,
            source.timestamps,
            user_ids,
            item_ids,
            origin=source.origin,
        )
        parts.append(rated_at_least(part, min_rating, source.origin))
    return parts


def rated_at_least(data: Interactions, min_rating: int | float | None, origin: str) -> Interactions:
    """The interactions rated at least ``min_rating``, or all where that is None."""
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
