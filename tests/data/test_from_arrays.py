"""In-memory inputs, against the same data passed one interaction at a time."""

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from _helpers.files import write
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crl_jax.data import DataError, DataWarning, Interactions, as_interactions, load, read

TABLE = {
    "User ID": ["ann", "bob", "ann"],
    "movieId": [7, 7, 3],
    "stars": [4.5, 3.0, 1.0],
    "note": ["x", None, "y"],
    "timestamp": [30, 20, 10],
}
FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame}
each_frame = pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)


def pairs(data):
    """Returns each interaction with its original ids."""
    users, items = data.user_ids[data.users].tolist(), data.item_ids[data.items].tolist()
    more = [column.tolist() for column in (data.ratings, data.timestamps) if column is not None]
    return sorted(zip(users, items, *more, strict=True))


@settings(deadline=None)
@given(
    hnp.arrays(np.int8, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.integers(0, 3)),
    st.sampled_from([np.int8, np.float32, np.float64, np.bool_]),
    st.sampled_from(["csr", "csc", "coo", "lil", "dok"]),
    st.booleans(),
)
def test_sparse_matrix_keeps_rows_and_columns(dense, dtype, layout, old):
    dense = dense.astype(dtype)
    data = as_interactions((sp.coo_matrix if old else sp.coo_array)(dense).asformat(layout))
    assert (data.n_users, data.n_items) == dense.shape
    got = np.zeros(dense.shape)
    got[data.users, data.items] = 1 if data.ratings is None else data.ratings
    np.testing.assert_array_equal(got, dense)
    assert (data.ratings is None) == bool(np.all(dense[dense != 0] == 1))


def test_sparse_matrix_sums_duplicates_and_drops_zeros():
    twice = sp.coo_array((np.array([100, 100, 1], np.int8), ([0, 0, 1], [1, 1, 0])), (3, 2))
    assert pairs(as_interactions(twice)) == [(0, 1, 200), (1, 0, 1)]
    assert twice.nnz == 3  # the caller's array is not modified
    stored = sp.csr_array(([1.0, 0.0], ([0, 1], [0, 1])), (2, 2))
    with pytest.warns(DataWarning, match="dropped 1 stored zeros"):
        assert pairs(as_interactions(stored)) == [(0, 0)]
    with raises(ValueError, match="`ratings` must be finite"):
        as_interactions(sp.csr_array([[np.nan]]))


@each_frame
def test_dataframe_columns_are_detected_or_named(frame):
    x = frame(TABLE)
    data = as_interactions(x)
    assert pairs(data) == [("ann", 3, 1.0, 10), ("ann", 7, 4.5, 30), ("bob", 7, 3.0, 20)]
    assert data.timestamps.dtype == np.int64
    swapped = as_interactions(x, user_col="movieId", item_col=0, rating_col="", time_col="")
    assert pairs(swapped) == [(3, "ann"), (7, "ann"), (7, "bob")]
    assert len(as_interactions(x, min_rating=3)) == 2
    assert as_interactions(x, min_rating=3).n_items == 2
    with raises(DataError, match=r"DataFrame: expected a column 'who' \(`user_col`\)"):
        as_interactions(x, user_col="who")
    with raises(DataError, match="DataFrame: row 2: expected a value as 'note'"):
        as_interactions(x, item_col="note")
    with raises(DataError, match="expected a column with the item"):
        as_interactions(frame({"user": [1]}))
    with raises(DataError, match="expected interactions, got none"):
        as_interactions(x[:0])


def test_reads_time_zones_categories_and_nullable_columns():
    zoned = pd.to_datetime(["2020-01-01 01:00"]).tz_localize("Europe/Berlin")
    kinds = pd.Series(["a"], dtype="category")
    x = pd.DataFrame({"user": kinds, "item": pd.Series([5], dtype="Int64"), "time": zoned})
    assert pairs(as_interactions(x)) == [("a", 5, 1577836800)]
    x = pd.DataFrame({0: [1], 1: [2], "rating": ["4.5"]})
    assert pairs(as_interactions(x, user_col=0, item_col=1)) == [(1, 2, 4.5)]
    with raises(ValueError, match="row 1: expected a finite number as 'rating', got 'good'"):
        as_interactions(x.replace("4.5", "good"), user_col=0, item_col=1)
    x = pl.DataFrame({"user": [1], "item": [2], "time": [date(1970, 1, 2)]})
    assert pairs(as_interactions(x)) == [(1, 2, 86400)]


