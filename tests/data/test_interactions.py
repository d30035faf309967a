"""Interactions: invariants, construction from any order, selection, identity."""

import dataclasses

import numpy as np
import pytest
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from crl_jax.data import DataWarning, HeldOutSplit, Interactions, Split

VALID = {
    "indptr": np.array([0, 2, 2, 3]),
    "items": np.array([0, 3, 1], np.int32),
    "user_ids": np.array([10, 20, 30]),
    "item_ids": np.array(["a", "b", "c", "d"]),
    "ratings": np.array([1, 2, 3], np.float32),
    "timestamps": np.array([7, 8, 9]),
}


def make(**changes):
    return Interactions(**(VALID | changes))


def test_derived_properties():
    data = make()
    assert (data.n_users, data.n_items, len(data)) == (3, 4, 3)
    assert data.users.tolist() == [0, 0, 2]
    assert data.users.dtype == np.int32
    assert data.degrees.tolist() == [2, 0, 1]
    assert data.item_counts.tolist() == [1, 1, 0, 1]
    assert data.density == 3 / 12
    assert repr(data) == "Interactions(3 users, 4 items, 3 interactions, ratings, timestamps)"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("indptr", np.array([0, 2, 3])),  # too short
        ("indptr", np.array([1, 2, 2, 3])),  # does not begin at 0
        ("indptr", np.array([0, 2, 2, 2])),  # does not end at n
        ("indptr", np.array([0, 3, 2, 3])),  # decreases
        ("indptr", np.array([0.0, 2, 2, 3])),
        ("items", np.array([0, 3, 4], np.int32)),  # past the end
        ("items", np.array([-1, 3, 1], np.int32)),
        ("items", np.array([3, 0, 1], np.int32)),  # not ascending in user 0
        ("items", np.array([3, 3, 1], np.int32)),  # twice in user 0
        ("items", np.array([0, 3, 1], np.int64)),
        ("items", np.array([[0, 3, 1]], np.int32)),
        ("user_ids", np.array([10, 10, 30])),
        ("user_ids", np.array([10.0, 20.0, 30.0])),
        ("item_ids", np.array(["a", "b", "c", "a"])),
        ("ratings", np.array([1, 2], np.float32)),
        ("ratings", np.array([1, 2, np.nan], np.float32)),
        ("ratings", np.array([1.0, 2, 3], np.float64)),
        ("timestamps", np.array([1, 2])),
        ("timestamps", np.array([1, np.inf, 2])),
        ("timestamps", np.array(["1", "2", "3"])),
    ],
)
def test_rejects_broken_invariants_by_field(field, value):
    with raises((ValueError, TypeCheckError), match=field):
        make(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "items",
            np.array([3, 0, 1], np.int32),
            "be ascending and distinct within each user, got 0 after 3",
        ),
        ("item_ids", np.array(["a", "b", "c", "b"]), "be distinct, got 'b' 2 times"),
        ("ratings", np.array([1, 2, np.nan], np.float32), "be finite, got nan"),
    ],
)
def test_errors_name_offending_value(field, value, message):
    with raises(ValueError, match=f"`{field}` must {message}"):
        make(**{field: value})


def test_rejects_more_ids_than_int32_indices():
    many = np.broadcast_to(np.int64(0), (2**31,))  # no memory behind it
    with raises((ValueError, TypeCheckError), match="user_ids"):
        make(user_ids=many)


def test_items_may_decrease_between_users():
    # User 1 is empty and user 2 begins below where user 0 ended.
    assert make(items=np.array([2, 3, 0], np.int32)).items.tolist() == [2, 3, 0]


def test_arrays_are_read_only_copies():
    items = VALID["items"].copy()
    data = make(items=items)
    items[0] = 2
    assert data.items[0] == 0
    for array in (data.items, data.indptr, data.users, data.ratings, data.user_ids):
        with raises(ValueError, match="read-only"):
            array[0] = 0
    with raises(dataclasses.FrozenInstanceError):
        data.items = items  # pyright: ignore[reportAttributeAccessIssue]


