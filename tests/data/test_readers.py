"""Readers: every format, and a defined outcome for every kind of invalid file."""

import csv
import gzip
import inspect
import io
import re
from contextlib import suppress
from datetime import datetime

import numpy as np
import polars as pl
import pytest
from _helpers.refusals import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from crl_jax.data import DataError, DataWarning, _delimited, _ids, _readers, read, read_split
from crl_jax.data._values import InvalidValue

ROWS = [("196", "242", "3", "881250949"), ("186", "302", "4.5", "891717742")]


def joined(delimiter, rows=ROWS, end="\n"):
    return "".join(delimiter.join(row) + end for row in rows)


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def gzipped(text):
    return gzip.compress(text if isinstance(text, bytes) else text.encode(), mtime=0)


def parquet(**columns):
    buffer = io.BytesIO()
    pl.DataFrame(columns).write_parquet(buffer)
    return buffer.getvalue()


GOOD = {
    "u.data": joined("\t"),
    "u.data.gz": gzipped(joined("\t")),
    "ratings.dat": joined("::"),
    "x.dat": joined("::", end="\r\n"),
    "movielens.csv": "userId,movieId,rating,timestamp\n" + joined(","),
    "crlf.csv": "user,item,rating,time\r\n" + joined(",", end="\r\n"),
    "bom.csv": "\ufeffuser_id,item_id,rating,timestamp\n" + joined(","),
    "no_end.csv": "user_id,item_id,rating,timestamp\n" + joined(",")[:-1],
    "quoted.csv": '"user","item","title","rating","ts"\n'
    '196,"242","Se7en, ""the"" film",3,881250949\n186,302,"two\nlines","4.5",891717742\n',
    "more.csv": "n,timestamp,rating,User ID,ITEM_ID\n"
    "0,881250949,3,196,242\n1,891717742,4.5,186,302",
    "bars.csv": "user|item|rating|time\n" + joined("|"),
    "blank_after_comma.csv": "user, item, rating, time\n" + joined(", "),
    "table.tsv": "user\titem\trating\ttime\n" + joined("\t"),
    "table.tsv.gz": gzipped("uid\tiid\tstars\tunix_time\n" + joined("\t")),
    "ml.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + joined("\t"),
    "end_blank.csv": "user,item,rating,time\n" + joined(",") + "\n\n  \n",
    "headerless.txt": joined("\t"),
    "colons.txt": joined("::"),
    "header.txt": "user;item;rating;time\n" + joined(";"),
    "floats.csv": "user,item,rating,time\n196.0,242.0,3.0,881250949\n186.0,302.0,4.5,891717742\n",
    "table.parquet": parquet(
        user_id=[196, 186], item_id=[242, 302], rating=[3.0, 4.5], timestamp=[881250949, 891717742]
    ),
    "text.parquet": parquet(
        user=["196", "186"], item=[242.0, 302.0], rating=[3.0, 4.5], time=[881250949, 891717742]
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_every_format_gives_the_same_interactions(tmp_path, name):
    data = read(write(tmp_path, name, GOOD[name]))
    assert data.user_ids.tolist() == [186, 196]
    assert data.item_ids.tolist() == [242, 302]
    assert data.items.tolist() == [1, 0]
    assert data.ratings.tolist() == [4.5, 3]
    assert data.timestamps.tolist() == [891717742, 881250949]
    assert data.timestamps.dtype == np.int64


def test_lightgcn_lists(tmp_path):
    data = read(write(tmp_path, "train.txt", "0 5 2\n3 2 \n"))
    assert data.user_ids.tolist() == [0, 3]
    assert data.item_ids.tolist() == [2, 5]
    assert data.degrees.tolist() == [2, 1]
    with pytest.warns(DataWarning, match=r"l.txt: 2 users have no items"):
        data = read(write(tmp_path, "l.txt", "0 5\n1\n7\n0 6\n"))
    assert data.user_ids.tolist() == [0, 1, 7]
    assert data.degrees.tolist() == [2, 0, 0]


HEAD = "user,item,rating,time\n"

BAD = [  # file name, content, error message
    ("u.data", "1\t2\t3\t4\n1\t2\t3\n", r"u.data:2: expected 4 fields .*, got 3"),
    ("u.data", "1\t2\t3\t4\n5\t6\t3\t4\t5\n", r":2: expected 4 fields .*, got 5"),
    ("u.data", "1\t2\t3\t4\n\t6\t3\t4\n", r":2: expected a non-empty id as 'user', got ''"),
    ("u.data", "1\t2\t3\t4\n5\t-6\t3\t4\n", r":2: expected a non-negative id as 'item', got '-6'"),
    ("u.data", "1\t2\t3\t4\n5\t 6\t3\t4\n", r":2: expected an id without surrounding blanks"),
    ("u.data", "1\t2\t3\t4\n5\t\0\t3\t4\n", r":2: expected an id without a NUL"),
    ("u.data", "1\t2\tgood\t4\n", r":1: expected a finite number as 'rating', got 'good'"),
    (
        "u.data",
        "1\t2\t3\t4\n2\t2\tnan\t4\n",
        r":2: expected a finite number as 'rating', got 'nan'",
    ),
    ("u.data", "1\t2\t3\t4\n2\t2\t-inf\t4\n", r":2: .*'rating', got '-inf'"),
    ("u.data", "1\t2\t3\t4\n2\t2\t1e39\t4\n", r":2: .*'rating', got '1e39'"),
    ("u.data", "1\t2\t1_0\t4\n", r":1: .*'rating', got '1_0'"),
    ("u.data", "1\t2\t٣\t4\n", r":1: .*'rating', got '٣'"),
    (
        "u.data",
        "1\t2\t3\t\n",
        r":1: expected a finite number or an ISO date as 'timestamp', got ''",
    ),
    ("u.data", "1\t2\t3\tmonday\n", r":1: .*'timestamp', got 'monday'"),
    ("u.data", "1\t2\t3\t1e400\n", r":1: .*'timestamp', got '1e400'"),
    ("u.data", "", r"u.data: expected interactions, got an empty file"),
    ("u.data", "\n\n", r"u.data: expected interactions, got an empty file"),
    ("u.data", b"1\t2\t3\t4\n5\t\xff\t3\t4\n", r":2: expected UTF-8 text, got the byte 0xff"),
    ("u.data.gz", gzipped(b"1\t2\t3\t4\n5\t\xe9\t3\t4\n"), r":2: expected UTF-8 text, .* 0xe9"),
    ("u.data.gz", gzipped(b"1\t2\t3\t4\n" * 99)[:-9], r"expected a complete gzip file"),
    ("u.data.gz", b"1\t2\t3\t4\n", r"expected a complete gzip file"),
    ("u.data.gz", gzipped(b"1\t2\t3\t4\n")[:12] + b"\xff" * 20, r"a complete gzip file"),
    ("x.dat", "1::2::3::4\n1:2:3:4\n", r"x.dat:2: expected 4 fields separated by '::', got 1"),
    ("x.csv", "", r"x.csv: expected interactions, got an empty file"),
    ("x.csv", HEAD, r"x.csv: expected interactions, got none"),
    ("x.csv", HEAD + "1,2,3\n", r":2: expected 4 fields .*, got 3"),
    ("x.csv", HEAD + "1,2,3,4\n1,2,3", r":3: expected 4 fields .*, got 3"),  # truncated
    ("x.csv", HEAD + "1,2,3,4\n# note\n", r":3: expected 4 fields"),  # comments are not supported
    ("x.csv", HEAD + '1,2,3,4\n5,"6,3,4\n', r":3: .*cannot be read"),  # quote never closed
    ("x.csv", HEAD + '1,2,x,"4\n4"\n', r":3: expected a finite number as 'rating', got 'x'"),
    ("x.csv", HEAD + "1,2,3,4\n\n\n1,3,x,4\n", r":5: .*'rating', got 'x'"),  # blank lines count
    ("x.csv", "a,b,rating\n1,2,3\n", r"x.csv:1: expected a column with the user, .*'a', 'b'"),
    ("x.csv", "user,b,rating\n1,2,3\n", r"x.csv:1: expected a column with the item, .*'b'"),
    ("x.csv", "1,2,3\n1,2,3\n", r"x.csv:1: expected a column with the user"),
    ("x.csv", "user,item,user\n1,2,3\n", r"x.csv:1: expected distinct column names.*'user'"),
    ("x.csv", "user,uid,item\n1,2,3\n", r":1: expected one column with the user, .*'user', 'uid'"),
    ("x.inter", "user_id\titem_id\n1\t2\n", r"x.inter:1: expected a header such as"),
    ("x.txt", "0 1 2\n1 a\n", r"x.txt:2: expected non-negative integers .*got 'a'"),
    ("x.txt", "0 1 2\n1 -2\n", r"x.txt:2: expected non-negative integers .*got '-2'"),
    ("x.txt", "0 1 2\n01 2\n", r"x.txt:2: expected non-negative integers .*got '01'"),
    ("x.txt", "0 1 2\n1 2.5\n", r"x.txt:2: expected non-negative integers .*got '2.5'"),
    ("x.txt", b"0 1 2\n1 \x80\n", r"x.txt:2: expected UTF-8 text, got the byte 0x80"),
    ("x.txt", "", r"x.txt: expected interactions, got an empty file"),
    ("x.txt", "hello\n", r"x.txt:1: expected one of the formats"),
    ("x.parquet", b"", r"x.parquet: expected a Parquet file"),
    ("x.parquet", GOOD["table.parquet"][:-20], r"expected a Parquet file.*truncated"),
    ("x.parquet", b"PAR1" + b"\0" * 50 + b"PAR1", r"expected a readable Parquet file"),
    ("x.parquet", parquet(a=[1], item=[1]), r"expected a column with the user, .*'a', 'item'"),
    ("x.parquet", parquet(user=[1, None], item=[1, 1]), r"row 2: expected a value as 'user'"),
    (
        "x.parquet",
        parquet(user=[1.0, 1.5], item=[1, 1]),
        r"x.parquet: row 2: expected a whole number up to",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_said_with_its_line(tmp_path, name, content, message):
    path = write(tmp_path, name, content)
    with raises(DataError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert (
        set(re.findall("`(.*?)`", str(caught.value))) <= inspect.signature(read).parameters.keys()
    )


def test_the_line_is_exact_far_into_a_file(tmp_path):
    lines = [f"{i}\t{i}\t3\t4" for i in range(5000)]
    lines[4321] = "1\t2\toops\t4"
    with raises(DataError, match=r"u.data:4322: .*'oops'"):
        read(write(tmp_path, "u.data", "\n".join(lines) + "\n"))
    lines[4321] = "1\t-2\t3\t4"
    with raises(DataError, match=r"u.data:4322: .*'-2'"):
        read(write(tmp_path, "u.data", "\n".join(lines) + "\n"))
    lines[4321] = "1\t2\t3"
    with raises(DataError, match=r"u.data:4322: .*got 3"):
        read(write(tmp_path, "u.data", "\n".join(lines) + "\n"))


WARNED = [  # file name, content, warning, remaining interactions
    ("u.data", "1\t2\t3\t4\n\n\n5\t6\t3\t4\n", r"u.data: skipped 2 blank lines", 2),
    ("u.data", "\n1\t2\t3\t4\n\n", r"u.data: skipped 1 blank lines", 1),
    ("l.txt", "0 1\n\n1 1\n\n", r"l.txt: skipped 1 blank lines", 2),
    ("u.data", "1\t2\t3\t4\n5\t6\t3\t4", r"u.data: the last line has no line end", 2),
    ("l.txt", "0 1\n1 1", r"l.txt: the last line has no line end", 2),
    ("r.dat.gz", gzipped(b"1::2::3::4"), r"the last line has no line end", 1),
    ("x.csv", HEAD + "1,2,3,4\n1,2,4,5\n", r"x.csv: dropped 1 repeated interactions", 1),
]


@pytest.mark.parametrize(("name", "content", "message", "left"), WARNED, ids=range(len(WARNED)))
def test_what_was_changed_or_is_in_doubt_is_counted(tmp_path, name, content, message, left):
    with pytest.warns(DataWarning, match=message) as caught:
        data = read(write(tmp_path, name, content))
    assert (len(data), len(caught)) == (left, 1)


def test_a_blank_line_before_a_long_stretch_of_full_ones(tmp_path):
    one = [f"{i}\t{i}\t3\t4" for i in range(_delimited.ROWS_PER_BATCH - 1)]
    more = [f"x{line}" for line in one]
    path = write(tmp_path, "u.data", "\n".join([*one, "", *more]) + "\n")
    with pytest.warns(DataWarning, match="skipped 1 blank lines"):
        assert len(read(path)) == len(one) + len(more)


@pytest.mark.parametrize(
    "header",
    [
        "reviewerID,asin,overall,unixReviewTime",  # Amazon reviews of 2018
        "user_id,parent_asin,rating,timestamp",  # and of 2023
        "visitorid,itemid,score,ts",
        "User-ID,ISBN,Book-Rating,unix_time",
    ],
)
def test_common_names_of_columns_are_known(tmp_path, header):
    data = read(write(tmp_path, "x.csv", f"{header},event\n7,8,3,10,view\n"))
    assert (data.user_ids[0], data.item_ids[0]) == (7, 8)
    assert (data.ratings[0], data.timestamps[0]) == (3, 10)


def test_columns_and_delimiter_can_be_named(tmp_path):
    path = write(tmp_path, "x.csv", "user;who;what;stars\n9;1;2;5\n")
    data = read(path, user_col="who", item_col="what")
    assert data.user_ids.tolist() == [1]
    assert data.ratings.tolist() == [5]
    odd = write(tmp_path, "odd.csv", "user~item\n1~2\n")
    assert read(odd, delimiter="~").item_ids.tolist() == [2]
    recbole = write(tmp_path, "x.inter", "a:token\tb:token\n1\t2\n")
    assert len(read(recbole, user_col="a", item_col="b")) == 1
    with raises(DataError, match=r"expected a column 'absent' \(`user_col`\), got .*'who'"):
        read(path, user_col="absent", item_col="what")
    with raises(DataError, match="expected one role for each column"):
        read(path, user_col="what", item_col="what")
    with raises(DataError, match="rating_col"):
        read(write(tmp_path, "l.txt", "0 1\n"), rating_col="stars")
    with raises(DataError, match=r"expected the user first in each line"):
        read(tmp_path / "l.txt", user_col="item", item_col="user")


def test_a_column_that_only_looks_like_a_time_can_be_left_out(tmp_path):
    path = write(tmp_path, "x.csv", "user,item,score,time\n1,2,good,noon\n")
    data = read(path, rating_col="", time_col="")
    assert (data.ratings, data.timestamps) == (None, None)
    with raises(DataError, match=r"expected a column '' \(`item_col`\)"):
        read(path, item_col="")


HEADERLESS = {  # the same rows, preceded by another column
    "commas.csv": joined(",", [("n,o", *row) for row in ROWS]).replace("n,o", '"n,o"'),
    "tabs.tsv": "\n" + joined("\t", [("0", *row) for row in ROWS]),
    "blanks.txt": joined(" ", [("0", *row) for row in ROWS]),
    "bars.txt.gz": gzipped(joined("|", [("0", *row) for row in ROWS])),
}


@pytest.mark.parametrize("kind", [int, str])
@pytest.mark.parametrize("name", HEADERLESS)
@pytest.mark.filterwarnings("ignore:.*blank lines")
def test_columns_by_position_mean_a_file_without_a_header(tmp_path, name, kind):
    path = write(tmp_path, name, HEADERLESS[name])
    data = read(path, user_col=kind(1), item_col=kind(2), rating_col=kind(3), time_col=kind(4))
    assert data.user_ids.tolist() == [186, 196]
    assert data.item_ids[data.items].tolist() == [302, 242]
    assert data.ratings.tolist() == [4.5, 3]
    assert data.timestamps.tolist() == [891717742, 881250949]
    assert read(path, user_col=kind(2), item_col=kind(1)).ratings is None


def test_a_header_where_columns_have_positions_is_refused_or_told(tmp_path):
    path = write(tmp_path, "x.csv", "userId,what\n1,2\n")
    with raises(DataError, match=r"x.csv:1: expected data, .* got \['userId', 'what'\]; pass"):
        read(path, user_col=0, item_col=1)
    assert read(path, user_col=0, item_col=1, header=True).user_ids.tolist() == [1]
    assert read(path, user_col=0, item_col="what", header=True).item_ids.tolist() == [2]
    assert len(read(path, user_col=0, item_col=1, header=False)) == 2
    with raises(DataError, match=r"x.csv, whose columns have no names: expected a column 'what'"):
        read(path, user_col=1, item_col="what")
    with raises(DataError, match=r"expected a column 2 \(`item_col`\), got \['0', '1'\]"):
        read(path, user_col=0, item_col=2, header=False)
    with raises(DataError, match=r"expected a column with the user, got \['0', '1'\]"):
        read(path, header=False)
    with raises(ValueError, match=r"`header` applies to the format csv, got True for u.data"):
        read(write(tmp_path, "u.data", joined("\t")), header=True)


def test_positions_in_a_table_with_names(tmp_path):
    table = write(tmp_path, "x.parquet", parquet(**{"a": [7], "1": [8], "c": [9]}))
    data = read(table, user_col=2, item_col="1")
    assert (data.user_ids[0], data.item_ids[0]) == (9, 8)
    assert read(table, user_col="0", item_col="c").user_ids[0] == 7
    swapped = read(write(tmp_path, "u.data", joined("\t")), user_col=1, item_col=0)
    assert swapped.user_ids.tolist() == [242, 302]


@pytest.mark.parametrize("name", ["u.data", "u.data.gz", "lists.txt"])
def test_progress_tells_the_share_of_the_bytes(tmp_path, name):
    rng = np.random.default_rng(0)
    digits = rng.integers(10**8, 10**9, 20_000)  # so that gzip has something to compress
    lines = [f"{i} {x}" if name == "lists.txt" else f"{i}\t{x}\t3\t4" for i, x in enumerate(digits)]
    text = "\n".join(lines) + "\n"
    path = write(tmp_path, name, gzipped(text) if name.endswith(".gz") else text)
    told = []
    data = read(path, progress=lambda *call: told.append(call))
    assert len(data) == len(digits)
    assert {of for of, _ in told} == {path}
    shares = [share for _, share in told]
    assert shares == sorted(set(shares))
    assert shares[-1] == 1
    assert 2 < len(shares) <= 1000
    # A block of text, or the amount that Python 3.12 and later unzip at a time.
    assert np.diff([0, *shares]).max() * path.stat().st_size <= 2**17

    def stop(path, share):
        raise KeyboardInterrupt

    with raises(KeyboardInterrupt):
        read(path, progress=stop)


def test_format_can_be_given_and_bad_arguments_are_named(tmp_path):
    path = write(tmp_path, "ratings", joined("\t"))
    assert read(path, format="u.data").ratings.tolist() == [4.5, 3]
    with raises((ValueError, TypeCheckError), match="format"):
        read(path, format="excel")  # pyright: ignore[reportArgumentType]
    with raises(ValueError, match="`delimiter`"):
        read(path, format="u.data", delimiter=",")
    with raises(ValueError, match="`delimiter`"):
        read(path, format="csv", delimiter=",,")


def test_an_empty_file_of_any_format(tmp_path):
    path = write(tmp_path, "empty", "\n")
    for format in ("u.data", "ratings.dat", "csv", "inter", "lightgcn"):
        with raises(DataError, match=r"empty: expected interactions|empty:1: expected a"):
            read(path, format=format)
    with raises(DataError, match="empty: expected interactions, got an empty file"):
        read(path)


def test_missing_files_and_folders(tmp_path):
    write(tmp_path, "other.csv", "")
    with raises(FileNotFoundError, match=r"u.data: no such file; .* has other.csv"):
        read(tmp_path / "u.data")
    with raises(FileNotFoundError, match=r"has other.csv"):
        read(tmp_path / "absent" / "deeper" / "u.data")
    with raises(DataError, match="expected a file, got a folder"):
        read(tmp_path)


def test_ids_stay_text_unless_all_are_integers(tmp_path):
    data = read(write(tmp_path, "x.csv", "user,item\n1,a\n01,b\n2,1\n"))
    assert data.user_ids.tolist() == ["01", "1", "2"]
    assert data.item_ids.tolist() == ["1", "a", "b"]


VALID = ["01", "+1", "1_0", "1.0", "٣", "a", str(2**63 - 1)]
INVALID = ["", " 1", "-0", "-7", "a\0"]
numbers = st.integers(0, 12) | st.integers(0, 2**64 - 1)
words = st.integers(0, 2**65).map(str) | st.sampled_from(VALID)


@given(st.lists(st.lists(numbers | words, max_size=5), max_size=5), st.booleans())
def test_ids_are_numbered_apart_in_whatever_batches_they_come(batches, as_arrays):
    encoder = _ids.IdEncoder()
    for batch in batches:
        if as_arrays and batch and all(isinstance(name, int) for name in batch):
            encoder.add(np.array(batch, np.uint64))
        else:
            encoder.add(list(map(str, batch)))
    names, codes = encoder.result()
    assert [str(names[code]) for code in codes] == [str(x) for batch in batches for x in batch]
    assert len(set(map(str, names))) == len(names)
    assert set(codes.tolist()) == set(range(len(names)))


@given(st.lists(words), st.sampled_from(INVALID))
def test_an_invalid_id_is_told_when_it_comes(valid, bad):
    encoder = _ids.IdEncoder()
    with raises(InvalidValue) as caught:
        encoder.add([*valid, bad, "-1"])
    assert (caught.value.value, caught.value.index) == (bad, len(valid))


MOMENTS = ["2020-01-01", "2020-01-01 00:00:01", "2020-01-01T01:00:02+01:00", "1577836803.5"]


def test_dates_become_seconds(tmp_path):
    path = tmp_path / "dates.csv"
    path.write_text(
        "user,item,timestamp\n" + "".join(f"1,{i},{m}\n" for i, m in enumerate(MOMENTS))
    )
    assert read(path).timestamps.tolist() == [1577836800, 1577836801, 1577836802, 1577836803.5]
    path = tmp_path / "dates.parquet"
    moments = [datetime(2020, 1, 1), datetime(2020, 1, 1, 0, 0, 1, 500_000)]
    pl.DataFrame({"user": [1, 1], "item": [1, 2], "time": moments}).write_parquet(path)
    assert read(path).timestamps.tolist() == [1577836800, 1577836801.5]


def test_timestamps_with_fractions_are_float64(tmp_path):
    body = "".join(f"{i},{i},{i}\n" for i in range(1000)) + "1000,1000,1000.5\n"
    data = read(write(tmp_path, "x.csv", "user,item,time\n" + body))
    assert data.timestamps.dtype == np.float64
    assert data.timestamps[-2:].tolist() == [999, 1000.5]
    assert data.ratings is None


def test_min_rating_keeps_positives_and_the_vocabulary(tmp_path):
    path = write(tmp_path, "x.csv", "user,item,rating\n1,1,5\n1,2,3\n2,3,4\n")
    data = read(path, min_rating=4)  # no warning: the filter was requested
    assert (len(data), data.n_users, data.n_items) == (2, 2, 3)
    with pytest.warns(DataWarning, match="1 users have no rating of at least 5"):
        assert read(path, min_rating=5).degrees.tolist() == [1, 0]
    with raises(DataError, match="at least `min_rating` = 6"):
        read(path, min_rating=6)
    with raises(DataError, match="expected ratings, as `min_rating` is given"):
        read(write(tmp_path, "l.txt", "0 1\n"), min_rating=1)
    tenths = write(tmp_path, "y.csv", "user,item,rating\n1,1,3.1\n")
    assert len(read(tenths, min_rating=3.1)) == 1  # compared as float32


def test_min_rating_judges_the_last_of_repeated_ratings(tmp_path):
    path = write(tmp_path, "x.csv", HEAD + "1,1,5,10\n1,1,2,20\n1,2,5,10\n")
    with pytest.warns(DataWarning, match="dropped 1 repeated"):
        data = read(path, min_rating=4)
    assert data.item_ids[data.items].tolist() == [2]


def test_split_files_share_the_union_of_their_ids(tmp_path):
    train = write(tmp_path, "train.csv", "user,item\n1,10\n2,20\n")
    valid = write(tmp_path, "valid.csv", "user,item\n1,20\n")
    test = write(tmp_path, "test.csv", "user,item\n2,10\n")
    split = read_split(train, test, valid=valid)
    assert {name: len(part) for name, part in split.parts()} == {"train": 2, "valid": 1, "test": 1}
    assert read_split(train, test).valid is None

    floats = write(tmp_path, "floats.csv", "user,item\n2.0,10.0\n")
    assert read_split(train, floats).test.user_ids.tolist() == [1, 2]
    text = write(tmp_path, "text.csv", "user,item\n2,10\nb,10\n")
    with pytest.warns(DataWarning, match="text.csv: 1 users have no interaction in training"):
        assert read_split(train, text).train.user_ids.tolist() == ["1", "2", "b"]


def test_what_training_has_or_has_not_seen_is_counted(tmp_path):
    train = write(tmp_path, "train.csv", "user,item\n1,10\n2,20\n")
    unseen = write(tmp_path, "unseen.csv", "user,item\n3,30\n3,31\n1,20\n")
    with pytest.warns(DataWarning) as caught:
        split = read_split(train, unseen)
    assert [str(w.message).split(": ")[1] for w in caught] == [
        "1 users have no interaction in training",
        "2 items have no interaction in training",
    ]
    assert (split.train.n_users, split.train.n_items, len(split.test)) == (3, 4, 3)

    test = write(tmp_path, "test.csv", "user,item\n1,10\n1,20\n2,10\n")
    valid = write(tmp_path, "valid.csv", "user,item\n2,10\n")
    with pytest.warns(DataWarning) as caught:
        split = read_split(train, test, valid=valid)
    assert [str(w.message).split(": ")[1] for w in caught] == [
        "removed 1 interactions that are in the train part, too",
        "removed 1 interactions that are in the valid part, too",
    ]
    assert split.test.item_ids[split.test.items].tolist() == [20]
    with (
        raises(DataError, match=r"train.csv: expected interactions of its own"),
        pytest.warns(DataWarning),
    ):
        read_split(train, train)


@pytest.mark.parametrize("name", ["table.parquet", "u.data"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, name):
    path = write(tmp_path, name, GOOD[name])
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with raises(ImportError, match=re.escape("pip install 'crl_jax[data]'")):
        read(path)


# Set each byte to each value: polars 2.1 panics three times and misreads other numbers.
DAMAGE = [(52, 17), (99, 255), (861, 0), (41, 0)]


@pytest.mark.parametrize(("place", "value"), DAMAGE)
def test_a_damaged_parquet_file_is_an_error_or_other_data(tmp_path, place, value):
    damaged = bytearray(GOOD["table.parquet"])
    damaged[place] = value
    with suppress(DataError):
        read(write(tmp_path, "x.parquet", bytes(damaged)))


def test_a_parquet_file_cut_anywhere_is_an_error(tmp_path):
    good = GOOD["table.parquet"]
    for length in range(0, len(good), 20):
        with raises(DataError, match=r"x.parquet: expected a"):
            read(write(tmp_path, "x.parquet", good[:length]))


def test_parquet_is_read_in_batches(tmp_path, monkeypatch):
    rows = {"user": list("abcabcabcb"), "item": range(10), "rating": [1.0] * 9 + [2.5]}
    path = tmp_path / "x.parquet"
    pl.DataFrame(rows).write_parquet(path)
    whole = read(path).fingerprint()
    monkeypatch.setattr(_readers, "_PARQUET_ROWS", 3)
    assert read(path).fingerprint() == whole
    pl.DataFrame(rows | {"rating": [1.0] * 7 + [float("nan")] * 3}).write_parquet(path)
    with raises(DataError, match="row 8: expected a finite number as 'rating', got nan"):
        read(path)


def test_a_parquet_path_is_no_pattern(tmp_path):
    assert len(read(write(tmp_path, "part[1]*.parquet", GOOD["table.parquet"]))) == 2


ids = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\n\r"), min_size=1, max_size=6
).filter(
    lambda x: (
        x == x.strip() and x not in _ids._MISSING_MARKS and not re.fullmatch(r"-\d+(\.0*)?", x)
    )
)
rows = st.lists(
    st.tuples(
        ids,
        ids,
        st.floats(-1e6, 1e6, width=32),
        st.integers(-(2**62), 2**62),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda row: row[:2],
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=rows, end=st.sampled_from(["\n", "\r\n"]), delimiter=st.sampled_from(",\t;|"))
def test_what_is_written_is_read(tmp_path, rows, end, delimiter):
    path = tmp_path / "x.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
        writer.writerows([("user", "item", "rating", "timestamp"), *rows])
    data = read(path)
    back = zip(
        map(str, data.user_ids[data.users].tolist()),
        map(str, data.item_ids[data.items].tolist()),
        data.ratings.tolist(),
        data.timestamps.tolist(),
        strict=True,
    )
    # A column of only "1.0" is read as integers; no generated row depends on that.
    assert sorted(back) == sorted(rows)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.integers(0, 50), st.sets(st.integers(0, 2**62), min_size=1), min_size=1))
def test_lists_that_are_written_are_read(tmp_path, lists):
    path = tmp_path / "x.txt"
    path.write_text("".join(f"{u} {' '.join(map(str, i))}\n" for u, i in lists.items()))
    data = read(path)
    got = {
        int(data.user_ids[u]): set(
            data.item_ids[data.items[data.indptr[u] : data.indptr[u + 1]]].tolist()
        )
        for u in range(data.n_users)
    }
    assert got == lists