DAY = datetime(2020, 1, 1)
LATER = datetime(2020, 1, 1, 0, 0, 1, 500_000)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        *((frame({"time": moments}), seconds) for frame in FRAMES.values() for moments, seconds in [
            ([DAY, datetime(1969, 12, 31)], [1577836800, -86400]),
            ([DAY, LATER], [1577836800, 1577836801.5]),
        ]),
        *((pl.Series([-1, 2**62]).cast(pl.Datetime(unit)), [-1 / of, 2**62 / of])
          for unit, of in {"ms": 10**3, "us": 10**6, "ns": 10**9}.items()),
        (pl.Series([-1, 2**31 - 1], dtype=pl.Int32).cast(pl.Date), [-86_400, 86_400 * (2**31 - 1)]),
        (pl.Series([2**63 + 2**20, 1], dtype=pl.UInt64), [2.0**63 + 2**20, 1.0]),  # above int64
        (np.array(["1970-01-02", "1969-12-31"], "M8"), [86400, -86400]),
        (np.array(["1970-01-01T00:00:01.25"], "M8"), [1.25]),
        (np.array(["1970-01-01T00:00:01.000"], "M8"), [1]),
    ],
    ids=range(12),
)  # fmt: skip
def test_dates_become_seconds(times, seconds):
    times = times["time"] if hasattr(times, "columns") else times
    ids = {"user": [1] * len(seconds), "item": list(range(len(seconds)))}
    found = as_interactions({**ids, "time": times}).timestamps
    assert found.tolist() == seconds
    whole = all(second == int(second) for second in seconds)
    assert found.dtype == (np.int64 if whole and max(seconds) < 2**63 else np.float64)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"timestamps": np.array(["NaT"], "M8[s]")}, "`timestamps` must be finite, got NaT"),
        ({"ratings": np.array(["1970"], "M8")}, "`ratings` must be numbers"),
    ],
)
def test_rejects_missing_dates_and_dates_as_ratings(columns, message):
    with raises(ValueError, match=message):
        Interactions.from_arrays([1], [1], **columns)


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        ([[5, 2], [3, 2]], [(3, 2), (5, 2)]),
        ([[5.0, 2, 0.5]], [(5, 2, 0.5)]),
        ([["a", "2", "3.5", "10"]], [("a", 2, 3.5, 10)]),
        (np.array([["a", 2, 4.5, 1577836800.5]], object), [("a", 2, 4.5, 1577836800.5)]),
    ],
)
def test_array_rows_are_interactions(rows, want):
    assert pairs(as_interactions(np.array(rows))) == want


def test_array_columns_are_selected_by_position():
    array = np.array([[4, 10, 7]])
    assert pairs(as_interactions(array, user_col=2, item_col=0, rating_col="")) == [(7, 4)]
    with raises(DataError, match="an array: expected one role for each column"):
        as_interactions(array, user_col=2)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({1, 2}, r"`x` must be Interactions, .* got builtins.set"),
        ([(1, 2, 3, 4, 5)], r"`x` must have tuples .* got tuples of \[5\]"),
        (pl.LazyFrame({"user": [1]}), r"got polars.*LazyFrame"),
        (pd.Series([1]), r"got pandas.*Series"),
        (np.zeros(3), r"got shape \(3,\)"),
        (np.zeros((2, 1)), r"got shape \(2, 1\)"),
        (np.zeros((2, 5)), r"got shape \(2, 5\)"),
        (np.zeros((0, 2)), r"an array: expected interactions, got none"),
        (np.array([[0.5, 1]]), r"an array: row 1: expected a whole number .* as 'user', got 0.5"),
        (np.array([[1, np.nan]]), r"expected a whole number .* as 'item', got nan"),
        (sp.coo_array(np.ones(3)), r"a row per user and a column per item, got \(3,\)"),
        (sp.csr_array([[1j]]), r"`x` must hold numbers, got complex128"),
    ],
    ids=str,
)
def test_rejects_unreadable_inputs(x, message):
    with raises(ValueError, match=message):
        as_interactions(x)


def test_column_options_require_tables():
    data = Interactions.from_arrays([1], [2])
    for x, what in ((data, "Interactions"), (sp.eye_array(2), "a sparse matrix")):
        with raises(ValueError, match=f"`user_col` applies to tables and arrays, not to {what}"):
            as_interactions(x, user_col=0)
    with raises(DataError, match="Interactions: expected ratings, as `min_rating` is given"):
        as_interactions(data, min_rating=3)
    with raises(ValueError, match="`min_rating` must be a number .* got '4'"):
        as_interactions(Interactions.from_arrays([1], [2], ratings=[5]), min_rating="4")


