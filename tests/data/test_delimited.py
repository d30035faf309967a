"""Fast parsing of regular numeric blocks, against the general CSV parser."""

import csv
import io
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax.data import DataError, _delimited, read
from crl_jax.data._delimited import Layout, parse_regular
from crl_jax.data._ids import IdEncoder
from crl_jax.data._values import parse_ratings, parse_times

ids = st.integers(0, 10**18 - 1).map(str)
ratings = st.from_regex(r"[0-9]{1,7}|[0-9]{0,5}\.[0-9]{1,8}|[0-9]{1,5}\.", fullmatch=True)
times = st.integers(0, 10**18 - 1).map(lambda x: f"{x:04}")
rows = st.lists(st.tuples(ids, ids, ratings, times), min_size=1, max_size=30)


@settings(deadline=None, max_examples=30)
@given(rows, st.sampled_from([",", "\t", "::", " "]), st.sampled_from(["\n", "\r\n"]))
def test_parsed_numbers_match_python(rows, delimiter, end):
    block = "".join(delimiter.join(row) + end for row in rows).encode()
    found = parse_regular(block, Layout(delimiter), 4)
    assert found is not None
    users, items, rated, times = zip(*rows, strict=True)
    encoder = IdEncoder()
    encoder.add(found[:, 0])
    names, codes = encoder.result()
    assert names[codes].tolist() == list(map(int, users))
    assert found[:, 1].to_list() == [*items]
    wanted = np.array(list(map(float, rated))).astype(np.float32)
    np.testing.assert_array_equal(parse_ratings(found[:, 2]), wanted)
    assert parse_times(found[:, 3]).tolist() == list(map(int, times))


anything = st.text(st.sampled_from('0123456789.,\n\r-+e" a٣'), max_size=40)


@settings(deadline=None)
@given(anything)
def test_accepted_blocks_match_csv_parser(text):
    found = parse_regular(text.encode() + b"\n", Layout(",", quote_char='"'), 3)
    if found is None:
        return
    parsed = [*csv.reader(io.StringIO(text + "\n", newline=""), strict=True)]
    assert [*map(list, found.rows())] == parsed


@pytest.mark.parametrize(
    "line", ["1,2,3", "1,2,3,4,5", "", '"1",2,3,4', "1,2,3,4\r5,6,7,8", "1,2\0,3,4"]
)
def test_declines_irregular_blocks(line):
    layout = Layout(",", quote_char='"')
    assert parse_regular(b"1,2,3,4\n", layout, 4) is not None
    assert parse_regular(f"1,2,3,4\n{line}\n".encode(), layout, 4) is None


LINES = [f"{i % 97},{i},{i % 5 + 0.5},{10**9 + i}" for i in range(6000)]  # more than one block
IRREGULAR = {
    "quoted": '5,"7",1,2',
    "text": "anna,7,1,2",
    "zero": "05,7,1,2",
    "blank": "",
    "negative": "-5,7,1,2",
    "short": "5,7",
    "unended": '5,"7,1,2',
}


def outcome(path):
    """Returns the fingerprint of the data, or the error, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = read(path).fingerprint()
        except DataError as error:
            found = str(error)
    return found, [str(each.message) for each in caught]


@pytest.mark.parametrize("line", IRREGULAR.values(), ids=IRREGULAR)
@pytest.mark.parametrize("place", [0, 4000])
def test_partly_regular_file_matches_general_parser(tmp_path, monkeypatch, line, place):
    path = tmp_path / "x.csv"
    rows = "\n".join([*LINES[:place], line, *LINES[place:]])
    path.write_text(f"user,item,rating,timestamp\n{rows}\n")
    found = outcome(path)
    monkeypatch.setattr(_delimited, "parse_regular", lambda *_: None)
    assert found == outcome(path)
    if line in (IRREGULAR["negative"], IRREGULAR["short"]):
        assert f"x.csv:{place + 2}: " in found[0]


def test_last_line_may_lack_newline(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("user,item\n1,2\n3,4")
    assert read(path).user_ids.tolist() == [1, 3]
