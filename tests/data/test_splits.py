"""Splits: sizes, rules, reproducibility, independence of the random streams."""

import dataclasses
import warnings

import numpy as np
import pytest
from _helpers.files import warned
from _helpers.refusals import raises
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from crl_jax.data import (
    DataWarning,
    HeldOutSplit,
    Interactions,
    Split,
    hold_out_items,
    k_core,
    leave_k_out,
    load,
    split_by_ratio,
    split_by_time,
    split_top_rated,
    union,
    with_validation,
)


def dense_data(n_users=20, n_items=30, seed=0, timed=True):
    """Data in which every user has at least five interactions."""
    rng = np.random.default_rng(seed)
    selected = rng.random((n_users, n_items)) < 0.5
    selected[:, :5] = True
    users, items = np.nonzero(selected)
    return Interactions.from_arrays(
        users,
        items,
        ratings=rng.integers(1, 6, len(users)),
        timestamps=rng.integers(0, 40, len(users)) if timed else None,
    )


def pairs(data):
    return set(zip(data.users.tolist(), data.items.tolist(), strict=True))


def assert_partition(data, split):
    parts = [pairs(part) for _, part in split.parts()]
    assert set().union(*parts) == pairs(data)
    assert sum(map(len, parts)) == len(data)


SPLITS = {
    "ratio": split_by_ratio,
    "clean": split_top_rated,
    "time": lambda data, seed=0: split_by_time(data),
    "leave_k_out": leave_k_out,
}


@pytest.mark.parametrize("name", SPLITS)
def test_split_is_reproducible_partition(name):
    data = dense_data()
    first, again = SPLITS[name](data, seed=3), SPLITS[name](data, seed=3)
    assert_partition(data, first)
    assert first.train.fingerprint() == again.train.fingerprint()
    other = SPLITS[name](data, seed=4)
    assert (other.train.fingerprint() != first.train.fingerprint()) == (name != "time")


def original(data):
    """Returns pairs of original ids, as text."""
    return {(str(user), str(item)) for user, item in original_pairs(data)}


CUTS = {
    **{name: lambda x, split=split: split(x).test for name, split in SPLITS.items()},
    "validation by ratio": lambda x: with_validation(x).valid,
    "validation by time": lambda x: with_validation(x, how="time").valid,
    "validation by user": lambda x: with_validation(x, how="leave_k_out", valid=1).valid,
}


@pytest.mark.parametrize("name", CUTS)
def test_split_depends_only_on_ids(name):
    data = dense_data()  # ids 0 to 19 and 0 to 29: as text they sort in another order
    rng = np.random.default_rng(1)
    rows = rng.permutation(len(data))
    users, items = data.users[rows], data.items[rows]
    columns = {"ratings": data.ratings[rows], "timestamps": data.timestamps[rows]}
    user_ids, item_ids = rng.permutation(data.n_users), rng.permutation(data.n_items)
    same = {
        "other rows": Interactions.from_arrays(users, items, **columns),
        "text": Interactions.from_arrays(users.astype(str), items.astype(str), **columns),
        "another numbering": Interactions.from_arrays(
            np.argsort(user_ids)[users],
            np.argsort(item_ids)[items],
            user_ids=user_ids,
            item_ids=item_ids,
            **columns,
        ),
        "text by an idle id": Interactions.from_arrays(
            users + 1,
            items,
            user_ids=["x", *map(str, range(data.n_users))],
            item_ids=[*map(str, range(data.n_items)), "007"],
            **columns,
        ),
    }
    expected = original(CUTS[name](data))
    for what, other in same.items():
        assert original(other) == original(data)
        assert original(CUTS[name](other)) == expected, what


def test_ratio_sampling_orders_integer_ids_by_value():
    data = dense_data()
    chosen = np.random.default_rng((0, 5)).choice(
        len(data), round(0.2 * len(data)), replace=False, shuffle=False
    )
    in_order = sorted(pairs(data))
    assert pairs(split_by_ratio(data, seed=5).test) == {in_order[place] for place in chosen}


