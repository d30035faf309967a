"""Top-k lists as arrays, with conversions to rows, dictionaries and data frames."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float32, Shaped

if TYPE_CHECKING:
    import pandas
    import polars


class _Lists:
    """Base class of top-k lists; the first three dataclass fields are query ids, ids and scores."""

    _columns = ("", "")

    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        names = [field.name for field in fields(self)[:3]]  # pyright: ignore
        queries, results, scores = (getattr(self, name) for name in names)
        return queries, results, scores

    @property
    def present(self) -> Bool[np.ndarray, "n k"]:
        """Mask of the entries that are not padding, ``[n, k]``."""
        return self._arrays()[2] > -np.inf

    def __len__(self) -> int:
        return len(self._arrays()[0])

    def rows(self) -> Iterator[tuple[Any, int, Any, float]]:
        """Yields ``(query id, rank, result id, score)`` of each entry; ranks start at 1."""
        yield from zip(*(column.tolist() for column in self.columns().values()), strict=True)

    def to_dict(self) -> dict[Any, list[tuple[Any, float]]]:
        """Returns ``{query id: [(result id, score), …]}`` in descending order of scores."""
        queries, results, scores = (array.tolist() for array in self._arrays())
        counts = self.present.sum(axis=1).tolist()
        return {
            queries[i]: list(zip(results[i][:n], scores[i][:n], strict=True))
            for i, n in enumerate(counts)
        }

    def columns(self) -> dict[str, Shaped[np.ndarray, " rows"]]:
        """Returns the entries of :meth:`rows` as four named columns."""
        queries, results, scores = self._arrays()
        present = self.present
        ranks = np.broadcast_to(np.arange(1, 1 + results.shape[1]), results.shape)
        return {
            self._columns[0]: np.repeat(queries, present.sum(axis=1)),
            "rank": ranks[present],
            self._columns[1]: results[present],
            "score": scores[present],
        }

    def to_polars(self) -> "polars.DataFrame":
        """Returns a Polars data frame with one row per entry."""
        import polars

        return polars.DataFrame(self.columns())

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a pandas data frame with one row per entry."""
        import pandas

        return pandas.DataFrame(self.columns())


@dataclass(frozen=True, eq=False)
class Recommendations(_Lists):
    """Top-k items per user.

    Lists with fewer than k candidates are padded with -1 (integer ids) or "" (text ids) and the
    score -inf; see ``present``.

    Attributes:
      users: User ids, ``[n]``.
      items: Item ids in descending order of scores, ``[n, k]``.
      scores: Scores, float32 ``[n, k]``.
      is_cold: Whether a user has no known interaction, bool ``[n]``: the vector of such a user is
        untrained, so that the list is arbitrary.
    """

    users: Shaped[np.ndarray, " n"]
    items: Shaped[np.ndarray, "n k"]
    scores: Float32[np.ndarray, "n k"]
    is_cold: Bool[np.ndarray, " n"]

    _columns = ("user", "item")


@dataclass(frozen=True, eq=False)
class Neighbours(_Lists):
    """Nearest neighbours of users or items, padded as :class:`Recommendations`.

    Attributes:
      ids: Query ids, ``[n]``.
      neighbours: Ids of the neighbours in descending order of cosines, ``[n, k]``.
      scores: Cosines, float32 ``[n, k]``.
    """

    ids: Shaped[np.ndarray, " n"]
    neighbours: Shaped[np.ndarray, "n k"]
    scores: Float32[np.ndarray, "n k"]

    _columns = ("id", "neighbour")


def ids_at(ids: Shaped[np.ndarray, " n_ids"], index: np.ndarray) -> Shaped[np.ndarray, "..."]:
    """Returns ``ids[index]``, with -1 or "" where ``index`` is -1."""
    missing = "" if ids.dtype.kind == "U" else -1
    return np.where(index >= 0, ids[index], np.array(missing, ids.dtype))
