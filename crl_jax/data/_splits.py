"""Splits of interactions into training, validation and test parts, reproducible by seed.

A split depends on the original ids of the interactions, the seed, and the ratings or times that
its rule goes by. Draws and ties go by the order of the ids: whole numbers by value, then all
others as text. So it makes no difference in which order a file has its rows, whether the
interactions came from one file or from several, whether ids are integers or text, and what else
the vocabularies hold. A dataset published twice with two numberings of its users or items has
two sets of ids, and one seed draws differently from each.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int64

from .._checks import check_range
from . import _ids
from ._errors import warn_if
from ._interactions import Interactions, Split

# The test and the validation cut never share a random stream, also under one seed.
_TEST, _VALID = 0, 1


def split_by_ratio(data: Interactions, *, test: float = 0.2, seed: int = 0) -> Split:
    """Test part: ``round(test * n)`` interactions drawn uniformly, without replacement.

    Args:
      data: What to split.
      test: Share of the test part, in (0, 1).
      seed: Of ``numpy.random.default_rng((0, seed))``, which draws from the interactions in
        the order of their ids.

    Returns:
      A split without a validation part. Users left without a training interaction are
      counted in a :class:`DataWarning`.

    Raises:
      ValueError: If ``test`` leaves its range or one part would be empty.
    """
    size = _size("test", test, len(data))
    return _cut(data, lambda x: _drawn(len(x), size, _generator(_TEST, seed)))


def split_top_rated(
    data: Interactions, *, seed: int = 0, top_rating: int | float | None = None
) -> Split:
    """Test part: a random half, rounded down, of the interactions with the top rating.

    What users rated best they surely like, so this test set has no false positives, while
    training keeps the noise of all the other ratings.

    Args:
      data: What to split; it needs ratings.
      seed: Of ``numpy.random.default_rng((0, seed))``, which draws from the interactions in
        the order of their ids.
      top_rating: The rating to draw from; by default the highest there is.

    Returns:
      A split without a validation part. Users left without a training interaction are
      counted in a :class:`DataWarning`.

    Raises:
      ValueError: If there are no ratings, or fewer than two have the top one.

    References:
      "Contrastive Learning for Personalized Recommendation", chapter 3.
    """
    if data.ratings is None:
        raise ValueError("`data` must have ratings for a clean test set.")
    top = data.ratings.max() if top_rating is None else np.float32(top_rating)
    n_top = int(np.sum(data.ratings == top))
    if n_top < 2:
        raise ValueError(f"`top_rating` must occur at least twice, got {n_top} of {top}.")

    def half(ordered: Interactions) -> Bool[np.ndarray, " n"]:
        mask = ordered.ratings == top
        mask[mask] = _drawn(n_top, n_top // 2, _generator(_TEST, seed))
        return mask

    return _cut(data, half)


def union(first: Interactions, *others: Interactions) -> Interactions:
    """Puts parts of one dataset together again.

    Args:
      first: A part.
      others: Parts over the same users and items. Of a pair that stands in several, one is kept
        as :meth:`Interactions.from_arrays` says.

    Returns:
      All interactions, with ratings and timestamps if every part has them. Those of the others
      are dropped and counted in a :class:`DataWarning`: ``dataclasses.replace(part, ratings=None)``
      says beforehand that they are not wanted.

    Raises:
      ValueError: If the parts are of other users or items.
    """
    parts = (first, *others)
    for part in others:
        for name in ("user_ids", "item_ids"):
            if not np.array_equal(getattr(part, name), getattr(first, name)):
                raise ValueError(f"`others` must have the `{name}` of `first`.")

    def joined(name: str) -> np.ndarray | None:
        there = [array for part in parts if (array := getattr(part, name)) is not None]
        if len(there) == len(parts):
            return np.concatenate(there)
        dropped = sum(map(len, there))
        warn_if(dropped, f"dropped the {name} of {{n}} interactions, for the others have none")
        return None

    return Interactions.from_arrays(
        np.concatenate([part.users for part in parts]),
        np.concatenate([part.items for part in parts]),
        ratings=joined("ratings"),
        timestamps=joined("timestamps"),
        user_ids=first.user_ids,
        item_ids=first.item_ids,
    )


def split_by_time(data: Interactions, *, test: float = 0.2) -> Split:
    """Test part: the latest ``round(test * n)`` interactions of all users together.

    No training interaction is later than a test one. Interactions at the very time of the
    cut fall to both sides in the order of their ids (by user, then item).

    Args:
      data: What to split; it needs timestamps.
      test: Share of the test part, in (0, 1).

    Returns:
      A split without a validation part. Users left without a training interaction are
      counted in a :class:`DataWarning`.

    Raises:
      ValueError: If there are no timestamps, ``test`` leaves its range or one part would
        be empty.
    """
    size = _size("test", test, len(data))
    return _cut(data, lambda x: _latest(x, size))


def leave_k_out(data: Interactions, *, k: int = 1, seed: int | None = None) -> Split:
    """Test part: ``k`` interactions of every user with more than ``k``.

    Args:
      data: What to split.
      k: Test interactions per user, at least 1.
      seed: None takes each user's last k by timestamp (of equal ones, the higher item ids).
        A number draws them uniformly with ``numpy.random.default_rng((0, seed))``, in the
        order of the ids.

    Returns:
      A split without a validation part. Users with k interactions or fewer keep them all
      in training and are counted in a :class:`DataWarning`.

    Raises:
      ValueError: If ``k`` < 1, if ``seed`` is None and there are no timestamps, or if no
        user has more than k interactions.
    """
    rng = None if seed is None else _generator(_TEST, seed)
    return _cut(data, lambda x: _last_k(x, "k", k, rng))


def with_validation(
    split_or_data: Split | Interactions,
    *,
    valid: int | float = 0.1,
    seed: int = 0,
    how: Literal["ratio", "time", "leave_k_out"] = "ratio",
) -> Split:
    """Cuts a validation part from the training part; the test part stays as it is.

    * ``"ratio"``: ``round(valid * n)`` training interactions drawn uniformly, except that
      one random interaction of every user is set aside first and stays in training. Where
      that leaves too few to draw from, fewer are taken, with a warning that counts them.
    * ``"time"``: the latest ``round(valid * n)`` training interactions.
    * ``"leave_k_out"``: ``valid`` (a whole number) interactions of every user with more
      than that: the last by timestamp, or drawn by ``seed`` if there are no timestamps.

    Args:
      split_or_data: A split without a validation part, or interactions.
      valid: A share in (0, 1), or the number k.
      seed: Of ``numpy.random.default_rng((1, seed))``, in the order of the ids: not the
        stream of the test cut.
      how: The rule.

    Returns:
      The split with its validation part. Users left without a training interaction, or
      with too few to leave k out, are counted in a :class:`DataWarning`.

    Raises:
      ValueError: If there is a validation part already, ``how`` is unknown, or ``valid``
        does not fit it.
    """
    split = split_or_data if isinstance(split_or_data, Split) else Split(split_or_data)
    if split.valid is not None:
        raise ValueError("`split_or_data` must not have a validation part already.")
    data, rng = split.train, _generator(_VALID, seed)
    match how:
        case "ratio":
            size = _size("valid", valid, len(data))
            cut = _cut(data, lambda x: _drawn_sparing_users(x, size, rng))
        case "time":
            size = _size("valid", valid, len(data))
            cut = _cut(data, lambda x: _latest(x, size))
        case "leave_k_out":
            drawn_by = None if data.timestamps is not None else rng
            cut = _cut(data, lambda x: _last_k(x, "valid", valid, drawn_by))
        case _:
            raise ValueError(f"`how` must be ratio, time or leave_k_out, got {how!r}.")
    return Split(train=cut.train, valid=cut.test, test=split.test)


def _generator(purpose: int, seed: int) -> np.random.Generator:
    return np.random.default_rng((purpose, seed))


def _size(name: str, share: float, n: int) -> int:
    check_range(name, share, 0, 1, low_open=True, high_open=True)
    size = round(share * n)
    if not 0 < size < n:
        raise ValueError(f"`{name}` = {share} of {n} interactions leaves one part empty.")
    return size


def _drawn(n: int, size: int, rng: np.random.Generator) -> Bool[np.ndarray, " n"]:
    mask = np.zeros(n, bool)
    mask[rng.choice(n, size, replace=False, shuffle=False)] = True
    return mask


def _drawn_sparing_users(
    data: Interactions, size: int, rng: np.random.Generator
) -> Bool[np.ndarray, " n"]:
    n = len(data)
    order = rng.permutation(n)
    # Of several values for one user the last stays: the one of the user's first place.
    first = np.full(data.n_users, -1)
    first[data.users[order][::-1]] = np.arange(n - 1, -1, -1)
    spared = np.zeros(n, bool)
    spared[first[first >= 0]] = True
    free = order[~spared]
    warn_if(
        max(0, size - len(free)),
        "the validation part lacks {n} interactions, which are the last of their users",
    )
    mask = np.zeros(n, bool)
    mask[free[:size]] = True
    if not mask.any():
        raise ValueError("`valid` must leave something to cut, got one interaction per user.")
    return mask


def _latest(data: Interactions, size: int) -> Bool[np.ndarray, " n"]:
    if data.timestamps is None:
        raise ValueError("`data` must have timestamps for a split by time.")
    mask = np.zeros(len(data), bool)
    mask[np.argsort(data.timestamps, kind="stable")[-size:]] = True
    return mask


def _last_k(
    data: Interactions, name: str, k: int | float, rng: np.random.Generator | None
) -> Bool[np.ndarray, " n"]:
    if k < 1 or k != int(k):
        raise ValueError(f"`{name}` must be a whole number of 1 or more, got {k}.")
    if rng is not None:
        rank = rng.permutation(len(data))
    elif data.timestamps is not None:
        rank = data.timestamps
    else:
        raise ValueError("`data` has no timestamps: pass `seed` to leave out at random.")
    order = np.lexsort((rank, data.users))  # within users, which keep their CSR segments
    from_end = data.indptr[1:][data.users] - np.arange(len(data))
    left_out = (from_end <= k) & (data.degrees > k)[data.users]
    short = int(np.sum((data.degrees > 0) & (data.degrees <= k)))
    warn_if(short, f"{{n}} users have no more than {int(k)} interactions and keep them all")
    mask = np.zeros(len(data), bool)
    mask[order[left_out]] = True
    if not mask.any():
        raise ValueError(f"No user has more than {int(k)} interactions to leave {int(k)} out.")
    return mask


def _cut(data: Interactions, rule: Callable[[Interactions], Bool[np.ndarray, " n"]]) -> Split:
    """Takes out as test part what ``rule`` chooses from the interactions in the order of ids."""
    ordered, places = _by_ids(data)
    mask = np.zeros(len(data), bool)
    mask[places] = rule(ordered)
    split = Split(train=data.select(~mask), test=data.select(mask))
    emptied = int(np.sum((data.degrees > 0) & (split.train.degrees == 0)))
    warn_if(emptied, "{n} users have no interaction left in training")
    return split


def _by_ids(data: Interactions) -> tuple[Interactions, Int64[np.ndarray, " n"] | slice]:
    """The interactions with both vocabularies in the order of ids, and their places in ``data``."""
    users, items = _ids.ranks(data.user_ids), _ids.ranks(data.item_ids)
    if all(np.all(ranks[1:] > ranks[:-1]) for ranks in (users, items)):
        return data, slice(None)  # as readers leave integers: nothing to sort
    row, column = users[data.users], items[data.items]
    order = np.argsort(row * data.n_items + column)
    degrees = np.bincount(row, minlength=data.n_users)
    ordered = Interactions(
        indptr=np.concatenate(([0], np.cumsum(degrees))),
        items=column[order].astype(np.int32),
        user_ids=data.user_ids[np.argsort(users)],
        item_ids=data.item_ids[np.argsort(items)],
        ratings=None if data.ratings is None else data.ratings[order],
        timestamps=None if data.timestamps is None else data.timestamps[order],
    )
    return ordered, order