@pytest.mark.data
@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
def test_splits_of_published_results_are_unchanged(real_data):
    given_parts = load(real_data / "ml-100k")
    outer = split_top_rated(union(given_parts.train, given_parts.test))
    inner = with_validation(given_parts, valid=0.2)
    assert [part.fingerprint()[:16] for part in (outer.train, outer.test, inner.train)] == [
        "7870c56fb1a623f4",
        "1c3c848887adfc28",
        "9d646e322e3da7fd",
    ]


@given(st.floats(0.05, 0.5))
def test_ratio_is_exact(share):
    data = dense_data()
    assert len(split_by_ratio(data, test=share).test) == round(share * len(data))


def test_ratio_samples_interactions_uniformly():
    data = dense_data(6, 8)
    samples = sum(
        np.isin(np.arange(len(data)), _places(data, split_by_ratio(data, test=0.25, seed=s).test))
        for s in range(400)
    )
    # Binomial(400, 1/4): mean 100, standard deviation 8.7; a bound at 5 of them.
    assert np.abs(samples - 100).max() < 44


def _places(data, part):
    key = data.users * 1000 + data.items
    return np.searchsorted(key, part.users * 1000 + part.items)


def test_warns_of_users_without_training_interactions():
    data = Interactions.from_arrays([0, 1, 2, 3], [0, 0, 0, 0], timestamps=[1, 2, 3, 4])
    with pytest.warns(DataWarning, match="2 users have no interaction left in training"):
        split_by_ratio(data, test=0.5)
    with pytest.warns(DataWarning, match="1 users have no interaction left in training"):
        split_by_time(data, test=0.25)


def test_top_rated_split_tests_half_of_top_ratings():
    data = dense_data()
    split = split_top_rated(data)
    assert set(split.test.ratings) == {5}
    assert len(split.test) == int(np.sum(data.ratings == 5)) // 2
    assert set(split_top_rated(data, top_rating=2).test.ratings) == {2}


def test_time_split_never_trains_on_future():
    data = dense_data()
    split = split_by_time(data, test=0.3)
    assert split.train.timestamps.max() <= split.test.timestamps.min()
    assert len(split.test) == round(0.3 * len(data))
    tied = Interactions.from_arrays([0, 0, 1, 1], [0, 1, 0, 1], timestamps=[5, 5, 5, 5])
    assert pairs(split_by_time(tied, test=0.25).test) == {(1, 1)}


@pytest.mark.parametrize("k", [1, 3])
def test_leave_k_out_tests_last_items_of_each_user(k):
    data = dense_data()
    split = leave_k_out(data, k=k)
    assert split.test.degrees.tolist() == [k] * data.n_users
    for user in range(data.n_users):
        mine = data.users == user
        in_order = sorted(zip(data.timestamps[mine], data.items[mine], strict=True))
        expected = sorted(int(item) for _, item in in_order[-k:])
        assert split.test.items[split.test.users == user].tolist() == expected
    assert leave_k_out(data, k=k, seed=0).test.degrees.tolist() == [k] * data.n_users


def test_leave_k_out_skips_users_with_few_interactions():
    data = Interactions.from_arrays(
        [0, 0, 0, 1, 1, 2], [0, 1, 2, 0, 1, 0], user_ids=[5, 6, 7, 8], item_ids=[1, 2, 3]
    )
    with pytest.warns(DataWarning, match="2 users have no more than 2 interactions"):
        split = leave_k_out(data, k=2, seed=0)
    assert split.test.degrees.tolist() == [2, 0, 0, 0]


def test_random_leave_one_out_is_uniform():
    data = Interactions.from_arrays([0] * 5, [0, 1, 2, 3, 4])
    samples = [leave_k_out(data, seed=s).test.items[0] for s in range(500)]
    # Binomial(500, 1/5): mean 100, standard deviation 8.9.
    assert np.abs(np.bincount(samples, minlength=5) - 100).max() < 45


