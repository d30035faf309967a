"""Sequences of the items of each user, and their leave-one-out split."""

from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from .._checks import check_count, check_sequences
from .._hyperparams import Range, check_arguments
from ._interactions import Interactions
from ._splits import _sort_by_ids

_PADDING = -1
_LEAST = 3
"""Least length of a sequence with a training, a validation and a test item."""


def item_sequences(data: Interactions, *, seed: int | None = 0) -> Int32[np.ndarray, "users width"]:
    """Items of every user in the order of time, as rows of one length.

    The order of interactions with equal timestamps is unknown. In MovieLens, where several ratings
    are submitted together, these are most of them. An order by id would be a pattern that models
    learn; by default they are in random order.

    Args:
      data: Interactions with timestamps.
      seed: Seed of ``numpy.random.default_rng(seed)``, which orders interactions of a user with
        equal timestamps, independently of the order of the file. None for the order of the ids.

    Returns:
      Item indices of every user, earliest first, padded on the left by -1 to the length of the
      longest sequence.

    Raises:
      ValueError: If there are no timestamps, or ``seed`` is not a whole number of at least 0.

    >>> log = Interactions.from_arrays(["a", "a", "b"], [3, 5, 5], timestamps=[20, 10, 0])
    >>> print(item_sequences(log))
    [[ 1  0]
     [-1  1]]
    """
    if data.timestamps is None:
        raise ValueError("`data` must have timestamps, which order the items of a user.")
    if seed is not None:
        check_count("seed", seed, 0)
    n = len(data)
    tie = np.empty(n, np.int64)
    ranks = np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)
    tie[_sort_by_ids(data)[1]] = ranks
    order = np.lexsort((tie, data.timestamps, data.users))  # users keep their CSR segments
    width = int(data.degrees.max(initial=0))
    rows = np.full((data.n_users, width), _PADDING, np.int32)
    column = width - (data.indptr[1:][data.users] - np.arange(n))
    rows[data.users, column] = data.items[order]
    return rows


class SequenceSplit(NamedTuple):
    """Leave-one-out split of sequences, see :func:`leave_one_out`. Padding is -1, on the left.

    Attributes:
      train: Training sequences, ``[n_users, width]``.
      users: Rows of the users with a validation and a test item, ``[n]``.
      valid_items: Last but one item of each of these users, ``[n]``.
      test_items: Last item of each, ``[n]``.
    """

    train: Int32[np.ndarray, "n_users width"]
    users: Int64[np.ndarray, " n"]
    valid_items: Int32[np.ndarray, " n"]
    test_items: Int32[np.ndarray, " n"]

    @property
    def valid_histories(self) -> Int32[np.ndarray, "n width"]:
        """Items before the validation item."""
        return self.train[self.users]

    @property
    def test_histories(self) -> Int32[np.ndarray, "n width_plus_1"]:
        """Items before the test item: the training items and the validation item."""
        return np.concatenate([self.valid_histories, self.valid_items[:, None]], axis=1)


def leave_one_out(sequences: Int32[np.ndarray, "n_users width"]) -> SequenceSplit:
    """Splits off the last item of each user as test item, and the last but one for validation.

    Users with fewer than three items keep them all in training.

    Args:
      sequences: Rows padded on the left by -1, from :func:`item_sequences`.

    Raises:
      ValueError: If no user has three items, or rows are not padded on the left alone.

    References:
      Kang and McAuley, `Self-Attentive Sequential Recommendation
      <https://arxiv.org/abs/1808.09781>`_, 2018, section IV-A.

    >>> split = leave_one_out(np.array([[4, 7, 5, 6], [-1, -1, 8, 9]], np.int32))
    >>> print(split.train, split.valid_items, split.test_items)
    [[4 7]
     [8 9]] [5] [6]
    """
    check_sequences("sequences", sequences)
    lengths = (sequences >= 0).sum(axis=1)
    tested = lengths >= _LEAST
    if not tested.any():
        raise ValueError(
            f"`sequences` must have a row of {_LEAST} items, to train, validate and test, got at "
            f"most {lengths.max(initial=0)}."
        )
    # Columns before the held-out ones; short rows keep their last columns, which hold all items.
    train = np.where(tested[:, None], sequences[:, :-2], sequences[:, 2:])
    if sequences.shape[1] == _LEAST:  # one column cannot hold two items
        short = np.where(tested[:, None], _PADDING, sequences[:, 1:2])
        train = np.concatenate([short, train], axis=1)
    users = np.flatnonzero(tested)
    return SequenceSplit(train, users, sequences[users, -2], sequences[users, -1])


@check_arguments
def simulate_sequences(
    *,
    n_users: Annotated[int, Range(1)] = 400,
    n_items: Annotated[int, Range(2)] = 200,
    length: Annotated[int, Range(1)] = 30,
    noise: Annotated[float, Range(0, 1)] = 0.3,
    seed: int = 0,
) -> Interactions:
    """Simulates users who follow chains of items, which only the order of their items reveals.

    The items are on a circle, in random order. A user starts at a random item. Each further item is
    the next one on the circle, or, with the probability ``noise``, a random item; items that the
    user has seen are skipped.

    Args:
      n_users: Number of users.
      n_items: Number of items.
      length: Number of interactions per user, at most ``n_items``.
      noise: Probability of a random item.
      seed: Seed of ``numpy.random.default_rng(seed)``.

    Returns:
      Interactions with timestamps 0, 1, ….

    Raises:
      ValueError: If an argument is out of range.

    >>> simulate_sequences(n_users=10, n_items=20, length=5)
    Interactions(10 users, 20 items, 50 interactions, timestamps)
    """
    if length > n_items:
        raise ValueError(f"`length` must be at most `n_items` {n_items}, got {length}.")
    rng = np.random.default_rng(seed)
    circle = rng.permutation(n_items)
    positions = np.empty((n_users, length), np.int64)
    seen = np.zeros((n_users, n_items), bool)
    users, position = np.arange(n_users), rng.integers(n_items, size=n_users)
    for step in range(length):
        while seen[users, position].any():
            position = np.where(seen[users, position], (position + 1) % n_items, position)
        positions[:, step] = position
        seen[users, position] = True
        jump = rng.random(n_users) < noise
        position = np.where(jump, rng.integers(n_items, size=n_users), (position + 1) % n_items)
    return Interactions.from_arrays(
        np.repeat(users, length), circle[positions].ravel(),
        timestamps=np.tile(np.arange(length), n_users), user_ids=users, item_ids=np.arange(n_items),
    )  # fmt: skip