def test_from_arrays_sorts_and_assigns_indices():
    data = Interactions.from_arrays(
        [5, 2, 5, 2], ["x", "y", "a", "a"], ratings=[1, 2, 3, 4], timestamps=[0.5, 1, 2, 3]
    )
    assert data.user_ids.tolist() == [2, 5]
    assert data.item_ids.tolist() == ["a", "x", "y"]
    assert data.items.tolist() == [0, 2, 0, 1]
    assert data.ratings.tolist() == [4, 2, 3, 1]
    assert data.timestamps.tolist() == [3, 1, 2, 0.5]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["3", "10", "3"], np.array([3, 10])),  # numeric order
        (["01", "1", "01"], np.array(["01", "1"])),
        (["1", "a", "1"], np.array(["1", "a"])),
        (["1.0", "2.0", "1.0"], np.array([1, 2])),
        (["1.0", "2", "1.0"], np.array(["1.0", "2"])),
        ([1.0, 2.0, 1.0], np.array([1, 2])),
        ([b"7", b"9", b"7"], np.array([7, 9])),
        (np.array([1, "b", 1], object), np.array(["1", "b"])),
        (["9223372036854775807", "5", "5"], np.array([5, 2**63 - 1])),
        (["9223372036854775808", "5", "5"], np.array(["5", "9223372036854775808"])),
        (["é", "z", "é"], np.array(["z", "é"])),
    ],
)
def test_ids_become_integers_only_if_all_are_integral(ids, expected):
    data = Interactions.from_arrays(ids, [0, 0, 1])
    assert data.user_ids.dtype.kind == expected.dtype.kind
    assert data.user_ids.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "ids", [[-1], ["-1"], ["-3.0"], [""], [" 1"], ["a\0b"], [1.5], [np.nan], [True], [None], [[1]]]
)
def test_rejects_invalid_ids(ids):
    with raises(ValueError, match="items"):
        Interactions.from_arrays([0], ids)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"users": [0, 1], "items": [0]}, "items"),
        ({"users": [0], "items": [0], "ratings": [1, 2]}, "ratings"),
        ({"users": [0], "items": [0], "ratings": [np.inf]}, "ratings"),
        ({"users": [0], "items": [0], "ratings": [1e39]}, "ratings"),  # inf as float32
        ({"users": [0], "items": [0], "ratings": ["5"]}, "ratings"),
        ({"users": [0], "items": [0], "timestamps": [np.nan]}, "timestamps"),
        ({"users": [2], "items": [0], "user_ids": [5, 6]}, "users"),
        ({"users": [-1], "items": [0], "user_ids": [5, 6]}, "users"),
        ({"users": ["5"], "items": [0], "user_ids": [5, 6]}, "users"),
        (
            {"users": [0], "items": [0], "user_ids": [5, 6, 6]},
            "`user_ids` must be .* got 6 2 times",
        ),
    ],
)
def test_from_arrays_reports_invalid_argument(arguments, name):
    with raises((ValueError, TypeCheckError), match=name):
        Interactions.from_arrays(**arguments)


def test_vocabularies_keep_order_and_unused_ids():
    data = Interactions.from_arrays([2, 0], [1, 0], user_ids=["9", "5", "7"], item_ids=["b", "a"])
    assert data.user_ids.tolist() == [9, 5, 7]
    assert data.item_ids.tolist() == ["b", "a"]
    assert data.degrees.tolist() == [1, 0, 1]
    assert data.items.tolist() == [0, 1]