@pytest.mark.parametrize(("how", "valid"), [("ratio", 0.1), ("time", 0.1), ("leave_k_out", 2)])
def test_validation_comes_only_from_training(how, valid):
    data = dense_data()
    outer = split_by_ratio(data)
    split = with_validation(outer, how=how, valid=valid)
    assert_partition(data, split)
    assert split.test is outer.test
    assert_partition(outer.train, Split(split.train, split.valid))
    assert isinstance(split, HeldOutSplit)
    alone = with_validation(data, how=how, valid=valid)
    assert alone.test is None
    assert not isinstance(alone, HeldOutSplit)


def test_validation_by_time_and_by_user():
    data = dense_data()
    late = with_validation(data, how="time", valid=0.2)
    assert late.train.timestamps.max() <= late.valid.timestamps.min()
    last = with_validation(data, how="leave_k_out", valid=1)
    assert last.valid.fingerprint() == leave_k_out(data).test.fingerprint()
    untimed = with_validation(dense_data(timed=False), how="leave_k_out", valid=1, seed=5)
    assert set(untimed.valid.degrees.tolist()) == {1}


def test_validation_by_ratio_keeps_one_interaction_per_user():
    users, items = np.repeat(np.arange(40), 2), np.tile([0, 1], 40)
    data = Interactions.from_arrays(users, items)
    split = with_validation(data, valid=0.5)
    assert split.train.degrees.tolist() == [1] * 40
    assert 0 < split.train.items.sum() < 40  # the remaining one is random
    with pytest.warns(DataWarning, match="lacks 8 interactions"):
        assert len(with_validation(data, valid=0.6).valid) == 40


def test_validation_by_ratio_is_uniform_over_users():
    """The sampling rate does not depend on the number of interactions, beyond the reserved one."""
    degrees = np.repeat([2, 3, 10, 100], [150, 100, 30, 5])
    items = np.concatenate([np.arange(n) for n in degrees])
    data = Interactions.from_arrays(np.repeat(np.arange(len(degrees)), degrees), items)
    selected = sum(with_validation(data, valid=0.1, seed=s).valid.degrees for s in range(100))
    share = 100 * round(0.1 * len(data)) / (degrees - 1).sum()
    for degree in np.unique(degrees):
        of_degree = degrees == degree
        left = (degrees - 1)[of_degree].sum()
        # At least 15,000 draws with probability 0.13: a standard deviation of 0.021 of the mean.
        assert abs(selected[of_degree].sum() / left / share - 1) < 0.1, degree


def test_validation_and_test_streams_differ_under_one_seed():
    data = dense_data(n_users=200)
    test = _places(data, split_by_ratio(data, test=0.5, seed=0).test)
    valid = _places(data, with_validation(data, valid=0.5, seed=0).valid)
    # Independent halves share a quarter; the same stream would give all or nothing.
    assert abs(len(np.intersect1d(test, valid)) / len(data) - 0.25) < 0.04
    # Here both cuts use the same rule. Of about 17 items a user, 1/17 are chosen twice.
    data = dense_data(n_users=200, timed=False)
    test = leave_k_out(data, seed=0).test
    valid = with_validation(data, how="leave_k_out", valid=1, seed=0).valid
    assert np.mean(test.items == valid.items) < 0.15


