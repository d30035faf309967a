"""What every reader returns, and how records become interactions with shared vocabularies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64, Shaped

from . import _ids
from ._interactions import Interactions
from ._outcomes import DataError, warn_if


@dataclass(frozen=True, eq=False)
class Records:
    """The interactions of one source, in its order, with ids numbered by that source alone.

    Attributes:
      origin: The file or dataset, for messages.
      user_names: Distinct valid original user ids; ``users`` are places in this list.
      item_names: Distinct valid original item ids; ``items`` are places in this list.
    """

    origin: str
    user_names: list[str]
    item_names: list[str]
    users: Int64[np.ndarray, " n"]
    items: Int64[np.ndarray, " n"]
    ratings: Float32[np.ndarray, " n"] | None = None
    timestamps: Shaped[np.ndarray, " n"] | None = None

    def __post_init__(self) -> None:
        if not len(self.users):
            raise DataError(f"{self.origin}: expected interactions, got none.")


def to_interactions(
    sources: Sequence[Records], *, min_rating: int | float | None = None
) -> list[Interactions]:
    """Interactions of each source, all with the union of the sources' vocabularies.

    With ``min_rating``, only interactions rated at least that stay, judged after repeated
    interactions gave way to their last; ids keep their place in the vocabularies.
    """
    users = [_ids.unfloat(source.user_names) for source in sources]
    items = [_ids.unfloat(source.item_names) for source in sources]
    user_ids = _ids.vocabulary([name for names in users for name in names])
    item_ids = _ids.vocabulary([name for names in items for name in names])
    parts = []
    for source, user_names, item_names in zip(sources, users, items, strict=True):
        part = Interactions._from_indices(
            _ids.places(user_names, user_ids)[source.users],
            _ids.places(item_names, item_ids)[source.items],
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