def test_keeps_latest_of_repeated_interactions_with_warning():
    with pytest.warns(DataWarning, match="dropped 2 repeated"):
        timed = Interactions.from_arrays(
            [1, 1, 1], [4, 4, 4], ratings=[1, 2, 3], timestamps=[5, 9, 7]
        )
    assert timed.ratings.tolist() == [2]
    with pytest.warns(DataWarning, match="dropped 1 repeated"):
        untimed = Interactions.from_arrays([1, 1], [4, 4], ratings=[1, 2])
    assert untimed.ratings.tolist() == [2]
    with pytest.warns(DataWarning, match="dropped 1 repeated"):
        tied = Interactions.from_arrays([1, 1], [4, 4], ratings=[3, 1], timestamps=[5, 5])
    assert tied.ratings.tolist() == [1]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), unique=True, min_size=1),
    st.randoms(use_true_random=False),
)
def test_from_arrays_keeps_pairs_in_any_order(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    data = Interactions.from_arrays(*np.transpose(shuffled))
    back = zip(data.user_ids[data.users].tolist(), data.item_ids[data.items].tolist(), strict=True)
    assert list(back) == sorted(pairs)
    straight = Interactions.from_arrays(*np.transpose(pairs))
    assert data.fingerprint() == straight.fingerprint()


def test_accepts_vocabularies_without_interactions():
    data = Interactions.from_arrays([], [], user_ids=[1, 2], item_ids=[3])
    assert (data.n_users, data.n_items, len(data), data.density) == (2, 1, 0, 0.0)


def test_select_keeps_vocabularies_and_columns():
    part = make().select(np.array([False, True, True]))
    assert part.indptr.tolist() == [0, 1, 1, 2]
    assert part.items.tolist() == [3, 1]
    assert part.ratings.tolist() == [2, 3]
    assert part.timestamps.tolist() == [8, 9]
    assert part.user_ids.tolist() == [10, 20, 30]
    with raises((ValueError, TypeCheckError), match="mask"):
        make().select(np.array([True]))
    with raises((ValueError, TypeCheckError), match="mask"):
        make().select(np.array([0, 1, 1]))


def test_fingerprint_depends_only_on_contents():
    assert make().fingerprint() == make().fingerprint()
    wider = make(item_ids=VALID["item_ids"].astype("<U40"))
    swapped = make(timestamps=VALID["timestamps"].astype(">i8"))
    assert wider.fingerprint() == swapped.fingerprint() == make().fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"items": np.array([1, 3, 1], np.int32)},
        {"indptr": np.array([0, 2, 3, 3])},
        {"user_ids": np.array([10, 20, 31])},
        {"user_ids": np.array(["10", "20", "30"])},
        {"item_ids": np.array(["ab", "", "c", "d"])},  # the same letters, cut elsewhere
        {"ratings": None},
        {"ratings": np.array([1, 2, 4], np.float32)},
        {"timestamps": np.array([7.0, 8, 9])},
    ],
)
def test_fingerprint_detects_every_change(change):
    assert make(**change).fingerprint() != make().fingerprint()


def test_original_ids_map_to_indices():
    data = make()
    assert data.user_index(20) == data.user_index("20") == data.user_index(np.int64(20)) == 1
    assert data.item_index("c") == 2
    for missing in (21, "21", "020", "x", -20):
        with raises(ValueError, match="Unknown user id"):
            data.user_index(missing)
    with raises(ValueError, match="Unknown item id 'e'"):
        data.item_index("e")


def test_split_requires_shared_vocabularies_and_disjoint_parts():
    data = make()
    train, test = data.select(data.ratings < 3), data.select(data.ratings == 3)
    assert [name for name, _ in Split(train, test=test).parts()] == ["train", "test"]
    with raises(ValueError, match="`test` must share no interaction with `train`, got 1"):
        Split(data, test=test)
    with raises(ValueError, match="`test` must share no interaction with `valid`"):
        Split(train, valid=test, test=test)
    other = make(user_ids=np.array([10, 20, 31])).select(data.ratings == 3)
    with raises(ValueError, match="user_ids"):
        Split(train, valid=other)
    empty = data.select(np.zeros(3, bool))
    assert len(Split(empty, test=data).train) == 0


def test_held_out_split_requires_test_part():
    data = make()
    train, test = data.select(data.ratings < 3), data.select(data.ratings == 3)
    assert HeldOutSplit(train, test=test).test is test
    with raises(ValueError, match="`test` must be Interactions, got None"):
        HeldOutSplit(train, valid=test)
    with raises(ValueError, match="`test` must share no interaction with `train`, got 1"):
        HeldOutSplit(data, test=test)


@pytest.mark.parametrize(("dtype", "digits"), [(np.float16, 11), (np.float32, 24)])
def test_rejects_floats_too_coarse_for_ids(dtype, digits):
    ids = np.array([2**digits + 2, 1], dtype)
    with raises(ValueError, match=rf"`users`: expected a whole number up to 2\*\*{digits}"):
        Interactions.from_arrays(ids, [0, 1])
    assert len(Interactions.from_arrays(np.array([2**digits - 1, 1], dtype), [0, 1])) == 2
