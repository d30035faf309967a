"""Base class of the recommenders: ids, exclusion of known items, results and files."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Bool, Float32, Shaped

from .._checks import check_count
from .._take import csr_entries
from ..data import Interactions
from ..train import load_checkpoint, save_checkpoint
from ._ids import Ids
from ._results import Recommendations, ids_at

R = TypeVar("R", bound="BaseRecommender")

FILE = "recommender.npz"
_VERSION = 1
Csr: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Items of each query: row pointers and item indices."""


def read(path: str | os.PathLike[str]) -> tuple[Path, dict[str, np.ndarray], dict[str, Any]]:
    """Returns the file of a recommender, its arrays and its metadata.

    Args:
      path: The file, or a run directory that contains ``recommender.npz``.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If the file is damaged or not one of arrays.
    """
    path = Path(path)
    file = path / FILE if path.is_dir() else path
    try:
        stored, meta = load_checkpoint(file)
    except FileNotFoundError:
        reason = f"it holds no {FILE}" if path.is_dir() else "there is no such file"
        raise FileNotFoundError(f"No recommender in {path}: {reason}.") from None
    return file, stored, meta if isinstance(meta, dict) else {}


class BaseRecommender(ABC):
    """Recommender that is queried by the ids of the dataset.

    Attributes:
      known: Known interactions, with the ids of users and items.
    """

    known: Interactions
    _format: ClassVar[str]
    _kind: ClassVar[str]

    @classmethod
    def load(cls: type[R], path: str | os.PathLike[str]) -> R:
        """Loads a recommender written by :meth:`save`.

        Args:
          path: The file, or a run directory that contains ``recommender.npz``.

        Raises:
          FileNotFoundError: If there is no such file.
          ValueError: If the file is damaged or has another format or version.
        """
        return cls.restored(*read(path))

    @classmethod
    def restored(
        cls: type[R], file: Path, stored: dict[str, np.ndarray], meta: dict[str, Any]
    ) -> R:
        """Constructs a recommender from the arrays and the metadata of a file."""
        if (got := meta.get("format")) != cls._format:
            kinds = (
                subclass._kind
                for subclass in BaseRecommender.__subclasses__()
                if subclass._format == got
            )
            kind = next(kinds, None)
            actual = f"a {kind}: use serving.load" if kind else "another file of arrays"
            raise ValueError(f"{file}: expected a {cls._kind}, got {actual}.")
        if meta.get("version") != _VERSION:
            raise ValueError(
                f"{file}: expected version {_VERSION} of the format, got {meta.get('version')!r}: "
                "another release of crl_jax wrote it."
            )
        try:
            return cls._restored(stored, meta)
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError(f"{file}: expected a complete {cls._kind}, got: {error}") from None

    @classmethod
    @abstractmethod
    def _restored(cls: type[R], stored: dict[str, np.ndarray], meta: dict[str, Any]) -> R:
        """Constructs a recommender from the arrays and the metadata of its file."""

    @abstractmethod
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the recommender atomically to one file, without pickle.

        Args:
          path: The file; by convention ``recommender.npz`` in the run directory.
        """

    def _write(
        self, path: str | os.PathLike[str], tree: dict[str, Any], meta: dict[str, Any]
    ) -> None:
        save_checkpoint(path, tree, {"format": self._format, "version": _VERSION, **meta})

    def recommend(
        self,
        users: Any = None,
        k: int = 10,
        *,
        include_known: bool = False,
        candidates: Any = None,
        exclude: Any = None,
    ) -> Recommendations:
        """Returns the top-k items of each user.

        Args:
          users: One user id, several ids in any order, or None for all users.
          k: Number of items per user, >= 1.
          include_known: Whether known items of a user may be recommended.
          candidates: Ids of the items to rank; None for the whole catalogue.
          exclude: Ids of items that are never recommended.

        Raises:
          ValueError: If an id is unknown or ``k`` is below 1.
        """
        all_users = np.arange(self.known.n_users)
        index = all_users if users is None else self._user_ids.indices(users)
        indptr, entries = csr_entries(self.known.indptr, index)
        known = indptr, self.known.items[entries]
        lists = self._top_k(self._queries(index), known, k, include_known, candidates, exclude)
        return Recommendations(self.known.user_ids[index], *lists, self._is_cold(index))

    def score(self, users: Any, items: Any) -> Float32[np.ndarray, " n"]:
        """Returns the scores of user-item pairs, known ones included.

        Args:
          users: User ids ``[n]``, or one id that is paired with each item.
          items: Item ids ``[n]``, or one id that is paired with each user.

        Returns:
          Scores, float32 ``[n]``; they equal those of :meth:`recommend` up to rounding.

        Raises:
          ValueError: If an id is unknown, or there are several users and another number of items.
        """
        rows, columns = self._user_ids.indices(users), self._item_ids.indices(items)
        if len(rows) != len(columns) and 1 not in (len(rows), len(columns)):
            raise ValueError(
                f"`items` must have one id per user, got {len(rows)} users and {len(columns)} "
                "items; `recommend` ranks all items of each user."
            )
        rows, columns = np.broadcast_arrays(rows, columns)
        return self._scores(rows, columns)

    @abstractmethod
    def _queries(self, users: np.ndarray) -> Any:
        """Returns the queries of known users by index, as :meth:`_best` takes them."""

    @abstractmethod
    def _best(
        self, queries: Any, known: Csr, mask: np.ndarray | None, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the indices and scores of the best items, without known and masked ones."""

    @abstractmethod
    def _scores(self, users: np.ndarray, items: np.ndarray) -> Float32[np.ndarray, " n"]:
        """Returns the scores of pairs of indices."""

    def _is_cold(self, users: np.ndarray) -> Bool[np.ndarray, " n"]:
        """Returns whether the lists of these users are arbitrary."""
        return self.known.degrees[users] == 0

    def _ids_by_name(self) -> dict[str, np.ndarray]:
        return {"user_ids": self.known.user_ids, "item_ids": self.known.item_ids}

    @cached_property
    def _user_ids(self) -> Ids:
        return Ids("user", self.known.user_ids)

    @cached_property
    def _item_ids(self) -> Ids:
        return Ids("item", self.known.item_ids)

    def _top_k(
        self,
        queries: Any,
        known: Csr,
        k: int,
        include_known: bool,
        candidates: Any,
        exclude: Any,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns item ids and scores; ``known`` holds the items of each query in CSR form."""
        if include_known:
            known = np.zeros_like(known[0]), np.empty(0, np.int64)
        mask = None
        if candidates is not None or exclude is not None:
            mask = np.full(self.known.n_items, candidates is None)
            if candidates is not None:
                mask[self._item_ids.indices(candidates)] = True
            if exclude is not None:
                mask[self._item_ids.indices(exclude)] = False
        index, scores = self._best(queries, known, mask, checked_k(k))
        return ids_at(self.known.item_ids, index), scores

    def _baskets(self, items: Any) -> tuple[np.ndarray, Csr]:
        """Returns names of new users, and their distinct items in CSR form."""
        if isinstance(items, Interactions):
            users = items.user_ids
            lists = np.split(items.item_ids[items.items], items.indptr[1:-1])
        elif isinstance(items, Mapping):
            users, lists = _name_array(list(items)), list(items.values())
        elif isinstance(items, Sequence | np.ndarray) and any(map(_is_list, items)):
            users, lists = np.arange(len(items)), list(items)
            if (single := next((x for x in items if not _is_list(x)), None)) is not None:
                raise ValueError(
                    "`items` must be ids or lists of ids, one per user, got both, such as "
                    f"{single!r}."
                )
        else:
            users, lists = np.arange(1), [items]
        baskets = [np.unique(self._item_ids.indices(ids)) for ids in lists]
        for user, basket in zip(users.tolist(), baskets, strict=True):
            if not len(basket):
                raise ValueError(f"`items` must hold an item of the new user {user!r}, got none.")
        indptr = np.cumsum([0, *map(len, baskets)], dtype=np.int64)
        return users, (indptr, np.concatenate([np.empty(0, np.int64), *baskets]))


def checked_k(k: int) -> int:
    """Returns the number of items of a list; ``ValueError`` if it is below 1."""
    check_count("k", k)
    return int(k)


def _is_list(x: Any) -> bool:
    return isinstance(x, Iterable) and not isinstance(x, str | bytes)


def _name_array(names: list[Any]) -> Shaped[np.ndarray, " n"]:
    """Returns an array whose ``tolist()`` is ``names``: NumPy would turn mixed types into text."""
    array = np.empty(len(names), object)
    array[:] = names
    for kind in (int, str):
        if all(type(name) is kind for name in names):
            array = np.array(names)
    return array
