"""Splits of interactions into training, validation and test parts, and k-core filtering.

A split depends on the original ids, the seed, and the ratings or timestamps that its rule uses.
Sampling and ties follow the order of the ids: integers by value, then all others as text. A split
is therefore independent of the order of rows and files, of whether ids are integers or text, and
of unused vocabulary entries. It does depend on the ids: two releases of a dataset with different
ids are sampled differently under the same seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, overload

import numpy as np
from jaxtyping import Bool, Int64

from .._checks import check_count, check_range
from . import _ids
from ._errors import warn_if
from ._interactions import HeldOutSplit, Interactions, Split, check_same_vocabularies

# The test and validation parts and cold items use different random streams under the same seed.
_TEST, _VALID, _COLD = 0, 1, 2
_ValidationRule = Literal["ratio", "time", "leave_k_out"]


def split_by_ratio(
    data: Interactions, *, test: float = 0.2, seed: int = 0, per_user: bool = False
) -> HeldOutSplit:
    """Splits off ``round(test * n)`` test interactions, sampled uniformly without replacement.

    Args:
      data: Interactions to split.
      test: Fraction of the test part, in (0, 1).
      seed: Seed of ``numpy.random.default_rng((0, seed))``, which samples from the interactions
        in the order of their ids.
      per_user: Whether to sample ``round(test * n_u)`` of each user's ``n_u`` interactions, but at
        most ``n_u - 1``, instead of a fraction of all interactions.

    Returns:
      A split without a validation part. Users left without a training interaction are
      counted in a :class:`DataWarning`.

    Raises:
      ValueError: If ``test`` leaves its range or one part would be empty.
    """
    rng = _generator(_TEST, seed)
    if per_user:
        check_range("test", test, 0, 1, low_open=True, high_open=True)
        return _split_at(data, lambda x: _sample_per_user(x, test, rng))
    size = _size("test", test, len(data))
    return _split_at(data, lambda x: _sample(len(x), size, rng))


def split_top_rated(
    data: Interactions, *, seed: int = 0, top_rating: int | float | None = None
) -> HeldOutSplit:
    """Splits off a random half, rounded down, of the interactions with the top rating.

    Top-rated interactions are reliable positives, so the test part has no false positives, while
    the training part keeps the noise of all other ratings.

    Args:
      data: Interactions with ratings.
      seed: Seed of ``numpy.random.default_rng((0, seed))``, which samples from the interactions
        in the order of their ids.
      top_rating: Rating to sample from; by default the highest.

    Returns:
      As :func:`split_by_ratio`.

    Raises:
      ValueError: If there are no ratings, or fewer than two have the top one.

    References:
      "Contrastive Learning for Personalized Recommendation", chapter 3.
    """
    if data.ratings is None:
        raise ValueError("`data` must have ratings for a test part of top-rated interactions.")
    top = data.ratings.max() if top_rating is None else np.float32(top_rating)
    n_top = int(np.sum(data.ratings == top))
    if n_top < 2:
        raise ValueError(f"`top_rating` must occur at least twice, got {n_top} of {top}.")
    rng = _generator(_TEST, seed)
    return _split_at(
        data, lambda x: np.flatnonzero(x.ratings == top)[_sample(n_top, n_top // 2, rng)]
    )


def union(first: Interactions, *others: Interactions) -> Interactions:
    """Merges parts of one dataset.

    Args:
      first: First part.
      others: Parts with the same vocabularies. Repeated interactions are dropped as by
        :meth:`Interactions.from_arrays`.

    Returns:
      All interactions, with ratings and timestamps if every part has them; otherwise they are
      dropped, and counted in a :class:`DataWarning` unless removed beforehand by
      ``dataclasses.replace(part, ratings=None)``.

    Raises:
      ValueError: If the vocabularies differ.
    """
    parts = (first, *others)
    for part in others:
        check_same_vocabularies("others", part, "first", first)

    def joined(name: str) -> np.ndarray | None:
        arrays = [array for part in parts if (array := getattr(part, name)) is not None]
        if len(arrays) == len(parts):
            return np.concatenate(arrays)
        dropped = sum(map(len, arrays))
        warn_if(dropped, f"dropped the {name} of {{n}} interactions, as the others have none")
        return None

    return Interactions.from_arrays(
        np.concatenate([part.users for part in parts]),
        np.concatenate([part.items for part in parts]),
        ratings=joined("ratings"),
        timestamps=joined("timestamps"),
        user_ids=first.user_ids,
        item_ids=first.item_ids,
    )


def split_by_time(data: Interactions, *, test: float = 0.2) -> HeldOutSplit:
    """Splits off the latest ``round(test * n)`` interactions of all users together.

    No training interaction is later than a test interaction. Ties at the boundary are resolved
    in the order of the ids (by user, then item).

    Args:
      data: Interactions with timestamps.
      test: Fraction of the test part, in (0, 1).

    Returns:
      As :func:`split_by_ratio`.

    Raises:
      ValueError: If there are no timestamps, ``test`` leaves its range or one part would
        be empty.
    """
    size = _size("test", test, len(data))
    return _split_at(data, lambda x: _latest(x, size))


def leave_k_out(data: Interactions, *, k: int = 1, seed: int | None = None) -> HeldOutSplit:
    """Splits off ``k`` interactions of every user with more than ``k``.

    Args:
      data: Interactions to split.
      k: Number of test interactions per user, at least 1.
      seed: None selects each user's last k by timestamp (among equal ones, the higher item ids).
        An integer samples them uniformly with ``numpy.random.default_rng((0, seed))``, in the
        order of the ids.

    Returns:
      A split without a validation part. Users with k interactions or fewer keep them all
      in training and are counted in a :class:`DataWarning`.

    Raises:
      ValueError: If ``k`` < 1, if ``seed`` is None and there are no timestamps, or if no
        user has more than k interactions.
    """
    rng = None if seed is None else _generator(_TEST, seed)
    return _split_at(data, lambda x: _last_k(x, "k", k, rng))


@overload
def with_validation(
    split_or_data: HeldOutSplit,
    *,
    valid: int | float = 0.1,
    seed: int = 0,
    how: _ValidationRule = "ratio",
) -> HeldOutSplit: ...


@overload
def with_validation(
    split_or_data: Split | Interactions,
    *,
    valid: int | float = 0.1,
    seed: int = 0,
    how: _ValidationRule = "ratio",
) -> Split: ...


def with_validation(
    split_or_data: Split | Interactions,
    *,
    valid: int | float = 0.1,
    seed: int = 0,
    how: _ValidationRule = "ratio",
) -> Split:
    """Splits a validation part off the training part; the test part is unchanged.

    * ``"ratio"``: ``round(valid * n)`` training interactions, sampled uniformly after one random
      interaction of every user has been reserved for training. If too few remain, the validation
      part is smaller, and a warning counts the difference.
    * ``"time"``: the latest ``round(valid * n)`` training interactions.
    * ``"leave_k_out"``: ``valid`` (an integer) interactions of every user with more than that:
      the last by timestamp, or sampled by ``seed`` if there are no timestamps.

    Args:
      split_or_data: Split without a validation part, or interactions.
      valid: Fraction in (0, 1), or the integer k.
      seed: Seed of ``numpy.random.default_rng((1, seed))``, in the order of the ids; its stream
        differs from that of the test part.
      how: Rule.

    Returns:
      Split with a validation part. Users left without a training interaction, or
      with too few to leave k out, are counted in a :class:`DataWarning`.

    Raises:
      ValueError: If there is a validation part already, ``how`` is unknown, or ``valid``
        does not fit it.
    """
    split = split_or_data if isinstance(split_or_data, Split) else Split(split_or_data)
    if split.valid is not None:
        raise ValueError("`split_or_data` must not have a validation part already.")
    data, rng = split.train, _generator(_VALID, seed)
    if how == "leave_k_out":
        sampler = None if data.timestamps is not None else rng
        cut = _split_at(data, lambda x: _last_k(x, "valid", valid, sampler))
    elif how in ("ratio", "time"):
        size = _size("valid", valid, len(data))
        select = _latest if how == "time" else partial(_sample_except_one_per_user, rng=rng)
        cut = _split_at(data, lambda x: select(x, size))
    else:
        raise ValueError(f"`how` must be ratio, time or leave_k_out, got {how!r}.")
    return type(split)(train=cut.train, valid=cut.test, test=split.test)


def k_core(data: Interactions, k: int, *, item_k: int | None = None) -> Interactions:
    """Removes users and items with few interactions until all that remain have enough.

    Args:
      data: Interactions to filter.
      k: Minimum number of interactions per user, and per item by default; at least 1.
      item_k: Minimum number of interactions per item, at least 1.

    Returns:
      The largest subset of interactions in which every user has at least ``k`` and every item at
      least ``item_k``. Vocabularies contain the remaining users and items only, in their order.

    Raises:
      ValueError: If ``k`` or ``item_k`` is not a whole number of at least 1, or no interaction
        remains.

    >>> log = Interactions.from_arrays([1, 1, 2, 2, 3], [5, 6, 5, 6, 7])
    >>> k_core(log, 2)
    Interactions(2 users, 2 items, 4 interactions)
    """
    item_k = k if item_k is None else item_k
    check_count("k", k)
    check_count("item_k", item_k)
    core = data
    while True:
        mask = (core.degrees >= k)[core.users] & (core.item_counts >= item_k)[core.items]
        if mask.all():
            break
        core = core.select(mask)
    if not len(core):
        raise ValueError(
            f"`k` must leave an interaction, got {k} for users and {item_k} for items."
        )
    users = core.degrees > 0
    return replace(
        _restrict_items(core, core.item_counts > 0),
        indptr=np.concatenate(([0], np.cumsum(core.degrees[users]))),
        user_ids=core.user_ids[users],
    )


@dataclass(frozen=True, eq=False)
class ColdItemSplit:
    """Interactions of warm items, and of cold items that are held out entirely.

    Attributes:
      train: Interactions of the warm items, whose vocabulary has no cold item: a sampler cannot
        draw one as a negative.
      test: Interactions of the cold items, with a vocabulary of these and the users of ``train``.

    >>> log = Interactions.from_arrays([1, 1, 2, 2, 3], [5, 6, 5, 7, 8])
    >>> split = hold_out_items(log, fraction=0.5)
    >>> split.train.item_ids, split.test.item_ids
    (array([5, 8]), array([6, 7]))
    >>> split.over_all_items().test.item_ids
    array([5, 8, 6, 7])
    """

    train: Interactions
    test: Interactions

    def over_all_items(self) -> HeldOutSplit:
        """Returns both parts with one vocabulary, of the warm items and then the cold ones."""
        item_ids = np.concatenate([self.train.item_ids, self.test.item_ids])
        return HeldOutSplit(
            train=replace(self.train, item_ids=item_ids),
            test=replace(
                self.test, items=self.test.items + np.int32(self.train.n_items), item_ids=item_ids
            ),
        )


def hold_out_items(data: Interactions, *, fraction: float = 0.2, seed: int = 0) -> ColdItemSplit:
    """Holds out a random fraction of the items with all their interactions.

    Args:
      data: Interactions to split.
      fraction: Fraction of the items with interactions that become cold, in (0, 1), rounded to
        ``round(fraction * n)``.
      seed: Seed of ``numpy.random.default_rng((2, seed))``, which samples from the items in the
        order of their ids.

    Returns:
      The split. Items without interactions are warm. Users left without a training interaction
      are counted in a :class:`DataWarning`.

    Raises:
      ValueError: If ``fraction`` leaves its range or one part would be empty.
    """
    by_id = np.argsort(_ids.id_ranks(data.item_ids))
    used = by_id[data.item_counts[by_id] > 0]
    check_range("fraction", fraction, 0, 1, low_open=True, high_open=True)
    size = round(fraction * len(used))
    if not 0 < size < len(used):
        raise ValueError(f"`fraction` = {fraction} of {len(used)} items leaves one part empty.")
    cold = np.zeros(data.n_items, bool)
    cold[used[_sample(len(used), size, _generator(_COLD, seed))]] = True
    train, test = _restrict_items(data, ~cold), _restrict_items(data, cold)
    emptied = int(np.sum((data.degrees > 0) & (train.degrees == 0)))
    warn_if(emptied, "{n} users have no interaction left in training")
    return ColdItemSplit(train, test)


def _restrict_items(data: Interactions, keep: Bool[np.ndarray, " n_items"]) -> Interactions:
    """Returns the interactions of some items, with a vocabulary of these items."""
    part = data.select(keep[data.items])
    index = (np.cumsum(keep) - 1).astype(np.int32)
    return replace(part, items=index[part.items], item_ids=data.item_ids[keep])


def _size(name: str, fraction: float, n: int) -> int:
    check_range(name, fraction, 0, 1, low_open=True, high_open=True)
    size = round(fraction * n)
    if not 0 < size < n:
        raise ValueError(f"`{name}` = {fraction} of {n} interactions leaves one part empty.")
    return size


def _sample(n: int, size: int, rng: np.random.Generator) -> Int64[np.ndarray, " k"]:
    return rng.choice(n, size, replace=False, shuffle=False)


def _sample_per_user(
    data: Interactions, fraction: float, rng: np.random.Generator
) -> Int64[np.ndarray, " k"]:
    counts = np.minimum(np.rint(fraction * data.degrees), np.maximum(data.degrees - 1, 0))
    if not counts.any():
        raise ValueError(f"`test` = {fraction} selects no interaction of any user.")
    order = np.lexsort((rng.random(len(data)), data.users))  # users keep their CSR segments
    return order[np.arange(len(data)) - data.indptr[data.users] < counts[data.users]]


def _generator(stream: int, seed: int) -> np.random.Generator:
    check_count("seed", seed, 0)
    return np.random.default_rng((stream, seed))


def _sample_except_one_per_user(
    data: Interactions, size: int, rng: np.random.Generator
) -> Int64[np.ndarray, " k"]:
    order = rng.permutation(len(data))
    # Assignment keeps the last of several values: each user's first position in `order`.
    first = np.full(data.n_users, -1)
    first[data.users[order][::-1]] = np.arange(len(data))[::-1]
    free = np.delete(order, first[first >= 0])
    warn_if(
        max(0, size - len(free)),
        "the validation part lacks {n} interactions, which are the last of their users",
    )
    if not len(free):
        raise ValueError(
            "`data` must have a user with several interactions, got one interaction per user."
        )
    # In `order`, interactions of users with few of them are late: they follow the reserved one.
    return rng.permutation(free)[:size]


def _latest(data: Interactions, size: int) -> Int64[np.ndarray, " k"]:
    if data.timestamps is None:
        raise ValueError("`data` must have timestamps for a split by time.")
    return np.argsort(data.timestamps, kind="stable")[-size:]


def _last_k(
    data: Interactions, name: str, k: int | float, rng: np.random.Generator | None
) -> Int64[np.ndarray, " k"]:
    if k < 1 or k != int(k):
        raise ValueError(f"`{name}` must be an integer of at least 1, got {k}.")
    rank = data.timestamps if rng is None else rng.permutation(len(data))
    if rank is None:
        raise ValueError("`data` must have timestamps; pass `seed` to sample at random.")
    short = int(np.sum((data.degrees > 0) & (data.degrees <= k)))
    warn_if(short, f"{{n}} users have no more than {int(k)} interactions and keep them all")
    if not (data.degrees > k).any():
        raise ValueError(f"No user has more than {int(k)} interactions to leave {int(k)} out.")
    order = np.lexsort((rank, data.users))  # users keep their CSR segments
    from_end = data.indptr[1:][data.users] - np.arange(len(data))
    return order[(from_end <= k) & (data.degrees > k)[data.users]]


def _split_at(
    data: Interactions, select: Callable[[Interactions], Int64[np.ndarray, " k"]]
) -> HeldOutSplit:
    """Splits off the test part, whose positions ``select`` returns for data in id order."""
    ordered, order = _sort_by_ids(data)
    mask = np.zeros(len(data), bool)
    mask[order[select(ordered)]] = True
    split = HeldOutSplit(train=data.select(~mask), test=data.select(mask))
    emptied = int(np.sum((data.degrees > 0) & (split.train.degrees == 0)))
    warn_if(emptied, "{n} users have no interaction left in training")
    return split


def _sort_by_ids(data: Interactions) -> tuple[Interactions, Int64[np.ndarray, " n"]]:
    """Returns the interactions with vocabularies in id order, and their positions in ``data``."""
    users, items = _ids.id_ranks(data.user_ids), _ids.id_ranks(data.item_ids)
    if all(np.all(ranks[1:] > ranks[:-1]) for ranks in (users, items)):
        return data, np.arange(len(data))
    row, column = users[data.users], items[data.items]
    order = np.argsort(row * data.n_items + column)
    degrees = np.bincount(row, minlength=data.n_users)
    ordered = Interactions(
        np.concatenate(([0], np.cumsum(degrees))),
        column[order].astype(np.int32),
        data.user_ids[np.argsort(users)],
        data.item_ids[np.argsort(items)],
        *(None if x is None else x[order] for x in (data.ratings, data.timestamps)),
    )
    return ordered, order