TWO = Interactions.from_arrays([0, 0], [0, 1], timestamps=[1, 2])
UNTIMED = dense_data(timed=False)
ONE_USER = Interactions.from_arrays([0, 0, 0], [0, 1, 2])
INVALID = [  # split and error
    *((lambda x=x, split=split: split(dense_data(), x), f"`{name}`")
      for x in (0.0, 1.0, -0.1, 1.5, np.nan)
      for split, name in [
          (lambda data, x: split_by_ratio(data, test=x), "test"),
          (lambda data, x: split_by_ratio(data, test=x, per_user=True), "test"),
          (lambda data, x: with_validation(data, valid=x), "valid"),
      ]),
    *((lambda split=split: split(dense_data(), seed=-1), "`seed` must be at least 0, got -1")
      for split in (split_by_ratio, split_top_rated, with_validation)),
    (lambda: split_by_ratio(TWO, test=0.1), "leaves one part empty"),
    (lambda: split_by_time(TWO, test=0.1), "leaves one part empty"),
    (lambda: split_by_time(UNTIMED), "timestamps"),
    (lambda: split_by_ratio(Interactions.from_arrays([1, 2], [1, 2]), per_user=True),
     "selects no interaction"),
    (lambda: split_top_rated(dense_data(), top_rating=7),
     "`top_rating` must occur at least twice, got 0"),
    (lambda: split_top_rated(ONE_USER), "must have ratings"),
    (lambda: leave_k_out(UNTIMED), "pass `seed`"),
    (lambda: leave_k_out(UNTIMED, k=0), "`k` must be an integer of at least 1, got 0"),
    (lambda: warned(leave_k_out, ONE_USER, k=3, seed=0), "No user has more than 3"),
    (lambda: with_validation(dense_data(), how="leave_k_out"),
     r"`valid` must be .* at least 1, got 0\.1"),
    (lambda: with_validation(dense_data(), how="random"), "how"),
    (lambda: warned(with_validation, Interactions.from_arrays(range(10), range(10))),
     "one interaction per user"),
    (lambda: with_validation(with_validation(dense_data())), "already"),
    (lambda: union(dense_data(n_users=5), dense_data(n_users=6)),
     "`others` must have the `user_ids`"),
    (lambda: k_core(TWO, 500), "`k` must leave an interaction, got 500 for users and 500"),
    (lambda: k_core(TWO, 0), "`k`"),
    (lambda: k_core(TWO, 1.5), "`k` must be a whole number, got 1.5"),
    (lambda: k_core(TWO, 1, item_k=1.5), "`item_k` must be a whole number, got 1.5"),
]  # fmt: skip


@pytest.mark.parametrize(("split", "message"), INVALID, ids=range(len(INVALID)))
def test_rejects_impossible_splits(split, message):
    with raises((ValueError, TypeCheckError), match=message):
        split()


@pytest.mark.parametrize("name", SPLITS)
def test_union_of_parts_equals_whole(name):
    data = dense_data()
    split = SPLITS[name](data)
    whole = union(*(part for _, part in split.parts()))
    assert whole.fingerprint() == data.fingerprint()
    np.testing.assert_array_equal(whole.ratings, data.ratings)
    np.testing.assert_array_equal(whole.timestamps, data.timestamps)


def test_union_drops_columns_missing_in_any_part():
    data = dense_data()
    split = split_by_ratio(data)
    bare = Interactions.from_arrays(
        split.test.users, split.test.items, user_ids=data.user_ids, item_ids=data.item_ids
    )
    whole, messages = warned(union, split.train, bare)
    assert messages == [
        f"dropped the {name} of {len(split.train)} interactions, as the others have none"
        for name in ("ratings", "timestamps")
    ]
    assert pairs(whole) == pairs(data)
    assert whole.ratings is None
    assert whole.timestamps is None
    wanted = dataclasses.replace(split.train, ratings=None, timestamps=None)
    assert union(wanted, bare).fingerprint() == whole.fingerprint()  # and no warning


def random_log(n=4000, seed=0):
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.geometric(0.05, (n, 2)), axis=0)
    return Interactions.from_arrays(*pairs.T, ratings=rng.random(len(pairs)))


def original_pairs(data):
    users, items = data.user_ids[data.users], data.item_ids[data.items]
    return list(zip(users.tolist(), items.tolist(), strict=True))


