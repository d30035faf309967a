"""Readers: all formats of one log agree, and every kind of invalid file has a defined outcome."""

import bz2
import csv
import gzip
import inspect
import io
import json
import lzma
import os
import re
import threading
from contextlib import suppress
from datetime import datetime

import numpy as np
import polars as pl
import pytest
from _helpers.files import warned, write, zipped
from _helpers.refusals import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from crl_jax.data import DataError, DataWarning, Interactions, columns, read, read_split

from crl_jax.data import _delimited, _ids, _readers  # isort: skip
from crl_jax.data._values import InvalidValue

ROWS = [("196", "242", "3", "881250949"), ("186", "302", "4.5", "891717742")]
BOTH = Interactions.from_arrays(
    [196, 186], [242, 302], ratings=[3, 4.5], timestamps=[881250949, 891717742]
)
HEAD = "user,item,rating,time\n"


def join_rows(delimiter, rows=ROWS, end="\n"):
    return "".join(delimiter.join(row) + end for row in rows)


def with_header(archive, offset, value):
    """A zip archive of one file with another byte at an offset of both of its headers."""
    changed = bytearray(archive)
    for signature, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        changed[changed.index(signature) + offset + shift] = value
    return bytes(changed)


def gzipped(content):
    return gzip.compress(content.encode() if isinstance(content, str) else content, mtime=0)


def parquet(**columns):
    buffer = io.BytesIO()
    pl.DataFrame(columns).write_parquet(buffer)
    return buffer.getvalue()


