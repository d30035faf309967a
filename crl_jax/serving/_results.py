"""Lists of the best, as arrays and in the forms that other tools take."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float32, Shaped

if TYPE_CHECKING:
    import pandas
    import polars


class _Lists:
    """One list for each of ``n`` ids: the arrays are the fields of the dataclass that inherits."""

    _columns = ("", "")

    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        of, found, scores = (getattr(self, field.name) for field in fields(self))  # pyright: ignore
        return of, found, scores

    @property
    def present(self) -> Bool[np.ndarray, "n k"]:
        """Which places hold something, ``[n, k]``."""
        return self._arrays()[2] > -np.inf

    def __len__(self) -> int:
        return len(self._arrays()[0])

    def rows(self) -> Iterator[tuple[Any, int, Any, float]]:
        """``(id, rank, id found, score)`` one after another; ranks count from 1."""
        yield from zip(*(column.tolist() for column in self.columns().values()), strict=True)

    def to_dict(self) -> dict[Any, list[tuple[Any, float]]]:
        """The list of each id: ``{id: [(id found, score), …]}``, the best first."""
        of, found, scores = (array.tolist() for array in self._arrays())
        counts = self.present.sum(axis=1).tolist()
        return {
            of[i]: list(zip(found[i][:n], scores[i][:n], strict=True)) for i, n in enumerate(counts)
        }

    def columns(self) -> dict[str, Shaped[np.ndarray, " rows"]]:
        """The same as :meth:`rows` in four arrays by name, for any table of columns."""
        of, found, scores = self._arrays()
        present = self.present
        ranks = np.broadcast_to(np.arange(1, 1 + found.shape[1]), found.shape)
        return {
            self._columns[0]: np.repeat(of, present.sum(axis=1)),
            "rank": ranks[present],
            self._columns[1]: found[present],
            "score": scores[present],
        }

    def to_polars(self) -> "polars.DataFrame":
        """A Polars table, a row for each place of each list."""
        import polars

        return polars.DataFrame(self.columns())

    def to_pandas(self) -> "pandas.DataFrame":
        """A pandas table, a row for each place of each list."""
        import pandas

        return pandas.DataFrame(self.columns())


@dataclass(frozen=True, eq=False)
class Recommendations(_Lists):
    """The best items of some users.

    Where a user has fewer than k items to choose from, the places left hold -1 (ids that are
    integers) or "" (ids that are text), with the score -inf. :attr:`present` tells.

    Attributes:
      users: Ids of the users, ``[n]``.
      items: Ids of their items, the best first, ``[n, k]``.
      scores: The scores, float32 ``[n, k]``.
    """

    users: Shaped[np.ndarray, " n"]
    items: Shaped[np.ndarray, "n k"]
    scores: Float32[np.ndarray, "n k"]

    _columns = ("user", "item")


@dataclass(frozen=True, eq=False)
class Neighbours(_Lists):
    """The users or items that are most like some others.

    Places left over are marked as in :class:`Recommendations`.

    Attributes:
      ids: What was asked for, ``[n]``.
      neighbours: The most similar others, the best first, ``[n, k]``.
      scores: Their cosines, float32 ``[n, k]``.
    """

    ids: Shaped[np.ndarray, " n"]
    neighbours: Shaped[np.ndarray, "n k"]
    scores: Float32[np.ndarray, "n k"]

    _columns = ("id", "neighbour")


def names(ids: Shaped[np.ndarray, " n_ids"], places: np.ndarray) -> Shaped[np.ndarray, "..."]:
    """The ids at some places; -1 or "" at the place -1."""
    missing = "" if ids.dtype.kind == "U" else -1
    return np.where(places >= 0, ids[places], np.array(missing, ids.dtype))
