"""User–item interactions in CSR form, and splits of them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, Shaped
from numpy.typing import ArrayLike

from .._checks import check_distinct, check_finite, check_shape, is_canonical_integer
from . import _ids, _split_sampling
from ._errors import DataError, warn_if
from ._split_sampling import check_indices, freeze_arrays
from ._values import InvalidValue, parse_ratings, parse_times

_DTYPES = {
    "indptr": np.int64,
    "items": np.int32,
    "user_ids": (np.int64, np.str_),
    "item_ids": (np.int64, np.str_),
    "ratings": np.float32,
    "timestamps": (np.int64, np.float64),
}


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """User–item interactions in compressed sparse row (CSR) form, on the host.

    The items of user ``u`` are ``items[indptr[u]:indptr[u + 1]]``, ascending and distinct.
    Arrays are read-only; writable arguments are copied.

    Attributes:
      indptr: Row offsets, int64 ``[n_users + 1]``, from 0 to n.
      items: Item indices in ``[0, n_items)``, int32 ``[n]``.
      user_ids: Distinct original ids of the user indices, ``[n_users]``: int64 if every id is an
        integer, else text.
      item_ids: Distinct original ids of the item indices, ``[n_items]``, likewise.
      ratings: Finite float32 ``[n]``, or None.
      timestamps: Finite int64 or float64 ``[n]``, or None.

    Raises:
      ValueError: If a field violates these conditions; the message names it.

    >>> data = Interactions.from_arrays(["ann", "bob", "ann"], [7, 7, 3])
    >>> data
    Interactions(2 users, 2 items, 3 interactions)
    >>> data.item_ids[data.items[data.indptr[0] : data.indptr[1]]]
    array([3, 7])
    """

    indptr: Int64[np.ndarray, " rows"]
    items: Int32[np.ndarray, " n"]
    user_ids: Shaped[np.ndarray, " n_users"]
    item_ids: Shaped[np.ndarray, " n_items"]
    ratings: Float32[np.ndarray, " n"] | None = None
    timestamps: Shaped[np.ndarray, " n"] | None = None

    def __post_init__(self) -> None:
        freeze_arrays(self, _DTYPES)
        indptr, items, n = self.indptr, self.items, len(self.items)
        if max(self.n_users, self.n_items) > np.iinfo(np.int32).max:
            raise ValueError("`user_ids` and `item_ids` must have fewer than 2**31 entries.")
        check_shape("indptr", indptr, (self.n_users + 1,))
        check_shape("ratings", self.ratings, (n,))
        check_shape("timestamps", self.timestamps, (n,))
        if indptr[0] != 0 or indptr[-1] != n or np.any(indptr[1:] < indptr[:-1]):
            raise ValueError(f"`indptr` must increase from 0 to len(items) = {n}, got {indptr}.")
        check_indices("items", items, self.n_items)
        # Items may decrease only from one user to the next.
        falls = 1 + np.flatnonzero(items[1:] <= items[:-1])
        if len(within := falls[~np.isin(falls, indptr)]):
            raise ValueError(
                "`items` must be ascending and distinct within each user, got "
                f"{items[within[0]]} after {items[within[0] - 1]}."
            )
        for name in ("user_ids", "item_ids"):
            ids = getattr(self, name)
            # Ascending ids, which readers return, are distinct without a sort.
            if not np.all(ids[1:] > ids[:-1]):
                check_distinct(name, ids)
        for name in ("ratings", "timestamps"):
            if (array := getattr(self, name)) is not None:
                check_finite(name, array)

    @classmethod
    def from_arrays(
        cls,
        users: ArrayLike,
        items: ArrayLike,
        *,
        ratings: ArrayLike | None = None,
        timestamps: ArrayLike | None = None,
        user_ids: ArrayLike | None = None,
        item_ids: ArrayLike | None = None,
    ) -> "Interactions":
        """Creates interactions from parallel arrays, in any order.

        Of repeated interactions of a user with an item, the last by timestamp is kept (without
        timestamps, or among equal ones, the last in order); a :class:`DataWarning` counts the
        others.

        Args:
          users: Original user ids ``[n]``, or indices into ``user_ids`` if that is given.
          items: Original item ids ``[n]``, or indices into ``item_ids`` if that is given.
          ratings: Finite numbers ``[n]``.
          timestamps: Finite numbers ``[n]``, or dates, which become seconds since 1970.
          user_ids: Vocabulary ``[n_users]``, which may include users without interactions. By
            default the distinct ``users``, ascending.
          item_ids: Vocabulary of the items, likewise.

        Raises:
          ValueError: If the shapes differ, an id is empty or negative, an index leaves its
            vocabulary, or a rating or timestamp is not finite.
        """
        user_index, user_ids = _indices("user", users, user_ids)
        item_index, item_ids = _indices("item", items, item_ids)
        return cls._from_indices(user_index, item_index, ratings, timestamps, user_ids, item_ids)

    @classmethod
    def _from_indices(
        cls,
        users: Shaped[np.ndarray, " n"],
        items: Shaped[np.ndarray, " n"],
        ratings: ArrayLike | None,
        timestamps: ArrayLike | None,
        user_ids: Shaped[np.ndarray, " n_users"],
        item_ids: Shaped[np.ndarray, " n_items"],
        origin: str | None = None,
    ) -> "Interactions":
        n = len(users)
        check_shape("items", items, (n,))
        ratings = _numbers("ratings", ratings, n, parse_ratings)
        timestamps = _numbers("timestamps", timestamps, n, parse_times)
        sizes = len(user_ids), len(item_ids)
        needs_order = ratings is not None or timestamps is not None
        pairs, order = _deduplicate(users, items, sizes, timestamps, needs_order)
        warn_if(
            n - len(pairs),
            "dropped {n} repeated interactions of a user with an item and kept the last of each",
            origin=origin,
        )
        indptr = np.searchsorted(pairs, np.arange(sizes[0] + 1) * sizes[1])
        np.remainder(pairs, max(1, sizes[1]), out=pairs)
        items = pairs.astype(np.int32)
        ratings, timestamps = (None if x is None else x[order] for x in (ratings, timestamps))
        for array in (indptr, items, ratings, timestamps):
            if array is not None:
                array.setflags(write=False)  # avoids a copy
        return cls(indptr, items, user_ids, item_ids, ratings, timestamps)

    @property
    def n_users(self) -> int:
        """Number of users, including those without interactions."""
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        """Number of items, including those without interactions."""
        return len(self.item_ids)

    @cached_property
    def users(self) -> Int32[np.ndarray, " n"]:
        """User index of every interaction, int32 ``[n]``, ascending."""
        users = np.repeat(np.arange(self.n_users, dtype=np.int32), self.degrees)
        users.setflags(write=False)
        return users

    @property
    def degrees(self) -> Int64[np.ndarray, " n_users"]:
        """Number of interactions per user, int64 ``[n_users]``."""
        return np.diff(self.indptr)

    @property
    def item_counts(self) -> Int64[np.ndarray, " n_items"]:
        """Popularity: number of interactions per item, int64 ``[n_items]``."""
        return np.bincount(self.items, minlength=self.n_items)

    @property
    def density(self) -> float:
        """Fraction of user–item pairs that are interactions, in [0, 1]."""
        return len(self) / max(1, self.n_users * self.n_items)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        extra = [name for name in ("ratings", "timestamps") if getattr(self, name) is not None]
        sizes = f"{self.n_users} users, {self.n_items} items, {len(self)} interactions"
        return f"Interactions({', '.join([sizes, *extra])})"

    def select(self, mask: Bool[np.ndarray, " n"]) -> "Interactions":
        """Returns the interactions where ``mask`` is True, with the same vocabularies.

        Args:
          mask: Boolean ``[n]``.

        Raises:
          ValueError: If ``mask`` is not boolean of that shape.
        """
        check_shape("mask", mask, (len(self),))
        if np.asarray(mask).dtype != bool:
            raise ValueError(f"`mask` must be boolean, got {np.asarray(mask).dtype}.")
        n_selected = np.concatenate(([0], np.cumsum(mask, dtype=np.int64)))
        return type(self)(
            n_selected[self.indptr],
            self.items[mask],
            self.user_ids,
            self.item_ids,
            *(None if x is None else x[mask] for x in (self.ratings, self.timestamps)),
        )

    def fingerprint(self) -> str:
        """Returns the SHA-256 of the contents in hexadecimal, equal on all machines."""
        digest = hashlib.sha256()
        for field in fields(self):
            array = getattr(self, field.name)
            if array is None:
                digest.update(f"{field.name}:none;".encode())
            elif array.dtype.kind == "U":  # the bytes depend on the longest id
                digest.update(f"{field.name}:text{array.shape};".encode())
                for name in array.tolist():
                    digest.update(f"{len(name)}:{name}".encode())
            else:
                digest.update(f"{field.name}:{array.dtype.name}{array.shape};".encode())
                little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
                digest.update(np.ascontiguousarray(little_endian).data)
        return digest.hexdigest()

    def user_index(self, original_id: int | np.integer | str) -> int:
        """Returns the index of the user with this original id; 196 and "196" are the same id.

        Raises:
          ValueError: If there is no such user.
        """
        return _find_index("user", self.user_ids, original_id)

    def item_index(self, original_id: int | np.integer | str) -> int:
        """Returns the index of the item with this original id, as :meth:`user_index` does."""
        return _find_index("item", self.item_ids, original_id)


@dataclass(frozen=True, eq=False)
class Split(_split_sampling.Split):
    """Disjoint training, validation and test parts of one dataset.

    Attributes:
      train: Training interactions.
      valid: Validation interactions, or None.
      test: Test interactions, or None.

    Raises:
      ValueError: If the parts have different vocabularies, or share an interaction.
    """

    train: Interactions
    valid: Interactions | None = None
    test: Interactions | None = None

    def __post_init__(self) -> None:
        for (other_name, other), (name, part) in combinations(self.parts(), 2):
            check_same_vocabularies(name, part, other_name, other)
            if shared := int(membership_mask(other, part).sum()):
                raise ValueError(
                    f"`{name}` must share no interaction with `{other_name}`, got {shared} in both."
                )


class HeldOutSplit(Split):
    """A :class:`Split` that has a test part.

    Attributes:
      test: Test interactions.

    Raises:
      ValueError: If there is no test part, and as :class:`Split`.
    """

    test: Interactions

    def __post_init__(self) -> None:
        if self.test is None:
            raise ValueError("`test` must be Interactions, got None.")
        super().__post_init__()


def membership_mask(data: Interactions, part: Interactions) -> Bool[np.ndarray, " n_part"]:
    """Whether each interaction of ``part`` is in ``data``, which has the same vocabularies."""
    check_same_vocabularies("part", part, "data", data)
    pairs, queries = _pairs(data), _pairs(part)
    if not len(pairs):
        return np.zeros(len(queries), bool)
    index = np.searchsorted(pairs, queries)  # CSR order is ascending
    return pairs[np.minimum(index, len(pairs) - 1)] == queries


def check_same_vocabularies(
    name: str, part: Interactions, other_name: str, other: Interactions
) -> None:
    """Raises ValueError unless two logs have equal ids, whose indices can be compared."""
    for ids in ("user_ids", "item_ids"):
        if not np.array_equal(getattr(part, ids), getattr(other, ids)):
            raise ValueError(f"`{name}` must have the `{ids}` of `{other_name}`.")


def _deduplicate(
    users: Shaped[np.ndarray, " n"],
    items: Shaped[np.ndarray, " n"],
    sizes: tuple[int, int],
    timestamps: np.ndarray | None,
    needs_order: bool,
) -> tuple[Int64[np.ndarray, " n_pairs"], Shaped[np.ndarray, " n_pairs"] | None]:
    """Ascending distinct pairs ``user * n_items + item`` and, on demand, their last positions."""
    pairs = users.astype(np.int64)
    pairs *= sizes[1]
    np.add(pairs, items, out=pairs, casting="unsafe")  # indices of any integer type
    order = np.arange(len(pairs)) if needs_order else None
    if np.any(pairs[1:] < pairs[:-1]):
        if order is None:
            pairs.sort()
        else:
            order = _counting_order(items, sizes[1])
            order = order[_counting_order(users[order], sizes[0])]
            pairs = pairs[order]
    is_last = np.append(pairs[1:] != pairs[:-1], True)[: len(pairs)]
    if is_last.all():
        return pairs, order
    if order is not None:
        if timestamps is not None:
            repeated = np.flatnonzero(~(is_last & np.append(True, is_last[:-1])))
            by_time = np.lexsort((timestamps[order[repeated]], pairs[repeated]))
            order[repeated] = order[repeated][by_time]
        order = order[is_last]
    return pairs[is_last], order


def _counting_order(keys: Shaped[np.ndarray, " n"], n_keys: int) -> Shaped[np.ndarray, " n"]:
    """Stable argsort of integers in [0, n_keys), in linear time."""
    from scipy import sparse  # imported here: takes 0.1 s

    n = len(keys)
    # Conversion to CSC of a matrix with one entry per row is a counting sort.
    by_row = sparse.csr_array((np.ones(n, bool), keys, np.arange(n + 1)), shape=(n, n_keys))
    return by_row.tocsc().indices


def _pairs(data: Interactions) -> Int64[np.ndarray, " n"]:
    return data.users.astype(np.int64) * data.n_items + data.items


def _numbers(
    name: str, values: ArrayLike | None, n: int, parse: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray | None:
    if values is None:
        return None
    array = np.asarray(values)
    check_shape(name, array, (n,))
    if array.dtype.kind not in ("iuf" if name == "ratings" else "iufM"):
        raise ValueError(f"`{name}` must be numbers, got {array.dtype}.")
    try:
        return parse(array)
    except InvalidValue as error:
        raise ValueError(f"`{name}` must be finite, got {array[error.index]}.") from None


def _indices(
    kind: str, column: ArrayLike, ids: ArrayLike | None
) -> tuple[Shaped[np.ndarray, " n"], Shaped[np.ndarray, " n_ids"]]:
    if ids is None:
        names, codes = _ids.encode(column, f"{kind}s")
        vocabulary = _ids.vocabulary(names)
        return _ids.indices(names, codes, vocabulary), vocabulary
    vocabulary = _ids.encode_distinct(ids, f"{kind}_ids")
    index = np.asarray(column)
    if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
        raise ValueError(
            f"`{kind}s` must be a one-dimensional array of indices into `{kind}_ids`, "
            f"got shape {index.shape} of {index.dtype}."
        )
    check_indices(f"{kind}s", index, len(vocabulary))
    return index if index.size else index.astype(np.int64), vocabulary


def _find_index(
    kind: str, ids: Shaped[np.ndarray, " n"], original_id: int | np.integer | str
) -> int:
    text = str(original_id)
    if ids.dtype.kind == "U":
        matches = np.flatnonzero(ids == text)
    elif is_canonical_integer(text):  # "01" is not 1
        matches = np.flatnonzero(ids == int(text))
    else:
        matches = []
    if not len(matches):
        examples = ", ".join(str(x) for x in ids[:3].tolist())
        raise DataError(
            f"Unknown {kind} id {original_id!r}: none of the {len(ids)}, {examples}, ..."
        )
    return int(matches[0])