def test_load_accepts_data_in_memory():
    data = Interactions.from_arrays([1], [2])
    assert as_interactions(data) is load(data) is data
    x = pl.DataFrame(TABLE)
    got = load(x, item_col="movieId", min_rating=3)
    assert got.fingerprint() == as_interactions(x, min_rating=3).fingerprint()
    for name, value in {"format": "csv", "delimiter": ",", "header": True}.items():
        with raises(ValueError, match=f"`{name}` applies to files, not to data in memory"):
            load(x, **{name: value})
    with raises(TypeError, match="min_ratings"):
        load(x, min_ratings=3)  # pyright: ignore[reportCallIssue]


NAN = {"user": [1, 2], "item": [1, 1], "rating": [1.0, np.nan]}
FIVE = {"user": [1], "item": [1], "rating": ["five"]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": ["a", ""], "item": [1, 1]}, r"row 2: expected a non-empty id"),
        ({"user": [1, -1], "item": [1, 1]}, r"row 2: .* non-negative id as 'user', got -1"),
        ({"user": [1], "item": [1], "rating": [1e39]}, r"row 1: .* as 'rating', got 1e\+39"),
        ({"user": [True], "item": [1]}, r"row 1: expected integers or text as 'user'"),
        (NAN, r"row 2: expected a finite number as 'rating', got nan"),
        (FIVE, r"row 1: expected a finite number as 'rating'"),
        ({"user": [], "item": []}, r"expected interactions|expected integers"),
    ],
    ids=range(7),
)
def test_reports_row_of_invalid_polars_values(columns, message):
    with raises(DataError, match=f"^a polars DataFrame: {message}"):
        as_interactions(pl.DataFrame(columns))


IDS = [uuid.UUID(int=5), uuid.UUID(int=3)]
MOMENTS = [datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, 0, 0, 2)]
CONTENT = {  # user, item, rating, time: in memory, and as text in a file
    "text": (["ann", "bob"], ["7", "8"], ["4.5", "3"], ["2020-01-01", "2020-01-02"]),
    "integers": ([5, 3], [7, 8], [4, 3], [10, 20]),
    "numpy": ([np.int32(5), np.uint8(3)], [np.str_("7"), np.str_("8")], [np.float32(4.5), 3], None),
    "uuid": (IDS, [Decimal(7), Decimal(8)], [Decimal("4.5"), Decimal(3)], MOMENTS),
    "dates": ([5.0, 3.0], ["007", "7"], [1, 2], [date(2020, 1, 1), date(1969, 1, 1)]),
    "fractions": ([5, 3], [7, 8], None, [Decimal("1.5"), 2]),
}


@pytest.mark.parametrize("kind", CONTENT)
def test_memory_and_file_inputs_agree(tmp_path, kind):
    roles = ("user", "item", "rating", "time")
    content = {role: x for role, x in zip(roles, CONTENT[kind], strict=True) if x is not None}
    rows = list(zip(*content.values(), strict=True))
    lines = [",".join(content), *(",".join(map(str, row)) for row in rows)]
    expected = read(write(tmp_path / "x.csv", "\n".join(lines) + "\n")).fingerprint()
    given = {
        "mapping": content,
        "pandas": pd.DataFrame(content),
        "objects": {role: np.array(x, object) for role, x in content.items()},
    }
    if "rating" in content:
        given["tuples"] = rows
        given["array"] = np.array(rows, object)
    if kind != "numpy":
        given["polars"] = {
            role: pl.Series(x, dtype=pl.Object if isinstance(x[0], uuid.UUID) else None)
            for role, x in content.items()
            if len(set(map(type, x))) == 1
        }
    for name, x in given.items():
        if len(x) == len(content) or name != "polars":
            assert as_interactions(x).fingerprint() == expected, name


def test_accepts_other_containers():
    expected = Interactions.from_arrays([1, 2], [2, 3]).fingerprint()
    structured = np.array([(1, 2), (2, 3)], dtype=[("user", "i8"), ("item", "i8")])
    for x in (structured, jnp.array([[1, 2], [2, 3]]), [(1, 2), (2, 3)], [[1, 2], [2, 3]]):
        assert as_interactions(x).fingerprint() == expected
    with raises(ValueError, match="`x` must have tuples"):
        as_interactions([(1, 2), (1, 2, 3)])
    with raises(ValueError, match="columns of equal length"):
        as_interactions({"user": [1, 2], "item": [1]})
    with raises(DataError, match="a list of tuples: row 2: expected a value as 'user'"):
        as_interactions([("a", 1), (None, 1)])
