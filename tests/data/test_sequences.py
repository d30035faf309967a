"""Sequences of items in the order of time, their split, and simulated ones."""

import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax.data import Interactions, item_sequences, leave_one_out, simulate_sequences


def log_of(*events, **fields):
    users, items, times = (np.array(column) for column in zip(*events, strict=True))
    return Interactions.from_arrays(users, items, timestamps=times, **fields)


def test_items_are_sorted_by_time():
    rng = np.random.default_rng(0)
    users, times = rng.integers(0, 7, 200), rng.permutation(200)
    events = [(int(u), 1000 + i, int(t)) for i, (u, t) in enumerate(zip(users, times, strict=True))]
    log = log_of(*events)
    rows = item_sequences(log)
    assert rows.shape == (7, np.bincount(users).max())
    for user, row in zip(log.user_ids, rows, strict=True):
        want = [item for _, item, _ in sorted(events, key=lambda e: e[2]) if (user, item) in {
            (u, i) for u, i, _ in events}]  # fmt: skip
        kept = row[row >= 0]
        np.testing.assert_array_equal(log.item_ids[kept], want)
        assert (row[: len(row) - len(kept)] == -1).all()


def test_tied_items_are_ordered_at_random_by_seed():
    events = [(u, i, i // 20) for u in range(3) for i in range(40)]
    rows = item_sequences(log_of(*events))
    np.testing.assert_array_equal(np.sort(rows[:, :20]), np.arange(20)[None].repeat(3, 0))
    assert not np.array_equal(rows[0], rows[1])  # not one order for all users
    assert (np.diff(rows[:, :20]) > 0).mean() < 0.7
    shuffled = [events[i] for i in np.random.default_rng(1).permutation(len(events))]
    np.testing.assert_array_equal(item_sequences(log_of(*shuffled)), rows)
    assert not np.array_equal(item_sequences(log_of(*events), seed=1), rows)
    in_order = item_sequences(log_of(*events), seed=None)
    np.testing.assert_array_equal(in_order, np.arange(40)[None].repeat(3, 0))
    # Another numbering of the same items.
    other = [(u, ["9", "10", "x"][i], 0) for u in range(5) for i in range(3)]
    log = log_of(*[(u, i, t) for u, i, t in other])
    again = Interactions.from_arrays(
        log.users, 2 - log.items, timestamps=log.timestamps,
        user_ids=log.user_ids, item_ids=log.item_ids[::-1],
    )  # fmt: skip
    np.testing.assert_array_equal(
        log.item_ids[item_sequences(log)], again.item_ids[item_sequences(again)]
    )


def test_users_without_interactions_have_empty_sequences():
    log = log_of((1, 0, 5), (1, 1, 4), user_ids=[7, 8, 9], item_ids=[3, 4])
    np.testing.assert_array_equal(item_sequences(log), [[-1, -1], [1, 0], [-1, -1]])
    with raises(ValueError, match="`data` must have timestamps"):
        item_sequences(Interactions.from_arrays([1], [2]))


@pytest.mark.parametrize("longest", [3, 4, 7])
def test_leave_one_out_holds_out_last_items(longest):
    rng = np.random.default_rng(longest)
    lengths = [*range(longest + 1)]
    rows = np.full((longest + 1, longest), -1, np.int32)
    own = [rng.integers(0, 50, n) for n in lengths]
    for row, items in zip(rows, own, strict=True):
        row[longest - len(items) :] = items
    split = leave_one_out(rows)
    np.testing.assert_array_equal(split.users, np.arange(3, longest + 1))
    for user, items in enumerate(own):
        kept = split.train[user][split.train[user] >= 0]
        np.testing.assert_array_equal(kept, items[:-2] if len(items) > 2 else items)
    for i, user in enumerate(split.users):
        assert (split.valid_items[i], split.test_items[i]) == tuple(own[user][-2:])
        for histories, n in ((split.valid_histories, 2), (split.test_histories, 1)):
            np.testing.assert_array_equal(histories[i][histories[i] >= 0], own[user][:-n])


def test_rejects_too_short_sequences():
    with raises(ValueError, match="`sequences` must have a row of 3 items.* got at most 2"):
        leave_one_out(np.array([[1, 2]], np.int32))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([[1, 2, 3], [4, -1, -1]]), r"padding on the left .* got \[ 4 -1 -1\] in row 1"),
        (np.array([[1, -1, 2, 3]]), "padding on the left of the items alone"),
        (np.array([1, 2, 3]), r"must be integers \[n, width\], got ndarray of shape \(3,\)"),
        (np.array([[1.0, 2.0, 3.0]]), r"must be integers \[n, width\]"),
        ([[1, 2, 3]], r"must be integers \[n, width\], got list"),
    ],
)
def test_rejects_invalid_sequences(rows, message):
    with raises(ValueError, match=f"`sequences` .*{message}"):
        leave_one_out(rows)


@pytest.mark.parametrize("seed", [-1, 1.5])
def test_rejects_invalid_seeds(seed):
    log = Interactions.from_arrays([1, 1], [2, 3], timestamps=[0, 0])
    with raises(ValueError, match=f"`seed` must .* got {seed}"):
        item_sequences(log, seed=seed)


def test_simulated_users_follow_item_cycle():
    rows = item_sequences(simulate_sequences(n_users=300, n_items=40, length=12, noise=0.25))
    assert rows.shape == (300, 12)
    assert all(len(set(row)) == 12 for row in rows.tolist())
    steps = np.zeros((40, 40), int)
    np.add.at(steps, (rows[:, :-1], rows[:, 1:]), 1)
    # Few random items are the next one; few next ones have been seen.
    assert abs(steps.max(axis=1).sum() / steps.sum() - 0.75) < 0.06
    whole = item_sequences(simulate_sequences(n_users=2, n_items=5, length=5))
    np.testing.assert_array_equal(np.sort(whole), np.arange(5)[None].repeat(2, 0))
    with raises(ValueError, match="`length` must be at most `n_items` 5, got 6"):
        simulate_sequences(n_items=5, length=6)