TABLE = HEAD + join_rows(",")
OBJECTS = [
    {"user": 196, "item": "242", "rating": "3", "time": "1997-12-04 15:55:49", "text": ["x"]},
    {"item": 302, "rating": 4.5, "user": "186", "time": 891717742, "text": None},
]
LINES = "\n".join(map(json.dumps, OBJECTS)) + "\n\n"
NUMBERED = [("9", *row) for row in ROWS]  # preceded by another column
BY_POSITION = {"user_col": 1, "item_col": 2, "rating_col": 3, "time_col": 4}
BY_TEXT = {role: str(place) for role, place in BY_POSITION.items()}
LOG = {"rating": [3.0, 4.5], "timestamp": [881250949, 891717742]}
ATOMIC = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
MAC = {"folder/a.csv": TABLE, "__MACOSX/folder/._a.csv": "x"}
SAME = [  # file name, content and options of `read`
    ("u.data", join_rows("\t"), {}),
    ("u.data.gz", gzipped(join_rows("\t")), {}),
    ("ratings.dat", join_rows("::"), {}),
    ("x.dat", join_rows("::", end="\r\n"), {}),
    ("movielens.csv", "userId,movieId,rating,timestamp\n" + join_rows(","), {}),
    ("amazon.csv", "reviewerID,asin,overall,unixReviewTime\n" + join_rows(","), {}),
    ("amazon2023.csv", "user_id,parent_asin,rating,timestamp\n" + join_rows(","), {}),
    ("visits.csv", "visitorid,itemid,score,ts\n" + join_rows(","), {}),
    ("books.csv", "User-ID,ISBN,Book-Rating,unix_time\n" + join_rows(","), {}),
    ("crlf.csv", "user,item,rating,time\r\n" + join_rows(",", end="\r\n"), {}),
    ("bom.csv", "\ufeffuser_id,item_id,rating,timestamp\n" + join_rows(","), {}),
    ("no_end.csv", TABLE[:-1], {}),
    ("quoted.csv", '"user","item","title","rating","ts"\n196,"242","Se7en, ""the"" film",3,'
     '881250949\n186,302,"two\nlines","4.5",891717742\n', {}),
    ("more.csv", "n,timestamp,rating,User ID,ITEM_ID\n0,881250949,3,196,242\n"
     "1,891717742,4.5,186,302", {}),
    ("bars.csv", "user|item|rating|time\n" + join_rows("|"), {}),
    ("blank_after_comma.csv", "user, item, rating, time\n" + join_rows(", "), {}),
    ("unnamed.csv", "user,item,rating,time,,\n" + join_rows(",", end=",,\n"), {}),
    ("decimal_comma.csv", ("user;item;rating;time\n" + join_rows(";")).replace(".", ","), {}),
    ("table.tsv", "user\titem\trating\ttime\n" + join_rows("\t"), {}),
    ("table.tsv.gz", gzipped("uid\tiid\tstars\tunix_time\n" + join_rows("\t")), {}),
    ("ml.inter", ATOMIC + join_rows("\t"), {}),
    ("commas.inter", ATOMIC.replace("\t", ",") + join_rows(","), {}),
    ("blanks.inter", ATOMIC.replace("\t", " ") + join_rows(" "), {}),
    ("hetrec.dat", "userID\tartistID\trating\ttimestamp\n" + join_rows("\t"), {}),
    ("end_blank.csv", TABLE + "\n\n  \n", {}),
    ("headerless.txt", join_rows("\t"), {}),
    ("colons.txt", join_rows("::"), {}),
    ("header.txt", "user;item;rating;time\n" + join_rows(";"), {}),
    ("floats.csv", HEAD + "196.0,242.0,3.0,881250949\n186.0,302.0,4.5,891717742\n", {}),
    ("dates.csv", HEAD + "196,242,3,1997-12-04 15:55:49 UTC\n"
     "186,302,4.5,1998-04-04T21:22:22+02:00\n", {}),
    ("table.parquet", parquet(user_id=[196, 186], item_id=[242, 302], **LOG), {}),
    ("text.parquet", parquet(user=["196", "186"], item=[242.0, 302.0], **LOG), {}),
    ("part[1]*.parquet", parquet(user=[196, 186], item=[242, 302], **LOG), {}),
    ("positions.parquet", parquet(**{"1": [242, 302], "b": [196, 186], **LOG}),
     {"user_col": 1, "item_col": "1", "rating_col": 2, "time_col": "timestamp"}),
    ("a.csv.gz", gzipped(TABLE), {}),
    ("A.CSV.GZ", gzipped(TABLE), {}),
    ("named_otherwise.csv", gzipped(TABLE), {}),
    ("a.csv.bz2", bz2.compress(TABLE.encode()), {}),
    ("a.csv.xz", lzma.compress(TABLE.encode()), {}),
    ("a.csv.zip", zipped(MAC), {}),
    ("a.jsonl", LINES, {}),
    ("a.json", LINES, {}),
    ("a.ndjson.gz", gzipped(LINES), {}),
    ("unnamed", LINES, {}),
    ("utf-16.csv", TABLE.encode("utf-16"), {"encoding": "utf-16"}),
    ("named", join_rows("\t"), {"format": "u.data"}),
    ("tilde.csv", TABLE.replace(",", "~"), {"delimiter": "~"}),
    ("own.csv", "user;who;what;stars;noon\n" + join_rows(";", NUMBERED),
     {"user_col": "who", "item_col": "what", "time_col": "noon"}),
    ("own.inter", ATOMIC.replace("user_id", "a").replace("item_id", "b") + join_rows("\t"),
     {"user_col": "a", "item_col": "b"}),
    *((name, content, by) for by in (BY_POSITION, BY_TEXT) for name, content in [
        ("commas.csv", join_rows(",", NUMBERED).replace("9,196", '"n,o",196')),
        ("tabs.tsv", "\n" + join_rows("\t", NUMBERED)),
        ("blanks.txt", join_rows(" ", NUMBERED)),
        ("bars.txt.gz", gzipped(join_rows("|", NUMBERED))),
    ]),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*(blank lines|no line end)")
@pytest.mark.parametrize(("name", "content", "options"), SAME, ids=[row[0] for row in SAME])
def test_all_formats_read_equal_interactions(tmp_path, name, content, options):
    path = write(tmp_path / name, content)
    assert read(path, **options).fingerprint() == BOTH.fingerprint()
    assert {"user", "item"} <= {*columns(path, **options)[0].__dataclass_fields__}


def test_reads_lightgcn_lists(tmp_path):
    data = read(write(tmp_path / "train.txt", "0 5 2\n3 2 \n"))
    assert data.user_ids.tolist() == [0, 3]
    assert data.item_ids.tolist() == [2, 5]
    assert data.degrees.tolist() == [2, 1]
    with pytest.warns(DataWarning, match=r"l.txt: 2 users have no items"):
        data = read(write(tmp_path / "l.txt", "0 5\n1\n7\n0 6\n"))
    assert data.user_ids.tolist() == [0, 1, 7]
    assert data.degrees.tolist() == [2, 0, 0]
    triplets = write(tmp_path / "ratings.txt", "1 1193 5\n1 661 3\n2 1193 4\n")
    assert len(read(triplets, format="lightgcn")) == 6
    data = read(triplets, format="csv", user_col=0, item_col=1, rating_col=2)
    assert data.ratings.tolist() == [3, 5, 4]


GOOD = "1\t2\t3\t4\n"
OLD = "user;item\nzoë;7\nann;8\n".encode("latin-1")
WHAT = "user;who;what;stars\n9;1;2;5\n"
LOOKS = "look like ratings; pass `format`"
IN_JSON = '{"user": "eve", "item": %s, "rating": 1, "time": 1}'
BAD = [  # file name, content, error, and options of `read`
    ("u.data", GOOD + "1\t2\t3\n", r"u.data:2: expected 4 fields .*, got 3"),
    ("u.data", GOOD + "5\t6\t3\t4\t5\n", r":2: expected 4 fields .*, got 5"),
    ("u.data", GOOD + "\t6\t3\t4\n", r":2: expected a non-empty id as 'user', got ''"),
    ("u.data", GOOD + "5\t-6\t3\t4\n", r":2: expected a non-negative id as 'item', got '-6'"),
    ("u.data", GOOD + "5\t 6\t3\t4\n", r":2: expected an id without surrounding blanks"),
    ("u.data", GOOD + "5\t\0\t3\t4\n", r":2: expected an id without a NUL"),
    ("u.data", "1\t2\tgood\t4\n", r":1: expected a finite number as 'rating', got 'good'"),
    ("u.data", GOOD + "2\t2\tnan\t4\n", r":2: expected a finite number as 'rating', got 'nan'"),
    ("u.data", GOOD + "2\t2\t-inf\t4\n", r":2: .*'rating', got '-inf'"),
    ("u.data", GOOD + "2\t2\t1e39\t4\n", r":2: .*'rating', got '1e39'"),
    ("u.data", "1\t2\t1_0\t4\n", r":1: .*'rating', got '1_0'"),
    ("u.data", "1\t2\t٣\t4\n", r":1: .*'rating', got '٣'"),
    ("u.data", "1\t2\t3\t\n", r":1: expected a finite number or an ISO date as 'timestamp', got"),
    ("u.data", "1\t2\t3\tmonday\n", r":1: .*'timestamp', got 'monday'"),
    ("u.data", "1\t2\t3\t1e400\n", r":1: .*'timestamp', got '1e400'"),
    ("u.data", "\n\n", r"u.data: expected interactions, got an empty file"),
    ("u.data", b"1\t2\t3\t4\n5\t\xff\t3\t4\n", r":2: expected UTF-8 text, got the byte 0xff"),
    ("u.data.gz", gzipped(b"1\t2\t3\t4\n5\t\xe9\t3\t4\n"), r":2: expected UTF-8 text, .* 0xe9"),
    ("u.data.gz", gzipped(GOOD * 99)[:-9], r"expected a complete gzip file"),
    ("u.data.gz", GOOD, r"expected a complete gzip file"),
    ("u.data.gz", gzipped(GOOD)[:12] + b"\xff" * 20, r"a complete gzip file"),
    ("a.csv.bz2", bz2.compress(TABLE.encode())[:40], "expected a complete"),
    ("a.csv.xz", lzma.compress(TABLE.encode())[:40], "expected a complete"),
    ("x.csv", zipped({"a": TABLE, "b": TABLE}), r"a zip archive of one file, got \['a', 'b'\]"),
    ("x.csv", with_header(zipped({"a": TABLE}), 6, 1), "a zip archive that opens, .* encrypted"),
    ("x.csv", with_header(zipped({"a": TABLE}), 8, 9), "a zip archive that opens, .* compression"),
    ("x.csv", b"\x28\xb5\x2f\xfd" + b"x" * 20, "compressed by zstd; unpack it"),
    ("x.csv", zipped({"data.npy": "x"}), "pass them in memory, a sparse matrix"),
    ("x.dat", "1::2::3::4\n1:2:3:4\n", r"x.dat:2: expected 4 fields separated by '::', got 1"),
    ("x.csv", HEAD, r"x.csv: expected interactions, got none"),
    ("x.csv", HEAD + "1,2,3\n", r":2: expected 4 fields .*, got 3"),
    ("x.csv", HEAD + "1,2,3,4\n1,2,3", r":3: expected 4 fields .*, got 3"),  # truncated
    ("x.csv", HEAD + "1,2,3,4\n# note\n", r":3: expected 4 fields"),  # comments are not supported
    ("x.csv", HEAD + '1,2,3,4\n5,"6,3,4\n', r":3: .*cannot be read"),  # quote never closed
    ("x.csv", HEAD + '1,2,x,"4\n4"\n', r":3: expected a finite number as 'rating', got 'x'"),
    ("x.csv", HEAD + "1,2,3,4\n\n\n1,3,x,4\n", r":5: .*'rating', got 'x'"),  # blank lines count
    ("x.csv", "user;item;rating\n1;2;1,000\n", r":2: .* as 'rating', got '1,0"),  # of thousands
    ("x.csv", 'user,item\n"two\nlines",1\n', r"x.csv:3: expected an id without line breaks as 'us"),
    ("x.csv", "user,item,rating\n1,2," + "x" * 10**5, r"'x{20,60}\.\.\. \(100002 characters\)"),
    ("x.csv", "a,b,rating\n1,2,3\n", r"x.csv:1: expected a column with the user, .*'a', 'b'"),
    ("x.csv", "user,b,rating\n1,2,3\n", r"x.csv:1: expected a column with the item, .*'b'"),
    ("x.csv", "1,2,3\n1,2,3\n", r"x.csv:1: expected a column with the user"),
    ("x.csv", "1,1,5,978300760\n1,3,4,978300761\n", "header"),
    ("x.csv", "5,7,5,978300760\n1,3,4,978300761\n", "header"),
    ("x.csv", "user,item,user\n1,2,3\n", r"x.csv:1: expected distinct column names.*'user'"),
    ("x.csv", "user,uid,item\n1,2,3\n", r":1: expected one column with the user, .*'user', 'uid'"),
    ("x.inter", "user_id\titem_id\n1\t2\n", r"x.inter:1: expected a header such as"),
    ("x.txt", "0 1 2\n1 a\n", r"x.txt:2: expected non-negative integers .*got 'a'"),
    ("x.txt", "0 1 2\n1 -2\n", r"x.txt:2: expected non-negative integers .*got '-2'"),
    ("x.txt", "0 1 2\n01 2\n", r"x.txt:2: expected non-negative integers .*got '01'"),
    ("x.txt", "0 1 2\n1 2.5\n", r"x.txt:2: expected non-negative integers .*got '2.5'"),
    ("x.txt", b"0 1 2\n1 \x80\n", r"x.txt:2: expected UTF-8 text, got the byte 0x80"),
    ("x.txt", "hello\n", r"x.txt:1: expected one of the formats"),
    ("x.txt", "1 1193 5\n1 661 3\n2 1193 4\n", LOOKS),
    ("x.txt", "".join(f"{i} {i * 7} {i % 5}\n" for i in range(30)), LOOKS),
    ("l.txt", "0 1\n", "rating_col", {"rating_col": "stars"}),
    ("l.txt", "0 1\n", "expected the user first in each", {"user_col": "item", "item_col": "user"}),
    ("l.txt", "0 1\n", "expected ratings, as `min_rating` is given", {"min_rating": 1}),
    ("x.csv", TABLE, "at least `min_rating` = 6", {"min_rating": 6}),
    ("x.csv", WHAT, r"'absent' \(`user_col`\), got .*'who'", {"user_col": "absent"}),
    ("x.csv", WHAT, "expected one role for each", {"user_col": "what", "item_col": "what"}),
    ("x.csv", TABLE, r"expected a column '' \(`item_col`\)", {"item_col": ""}),
    ("x.csv", "userId,what\n1,2\n", r"x.csv:1: expected data, .* got \['userId', 'what'\]; pass",
     {"user_col": 0, "item_col": 1}),
    ("x.csv", "userId,what\n1,2\n", r"x.csv, whose columns have no names: expected a column 'what'",
     {"user_col": 1, "item_col": "what"}),
    ("x.csv", "userId,what\n1,2\n", r"expected a column 2 \(`item_col`\), got \['0', '1'\]",
     {"user_col": 0, "item_col": 2, "header": False}),
    ("x.csv", "userId,what\n1,2\n", r"a column with the user, got \['0', '1'\]", {"header": False}),
    ("x.csv", OLD, r"x.csv:2: expected UTF-8 text.*pass `encoding`"),
    ("x.csv", b"\xff\xfea", "expected text in utf-16", {"encoding": "utf-16"}),
    ("x.parquet", b"", r"x.parquet: expected a Parquet file"),
    ("x.parquet", b"PAR1" + b"\0" * 50 + b"PAR1", r"expected a readable Parquet file"),
    ("x.parquet", parquet(a=[1], item=[1]), r"expected a column with the user, .*'a', 'item'"),
    ("x.parquet", parquet(user=[1, None], item=[1, 1]), r"row 2: expected a value as 'user'"),
    ("x.parquet", parquet(user=[1.0, 1.5], item=[1, 1]), r"row 2: expected a whole number up to"),
    ("a.jsonl", LINES + IN_JSON % "null", "a.jsonl:4: expected a value as 'item'"),
    ("a.jsonl", LINES + IN_JSON % "[1]", "a.jsonl:4: .*integers or text as 'item'"),
    ("a.jsonl", LINES + '{"user": "eve"}', "a.jsonl:4: expected a value as 'item', got None"),
    ("a.jsonl", LINES + '{"user": ', "a.jsonl:4: .*expected a JSON object"),
    ("a.jsonl", LINES + "[1, 2]", "a.jsonl:4: expected a JSON object in each line"),
    *(("empty", "\n", r"empty: expected interactions|empty:1: expected a", {"format": format})
      for format in ("u.data", "ratings.dat", "csv", "inter", "lightgcn")),
    *((name, "", f"{name}: expected interactions, got an empty file")
      for name in ("u.data", "x.csv", "x.txt", "empty")),
]  # fmt: skip


@pytest.mark.parametrize("row", BAD, ids=range(len(BAD)))
def test_reports_file_and_line_of_invalid_rows(tmp_path, row):
    name, content, message, *options = row
    path = write(tmp_path / name, content)
    with raises(DataError, match=message) as caught:
        read(path, **(options[0] if options else {}))
    assert str(path) in str(caught.value)
    named = set(re.findall("`(.*?)`", str(caught.value)))
    assert named <= inspect.signature(read).parameters.keys()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("u.data", {"delimiter": ","}, "`delimiter`"),
        ("x.csv", {"delimiter": ",,"}, "`delimiter`"),
        ("x.csv", {"quote_char": '""'}, "`quote_char` must be one character or empty"),
        ("x.csv", {"encoding": "utf-99"}, "`encoding` must be the name of a codec"),
        ("u.data", {"header": True}, "`header` applies to the format csv, got True for u.data"),
        ("x.csv", {"format": "excel"}, "format"),
    ],
)
def test_reports_invalid_arguments(tmp_path, name, options, message):
    path = write(tmp_path / name, join_rows("\t") if name == "u.data" else TABLE)
    with raises((ValueError, TypeCheckError), match=message):
        read(path, **options)