def test_k_core_is_largest_subset():
    data = random_log()
    for k, item_k in ((3, None), (8, 2), (1, 12)):
        core = k_core(data, k, item_k=item_k)
        assert core.degrees.min() >= k
        assert core.item_counts.min() >= (item_k or k)
        pairs = {*original_pairs(data)}
        while True:  # one by one, in any order
            users, items = (np.unique(x, return_counts=True) for x in zip(*pairs))
            few = {int(u) for u, n in zip(*users) if n < k}
            rare = {int(i) for i, n in zip(*items) if n < (item_k or k)}
            kept = {(u, i) for u, i in pairs if u not in few and i not in rare}
            if kept == pairs:
                break
            pairs = kept
        assert {*original_pairs(core)} == pairs
        ratings = dict(zip(original_pairs(data), data.ratings.tolist(), strict=True))
        assert [ratings[pair] for pair in original_pairs(core)] == core.ratings.tolist()


def test_per_user_ratio_applies_to_each_user():
    data = random_log()
    split = split_by_ratio(data, test=0.3, seed=1, per_user=True)
    wanted = np.minimum(np.rint(0.3 * data.degrees), data.degrees - 1)
    assert split.test.degrees.tolist() == wanted.tolist()
    again = split_by_ratio(data, test=0.3, seed=1, per_user=True)
    assert split.test.fingerprint() == again.test.fingerprint()
    other = split_by_ratio(data, test=0.3, seed=2, per_user=True)
    assert split.test.fingerprint() != other.test.fingerprint()


@pytest.mark.parametrize("text", [False, True])
def test_cold_items_are_held_out_with_all_interactions(text):
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 30, 400), rng.integers(0, 50, 400)
    ids = [f"i{item}" for item in range(52)] if text else range(52)  # two without interactions
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # repeated pairs
        log = Interactions.from_arrays(users, items, user_ids=range(30), item_ids=ids)
    split = hold_out_items(log, fraction=0.3, seed=1)
    n_used = int(np.sum(log.item_counts > 0))
    assert split.test.n_items == round(0.3 * n_used)
    assert split.test.item_counts.all()
    assert not set(split.train.item_ids.tolist()) & set(split.test.item_ids.tolist())
    assert split.train.n_items + split.test.n_items == 52

    def pairs(part):
        return set(zip(part.user_ids[part.users].tolist(), part.item_ids[part.items].tolist()))

    assert pairs(split.train) | pairs(split.test) == pairs(log)
    whole = split.over_all_items()
    assert pairs(whole.train) == pairs(split.train)
    assert pairs(whole.test) == pairs(split.test)
    again = hold_out_items(log, fraction=0.3, seed=1)
    assert again.test.item_ids.tolist() == split.test.item_ids.tolist()
    other = hold_out_items(log, fraction=0.3, seed=2)
    assert other.test.item_ids.tolist() != split.test.item_ids.tolist()


def test_cold_items_do_not_depend_on_item_order():
    users, items = np.arange(40) % 7, np.arange(40) % 20
    log = Interactions.from_arrays(users, items, user_ids=range(7), item_ids=range(20))
    shuffled = Interactions.from_arrays(
        users, 19 - items, item_ids=range(19, -1, -1), user_ids=range(7)
    )
    one, other = (hold_out_items(x, fraction=0.25).test for x in (log, shuffled))
    assert sorted(one.item_ids.tolist()) == sorted(other.item_ids.tolist())


def test_warns_of_users_with_only_cold_items():
    log = Interactions.from_arrays([0, 0, 1, 1], [0, 1, 0, 1])
    alone = Interactions.from_arrays([*log.users, 2], [*log.items, 2])
    for seed in range(20):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            split = hold_out_items(alone, fraction=0.4, seed=seed)
        assert bool(caught) == (2 in split.test.item_ids)


@pytest.mark.parametrize(
    ("fraction", "message"),
    [(0.0, r"`fraction` must lie in \(0, 1\), got 0"), (0.1, "`fraction` = 0.1 of 2 items leaves")],
)
def test_rejects_invalid_fractions_of_cold_items(fraction, message):
    with raises(ValueError, match=message):
        hold_out_items(Interactions.from_arrays([0, 0], [0, 1]), fraction=fraction)
