"""Blocks of plain numbers are read as the parser of CSV reads them, or left to it."""

import csv
import io
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax.data import DataError, _delimited, read
from crl_jax.data._columns import Found
from crl_jax.data._plain import read_plain

ALL = Found(0, 1, 2, 3)
ids = st.integers(0, 10**18 - 1).map(str)
ratings = st.from_regex(r"[0-9]{1,7}|[0-9]{0,5}\.[0-9]{1,8}|[0-9]{1,5}\.", fullmatch=True)
times = st.integers(0, 10**18 - 1).map(lambda x: f"{x:04}")
rows = st.lists(st.tuples(ids, ids, ratings, times), min_size=1, max_size=30)


@settings(deadline=None)
@given(rows, st.sampled_from([",", "\t", "::", " "]), st.sampled_from(["\n", "\r\n"]))
def test_numbers_are_those_of_python(rows, delimiter, end):
    block = "".join(delimiter.join(row) + end for row in rows).encode()
    found = read_plain(block, delimiter, 4, ALL)
    assert found is not None
    users, items, rated, times = zip(*rows, strict=True)
    assert found.users.tolist() == list(map(int, users))
    assert found.items.tolist() == list(map(int, items))
    wanted = np.array(list(map(float, rated))).astype(np.float32)
    np.testing.assert_array_equal(found.ratings, wanted)
    assert found.timestamps.tolist() == list(map(int, times))


anything = st.text(st.sampled_from('0123456789.,\n\r-+e" a٣'), max_size=40)


@settings(deadline=None)
@given(anything)
def test_what_is_taken_is_what_a_parser_of_csv_takes(text):
    found = read_plain(text.encode() + b"\n", ",", 3, Found(0, 1, 2, None))
    if found is None:
        return
    parsed = [*csv.reader(io.StringIO(text + "\n", newline=""), strict=True)]
    assert [row[:2] for row in parsed] == [
        [str(u), str(i)] for u, i in zip(found.users, found.items, strict=True)
    ]
    np.testing.assert_array_equal(
        found.ratings, np.array([float(row[2]) for row in parsed]).astype(np.float32)
    )


@pytest.mark.parametrize(
    "line",
    [
        "1,2,3", "1,2,3,4,5", "1,2,,4", "", "01,2,3,4", "1.0,2,3,4", "1,2,3,4.5", "-1,2,3,4",
        "1,2,.,4", "1,2,1.2.3,4", "1,2,1e3,4", '"1",2,3,4', " 1,2,3,4", "1,a,3,4",
        "1,2,3,2020-01-01", "1,2,1234567890.123456,4", "1,2,3,1234567890123456789",
        "1,2,3,4\r5,6,7,8", "1,2,3,٣",
    ],
)  # fmt: skip
def test_what_is_not_plain_is_left(line):
    assert read_plain(b"1,2,3,4\n", ",", 4, ALL) is not None
    assert read_plain(f"1,2,3,4\n{line}\n".encode(), ",", 4, ALL) is None


LINES = [f"{i % 97},{i},{i % 5 + 0.5},{10**9 + i}" for i in range(60_000)]
SPOILT = {
    "quoted": '5,"7",1,2',
    "text": "anna,7,1,2",
    "zero": "05,7,1,2",
    "blank": "",
    "negative": "-5,7,1,2",
    "short": "5,7",
    "unended": '5,"7,1,2',
}


def outcome(path):
    """The data, or the error, and what was warned of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = read(path).fingerprint()
        except DataError as error:
            found = str(error)
    return found, [str(each.message) for each in told]


@pytest.mark.parametrize("line", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize("place", [0, 40_000])
def test_a_file_that_is_plain_in_part(tmp_path, monkeypatch, line, place):
    path = tmp_path / "x.csv"
    rows = "\n".join([*LINES[:place], line, *LINES[place:]])
    path.write_text(f"user,item,rating,timestamp\n{rows}\n")
    found = outcome(path)
    monkeypatch.setattr(_delimited, "read_plain", lambda *_: None)
    assert found == outcome(path)
    if line in (SPOILT["negative"], SPOILT["short"]):
        assert f"x.csv:{place + 2}: " in found[0]


def test_the_last_line_needs_no_end(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("user,item\n1,2\n3,4")
    assert read(path).user_ids.tolist() == [1, 3]