@pytest.mark.parametrize(("line", "token"), [("1\t2\toops\t4", "'oops'"), ("1\t-2\t3\t4", "'-2'"),
                                            ("1\t2\t3", "got 3")])  # fmt: skip
def test_line_number_is_exact_in_long_file(tmp_path, line, token):
    lines = [f"{i}\t{i}\t3\t4" for i in range(5000)]
    lines[4321] = line
    with raises(DataError, match=rf"u.data:4322: .*{token}"):
        read(write(tmp_path / "u.data", "\n".join(lines) + "\n"))


TITLES = [("user", "item", "title"), ("1", "2", '"Great'), ("3", "4", "x"), ("5", "6", 'Wow"'),
          ("7", "8", "x")]  # fmt: skip
MARKS = "2 user ids are .*, which mark missing values"
WARNED = [  # file name, content, warning, remaining interactions
    ("u.data", "1\t2\t3\t4\n\n\n5\t6\t3\t4\n", r"u.data: skipped 2 blank lines", 2),
    ("u.data", "\n1\t2\t3\t4\n\n", r"u.data: skipped 1 blank lines", 1),
    ("l.txt", "0 1\n\n1 1\n\n", r"l.txt: skipped 1 blank lines", 2),
    ("u.data", "1\t2\t3\t4\n5\t6\t3\t4", r"u.data: the last line has no line end", 2),
    ("l.txt", "0 1\n1 1", r"l.txt: the last line has no line end", 2),
    ("r.dat.gz", gzipped(b"1::2::3::4"), r"the last line has no line end", 1),
    ("x.csv", HEAD + "1,2,3,4\n1,2,4,5\n", r"x.csv: dropped 1 repeated interactions", 1),
    ("x.csv", "user,item\nann   ,x\nbob   , y\n", "x.csv: removed the blanks after 2 ids", 2),
    *((f"x{end}", join_rows(by, TITLES), "2 lines within quotes look like rows", 2)
      for end, by in ((".csv", ","), (".tsv", "\t"))),
    *(("x.csv", f"user,item\n{mark},1\n{mark},2\nann,3\n", MARKS, 3)
      for mark in ("\\N", "NULL", "nan", "None", "<NA>")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message", "left"), WARNED, ids=range(len(WARNED)))
def test_warns_of_changed_and_doubtful_rows(tmp_path, name, content, message, left):
    path = write(tmp_path / name, content)
    with pytest.warns(DataWarning, match=message) as caught:
        data = read(path)
    assert (len(data), len(caught)) == (left, 1)
    if "quotes" in message:
        assert len(read(path, quote_char="")) == 4
    if "blanks after" in message:
        assert (data.user_ids.tolist(), data.item_ids.tolist()) == (["ann", "bob"], ["x", "y"])


def test_counts_blank_line_at_batch_boundary(tmp_path):
    one = [f"{i}\t{i}\t3\t4" for i in range(_delimited.ROWS_PER_BATCH - 1)]
    more = [f"x{line}" for line in one]
    path = write(tmp_path / "u.data", "\n".join([*one, "", *more]) + "\n")
    with pytest.warns(DataWarning, match="skipped 1 blank lines"):
        assert len(read(path)) == len(one) + len(more)


PIPED = {
    "log": TABLE + "".join(f"u{i},i{i % 9},1,{i}\n" for i in range(40_000)),
    "lists": "".join(f"{i} {i + 1} {i + 2}" + " 3" * (i % 2) + "\n" for i in range(9)),
    "quoted": TABLE + '"eve, x",8,1,5\n',
}


@pytest.mark.parametrize("name", PIPED)
def test_reads_named_pipes(tmp_path, name):
    expected, _ = warned(read, write(tmp_path / name, PIPED[name]))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = PIPED[name].encode()
    writer = threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True)
    writer.start()
    found, _ = warned(read, pipe)
    writer.join(10)
    assert found.fingerprint() == expected.fingerprint()
    with raises(DataError, match="expected a file, got a pipe"):
        columns(pipe)
    with raises(DataError, match="got a pipe"):
        read(pipe, format="parquet")


def test_limits_memory_of_ids_but_not_field_length(tmp_path):
    text = "user,item,review\n" + f'1,2,"{"x" * 200_000}, and more"\n2,3,ok\n'
    assert len(read(write(tmp_path / "x.csv", text))) == 2
    many = "user,item\n" + "".join(f"u{i},1\n" for i in range(5000)) + "v" * 100_000 + ",1\n"
    with raises(DataError, match=r"x.csv: expected ids of at most 256 .* would take 2.0 GB"):
        read(write(tmp_path / "x.csv", many))


def test_column_roles_may_be_omitted_or_swapped(tmp_path):
    data = read(
        write(tmp_path / "x.csv", "user,item,score,time\n1,2,good,noon\n"),
        rating_col="",
        time_col="",
    )
    assert (data.ratings, data.timestamps) == (None, None)
    path = write(tmp_path / "y.csv", "userId,what\n1,2\n")
    assert read(path, user_col=0, item_col=1, header=True).user_ids.tolist() == [1]
    assert read(path, user_col=0, item_col="what", header=True).item_ids.tolist() == [2]
    assert len(read(path, user_col=0, item_col=1, header=False)) == 2
    path = write(tmp_path / "u.data", join_rows("\t"))
    assert read(path, user_col=1, item_col=0).user_ids.tolist() == [242, 302]
    assert read(path, format="csv", user_col=0, item_col=1).ratings is None


@pytest.mark.parametrize("name", ["u.data", "u.data.gz", "lists.txt"])
def test_progress_reports_fraction_of_bytes(tmp_path, name):
    rng = np.random.default_rng(0)
    digits = rng.integers(10**8, 10**9, 20_000)  # so that gzip has something to compress
    lines = [f"{i} {x}" if name == "lists.txt" else f"{i}\t{x}\t3\t4" for i, x in enumerate(digits)]
    text = "\n".join(lines) + "\n"
    path = write(tmp_path / name, gzipped(text) if name.endswith(".gz") else text)
    calls = []
    assert len(read(path, progress=lambda *call: calls.append(call))) == len(digits)
    assert {of for of, _ in calls} == {path}
    shares = [share for _, share in calls]
    assert shares == sorted(set(shares))
    assert shares[-1] == 1
    assert 2 < len(shares) <= 1000
    # A block of text, or the amount that Python 3.12 and later unzip at a time.
    assert np.diff([0, *shares]).max() * path.stat().st_size <= 2**17

    def stop(path, share):
        raise KeyboardInterrupt

    with raises(KeyboardInterrupt):
        read(path, progress=stop)


def test_reports_missing_files_and_folders(tmp_path):
    write(tmp_path / "other.csv")
    with raises(FileNotFoundError, match=r"u.data: no such file; .* has other.csv"):
        read(tmp_path / "u.data")
    with raises(FileNotFoundError, match=r"has other.csv"):
        read(tmp_path / "absent" / "deeper" / "u.data")
    with raises(DataError, match="expected a file, got a folder"):
        read(tmp_path)


VALID = ["01", "+1", "1_0", "1.0", "٣", "a", str(2**63 - 1)]
INVALID = ["", " 1", "-0", "-7", "a\0"]
numbers = st.integers(0, 12) | st.integers(0, 2**64 - 1)
words = st.integers(0, 2**65).map(str) | st.sampled_from(VALID)


@given(st.lists(st.lists(numbers | words, max_size=5), max_size=5), st.booleans())
def test_id_encoder_round_trips_ids_over_batches(batches, as_arrays):
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
def test_id_encoder_reports_first_invalid_id(valid, bad):
    encoder = _ids.IdEncoder()
    with raises(InvalidValue) as caught:
        encoder.add([*valid, bad, "-1"])
    assert (caught.value.value, caught.value.index) == (bad, len(valid))


def test_times_become_seconds_with_fractions(tmp_path):
    moments = ["2020-01-01", "2020-01-01 00:00:01", "2020-01-01T01:00:02+01:00", "1577836803.5"]
    body = "".join(f"1,{i},{moment}\n" for i, moment in enumerate(moments))
    found = read(write(tmp_path / "dates.csv", "user,item,timestamp\n" + body)).timestamps
    assert found.tolist() == [1577836800, 1577836801, 1577836802, 1577836803.5]
    moments = [datetime(2020, 1, 1), datetime(2020, 1, 1, 0, 0, 1, 500_000)]
    path = write(tmp_path / "x.parquet", parquet(user=[1, 1], item=[1, 2], time=moments))
    assert read(path).timestamps.tolist() == [1577836800, 1577836801.5]
    body = "".join(f"{i},{i},{i}\n" for i in range(1000)) + "1000,1000,1000.5\n"
    found = read(write(tmp_path / "x.csv", "user,item,time\n" + body)).timestamps
    assert (found.dtype, found[-2:].tolist()) == (np.float64, [999, 1000.5])


def test_min_rating_keeps_positives_and_vocabulary(tmp_path):
    path = write(tmp_path / "x.csv", "user,item,rating\n1,1,5\n1,2,3\n2,3,4\n")
    data = read(path, min_rating=4)  # no warning: the filter was requested
    assert (len(data), data.n_users, data.n_items) == (2, 2, 3)
    with pytest.warns(DataWarning, match="1 users have no rating of at least 5"):
        assert read(path, min_rating=5).degrees.tolist() == [1, 0]
    tenths = write(tmp_path / "y.csv", "user,item,rating\n1,1,3.1\n")
    assert len(read(tenths, min_rating=3.1)) == 1  # compared as float32
    path = write(tmp_path / "z.csv", HEAD + "1,1,5,10\n1,1,2,20\n1,2,5,10\n")
    with pytest.warns(DataWarning, match="dropped 1 repeated"):  # and the last one counts
        data = read(path, min_rating=4)
    assert data.item_ids[data.items].tolist() == [2]


@pytest.fixture
def parts(tmp_path):
    """Returns files of users and items by their names."""
    return lambda **pairs: [
        write(tmp_path / f"{name}.csv", f"user,item\n{rows}\n") for name, rows in pairs.items()
    ]


def test_split_files_share_union_of_ids(parts):
    train, valid, test = parts(train="1,10\n2,20", valid="1,20", test="2,10")
    split = read_split(train, test, valid=valid)
    assert {name: len(part) for name, part in split.parts()} == {"train": 2, "valid": 1, "test": 1}
    assert read_split(train, test).valid is None
    floats, text = parts(floats="2.0,10.0", text="2,10\nb,10")
    assert read_split(train, floats).test.user_ids.tolist() == [1, 2]
    with pytest.warns(DataWarning, match="text.csv: 1 users have no interaction in training"):
        assert read_split(train, text).train.user_ids.tolist() == ["1", "2", "b"]


def test_warns_of_unseen_ids_and_leaked_interactions(parts):
    train, unseen = parts(train="1,10\n2,20", unseen="3,30\n3,31\n1,20")
    split, messages = warned(read_split, train, unseen)
    assert [message.split(": ")[1] for message in messages] == [
        "1 users have no interaction in training",
        "2 items have no interaction in training",
    ]
    assert (split.train.n_users, split.train.n_items, len(split.test)) == (3, 4, 3)
    test, valid = parts(test="1,10\n1,20\n2,10", valid="2,10")
    split, messages = warned(read_split, train, test, valid=valid)
    assert [message.split(": ")[1] for message in messages] == [
        "removed 1 interactions that are in the train part, too",
        "removed 1 interactions that are in the valid part, too",
    ]
    assert split.test.item_ids[split.test.items].tolist() == [20]
    with raises(DataError, match=r"train.csv: expected interactions"):
        warned(read_split, train, train)


PARQUET = parquet(user_id=[196, 186], item_id=[242, 302], rating=[3.0, 4.5], timestamp=[1, 2])


@pytest.mark.parametrize(("name", "content"), [("x.parquet", PARQUET), ("u.data", join_rows("\t"))])
def test_reports_missing_package(tmp_path, monkeypatch, name, content):
    path = write(tmp_path / name, content)
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with raises(ImportError, match=re.escape("pip install 'crl_jax[data]'")):
        read(path)


def test_damaged_parquet_raises_data_error_or_loads(tmp_path):
    # Set each byte to each value: polars 2.1 panics three times and misreads other numbers.
    for place, value in [(52, 17), (99, 255), (861, 0), (41, 0)]:
        damaged = bytearray(PARQUET)
        damaged[place] = value
        with suppress(DataError):
            read(write(tmp_path / "x.parquet", bytes(damaged)))
    for length in range(0, len(PARQUET), 20):
        with raises(DataError, match=r"x.parquet: expected a"):
            read(write(tmp_path / "x.parquet", PARQUET[:length]))


def test_parquet_batch_size_does_not_change_result(tmp_path, monkeypatch):
    rows = {"user": list("abcabcabcb"), "item": range(10), "rating": [1.0] * 9 + [2.5]}
    path = write(tmp_path / "x.parquet", parquet(**rows))
    whole = read(path).fingerprint()
    monkeypatch.setattr(_readers, "_PARQUET_ROWS", 3)
    assert read(path).fingerprint() == whole
    write(path, parquet(**rows | {"rating": [1.0] * 7 + [float("nan")] * 3}))
    with raises(DataError, match="row 8: expected a finite number as 'rating', got nan"):
        read(path)


ids = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\n\r"), min_size=1, max_size=6
).filter(
    lambda x: (
        x == x.strip() and x not in _ids._MISSING_MARKS and not re.fullmatch(r"-\d+(\.0*)?", x)
    )
)
rows = st.lists(
    st.tuples(ids, ids, st.floats(-1e6, 1e6, width=32), st.integers(-(2**62), 2**62)),
    min_size=1,
    max_size=8,
    unique_by=lambda row: row[:2],
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=rows,
    end=st.sampled_from(["\n", "\r\n"]),
    delimiter=st.sampled_from(",\t;|"),
    encoding=st.sampled_from(["utf-8", "utf-16"]),
)
def test_csv_round_trip(tmp_path, rows, end, delimiter, encoding):
    path = tmp_path / "x.csv"
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
        writer.writerows([("user", "item", "rating", "timestamp"), *rows])
    data = read(path, encoding=encoding)
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
def test_lightgcn_round_trip(tmp_path, lists):
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
