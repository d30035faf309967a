"""Exports, compressed files, pipes and memory: the same content gives the same interactions."""

import bz2
import gzip
import io
import json
import lzma
import os
import threading
import uuid
import warnings
import zipfile
from datetime import UTC, date, datetime
from decimal import Decimal

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
from _helpers.refusals import raises

from crl_jax.data import (
    DataError,
    DataWarning,
    Interactions,
    as_interactions,
    columns,
    k_core,
    load,
    read,
    split_by_ratio,
)

TABLE = "user,item,rating,time\nann,7,4.5,2020-01-01\nbob,7,3,2020-01-01T00:00:02\n"


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def warned(function):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = function()
    return result, [str(w.message) for w in seen]


@pytest.fixture
def table(tmp_path):
    return read(write(tmp_path, "table.csv", TABLE))


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return buffer.getvalue()


PACKED = {
    "a.csv.gz": gzip.compress(TABLE.encode()),
    "A.CSV.GZ": gzip.compress(TABLE.encode()),
    "named_otherwise.csv": gzip.compress(TABLE.encode()),
    "a.csv.bz2": bz2.compress(TABLE.encode()),
    "a.csv.xz": lzma.compress(TABLE.encode()),
    "a.csv.zip": zipped({"folder/a.csv": TABLE, "__MACOSX/folder/._a.csv": "x"}),
}


@pytest.mark.parametrize("name", PACKED)
def test_compressed_files(tmp_path, table, name):
    content = PACKED[name]
    path = write(tmp_path, name, content)
    assert read(path).fingerprint() == table.fingerprint()
    assert columns(path)[0].item == "item"
    if not name.endswith(".zip"):
        with raises(DataError, match="expected a complete"):
            read(write(tmp_path, name, content[: len(content) // 2]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zipped({"a": TABLE, "b": TABLE}), r"expected a zip archive of one file, got \['a', 'b'\]"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 20, "compressed by zstd; unpack it"),
        (zipped({"data.npy": "x"}), "pass them in memory, a sparse matrix"),
    ],
    ids=["two_files", "zstd", "arrays"],
)
def test_other_packed_files_are_refused_for_what_they_are(tmp_path, content, message):
    with raises(DataError, match=message):
        read(write(tmp_path, "x.csv", content))


PIPED = {
    "log": TABLE + "".join(f"u{i},i{i % 9},1,{i}\n" for i in range(40_000)),
    "lists": "".join(f"{i} {i + 1} {i + 2}" + " 3" * (i % 2) + "\n" for i in range(9)),
    "quoted": TABLE + '"eve, x",8,1,5\n',
}


@pytest.mark.parametrize("name", PIPED)
def test_a_pipe_is_read_to_its_end(tmp_path, name):
    text = PIPED[name]
    expected = warned(lambda: read(write(tmp_path, name, text)))[0]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(text.encode(),), daemon=True)
    writer.start()
    found = warned(lambda: read(pipe))[0]
    writer.join(10)
    assert found.fingerprint() == expected.fingerprint()
    with raises(DataError, match="expected a file, got a pipe"):
        columns(pipe)
    with raises(DataError, match="got a pipe"):
        read(pipe, format="parquet")


def test_triplets_of_integers_are_not_lists(tmp_path):
    triplets = "1 1193 5\n1 661 3\n2 1193 4\n"
    path = write(tmp_path, "ratings.txt", triplets)
    with raises(DataError, match="look like ratings; pass `format`"):
        read(path)
    data = read(path, format="csv", user_col=0, item_col=1, rating_col=2)
    assert data.ratings.tolist() == [3, 5, 4]
    assert len(read(path, format="lightgcn")) == 6
    sorted_by_time = "".join(f"{i} {i * 7} {i % 5}\n" for i in range(30))
    with raises(DataError, match="look like ratings"):
        read(write(tmp_path, "x.txt", sorted_by_time))


def test_json_lines(tmp_path, table):
    rows = [
        {"user": "ann", "item": 7, "rating": 4.5, "time": "2020-01-01", "text": ["x"]},
        {"user": "bob", "rating": "3", "item": "7", "time": 1577836802},
    ]
    text = "\n".join(map(json.dumps, rows)) + "\n\n"
    for name in ("a.jsonl", "a.json", "a.ndjson.gz", "unnamed"):
        content = gzip.compress(text.encode()) if name.endswith(".gz") else text
        path = write(tmp_path, name, content)
        assert read(path).fingerprint() == table.fingerprint()
    assert columns(path)[0].ignored == ("text",)
    for line, message in [
        ('{"user": "eve", "item": null, "rating": 1, "time": 1}', "expected a value as 'item'"),
        ('{"user": "eve", "item": [1], "rating": 1, "time": 1}', "integers or text as 'item'"),
        ('{"user": "eve"}', "expected a value as 'item', got None"),
        ('{"user": ', "expected a JSON object"),
        ("[1, 2]", "expected a JSON object in each line"),
    ]:
        with raises(DataError, match=f"a.jsonl:4: .*{message}"):
            read(write(tmp_path, "a.jsonl", text + line))


def test_encodings(tmp_path):
    text = "user;item\nzoë;7\nann;8\n"
    path = write(tmp_path, "x.csv", text.encode("latin-1"))
    with raises(DataError, match=r"x.csv:2: expected UTF-8 text.*pass `encoding`"):
        read(path)
    expected = read(write(tmp_path, "y.csv", text)).fingerprint()
    for encoding in ("latin-1", "utf-16", "utf-8"):
        path = write(tmp_path, "x.csv", text.encode(encoding))
        assert read(path, encoding=encoding).fingerprint() == expected
    with raises(ValueError, match="`encoding` must be the name of a codec"):
        read(path, encoding="utf-99")
    with raises(DataError, match="expected text in utf-16"):
        read(write(tmp_path, "x.csv", b"\xff\xfea"), encoding="utf-16")


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_stray_quote_does_not_hide_rows(tmp_path, suffix):
    separator = "," if suffix == ".csv" else "\t"
    rows = [("user", "item", "title"), (1, 2, '"Great'), (3, 4, "x"), (5, 6, 'Wow"'), (7, 8, "x")]
    text = "".join(separator.join(map(str, row)) + "\n" for row in rows)
    path = write(tmp_path, f"log{suffix}", text)
    with pytest.warns(DataWarning, match="2 lines within quotes look like rows"):
        read(path)
    assert len(read(path, quote_char="")) == 4
    with raises(ValueError, match="`quote_char` must be one character or empty"):
        read(path, quote_char='""')


def test_fields_of_any_length_but_ids_of_bounded_memory(tmp_path):
    text = "user,item,review\n" + f'1,2,"{"x" * 200_000}, and more"\n2,3,ok\n'
    assert len(read(write(tmp_path, "x.csv", text))) == 2
    many = "user,item\n" + "".join(f"u{i},1\n" for i in range(5000)) + "v" * 100_000 + ",1\n"
    path = write(tmp_path, "x.csv", many)
    with raises(DataError, match=r"x.csv: expected ids of at most 256 .* would take 2.0 GB"):
        read(path)
    with raises(DataError, match=r"got 'x{20,60}\.\.\. \(100002 characters\)"):
        read(write(tmp_path, "x.csv", "user,item,rating\n1,2," + "x" * 100_000 + "\n"))


def test_shards_of_integers_and_of_floats_have_the_same_users(tmp_path):
    write(tmp_path, "part-00000-a.csv", "user,item\n1,2\n2,3\n")
    write(tmp_path, "part-00001-a.csv", "user,item\n1.0,5.0\n3.0,2.0\n")
    write(tmp_path, "part-00002-a.csv", "user,item\nx,2\n")
    data = load(tmp_path)
    assert data.user_ids.tolist() == ["1", "2", "3", "x"]
    assert data.item_ids.tolist() == [2, 3, 5]


def test_hidden_files_and_empty_shards(tmp_path):
    for name in ("._log.csv", ".DS_Store.csv", "_SUCCESS"):
        write(tmp_path, name, b"\0\5\x16\7\0")
    write(tmp_path, "part-00000-a.csv", "user,item\n1,2\n")
    write(tmp_path, "part-00001-a.csv", "")
    assert len(load(tmp_path)) == 1
    write(tmp_path, "part-00000-a.csv", "")
    with raises(DataError, match="expected interactions, got an empty file"):
        load(tmp_path)


def test_marks_of_missing_values(tmp_path):
    for mark in ("\\N", "NULL", "nan", "None", "<NA>"):
        text = f"user,item\n{mark},1\n{mark},2\nann,3\n"
        with pytest.warns(DataWarning, match="2 user ids are .*, which mark missing values"):
            read(write(tmp_path, "x.csv", text))
    with raises(DataError, match=r"x.csv:3: expected an id without line breaks as 'user'"):
        read(write(tmp_path, "x.csv", 'user,item\n"two\nlines",1\n'))


EXPORTS = {
    "BigQuery": ("user,item,time\na,b,2024-01-01 12:00:00 UTC\nc,d,2024-01-02 12:00:00.5 UTC\n"),
    "decimal comma": "user;item;rating\n1;2;4,5\n2;3;3,0\n",
    "padded": "user,item\nann   ,x\nbob   , y\n",
    "RecBole, commas": "user_id:token,item_id:token,rating:float\n1,2,5\n",
    "RecBole, blanks": "user_id:token item_id:token\n1 2\n",
    "HetRec": "userID\tartistID\tweight\n2\t51\t13883\n2\t52\t11690\n",
    "unnamed columns": "user,item,rating,,\n1,2,5,,\n",
}
NAMES = {"RecBole, commas": "x.inter", "RecBole, blanks": "x.inter", "HetRec": "x.dat"}


@pytest.mark.parametrize("kind", EXPORTS)
def test_exports(tmp_path, kind):
    path = write(tmp_path, NAMES.get(kind, "x.csv"), EXPORTS[kind])
    data, messages = warned(lambda: read(path))
    match kind:
        case "BigQuery":
            assert data.timestamps.tolist() == [1704110400, 1704196800.5]
        case "decimal comma":
            assert data.ratings.tolist() == [4.5, 3]
        case "padded":
            assert data.user_ids.tolist() == ["ann", "bob"]
            assert data.item_ids.tolist() == ["x", "y"]
            assert messages == [f"{path}: removed the blanks after 2 ids"]
        case _:
            assert data.item_ids.tolist() in ([2], [51, 52])
    if kind != "padded":
        assert not messages


def test_numbers_with_a_thousands_separator_are_refused(tmp_path):
    with raises(DataError, match=r"x.csv:2: expected a finite number as 'rating', got '1,0"):
        read(write(tmp_path, "x.csv", "user;item;rating\n1;2;1,000\n"))


@pytest.mark.parametrize("first", ["1,1,5,978300760", "5,7,5,978300760"])
def test_a_table_without_names_mentions_the_header(tmp_path, first):
    with raises(DataError, match="header"):
        read(write(tmp_path, "x.csv", f"{first}\n1,3,4,978300761\n"))


IDS = [uuid.UUID(int=5), uuid.UUID(int=3)]
MOMENTS = [datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, 0, 0, 2)]
CONTENT = {  # user, item, rating, time: in memory, and as a writer puts it into a file
    "text": (["ann", "bob"], ["7", "8"], ["4.5", "3"], ["2020-01-01", "2020-01-02"]),
    "integers": ([5, 3], [7, 8], [4, 3], [10, 20]),
    "numpy": ([np.int32(5), np.uint8(3)], [np.str_("7"), np.str_("8")], [np.float32(4.5), 3], None),
    "uuid": (IDS, [Decimal(7), Decimal(8)], [Decimal("4.5"), Decimal(3)], MOMENTS),
    "dates": ([5.0, 3.0], ["007", "7"], [1, 2], [date(2020, 1, 1), date(1969, 1, 1)]),
    "fractions": ([5, 3], [7, 8], None, [Decimal("1.5"), 2]),
}


@pytest.mark.parametrize("kind", CONTENT)
def test_memory_and_file_alike(tmp_path, kind):
    roles = ("user", "item", "rating", "time")
    content = {role: x for role, x in zip(roles, CONTENT[kind], strict=True) if x is not None}
    rows = list(zip(*content.values(), strict=True))
    lines = [",".join(content), *(",".join(map(str, row)) for row in rows)]
    expected = read(write(tmp_path, "x.csv", "\n".join(lines) + "\n")).fingerprint()
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


def test_other_containers():
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


@pytest.mark.parametrize(("dtype", "digits"), [(np.float16, 11), (np.float32, 24)])
def test_floats_that_merge_ids_are_refused(dtype, digits):
    ids = np.array([2**digits + 2, 1], dtype)
    with raises(ValueError, match=rf"`users`: expected a whole number up to 2\*\*{digits}"):
        Interactions.from_arrays(ids, [0, 1])
    assert len(Interactions.from_arrays(np.array([2**digits - 1, 1], dtype), [0, 1])) == 2


def random_log(n=4000, seed=0):
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.geometric(0.05, (n, 2)), axis=0)
    return Interactions.from_arrays(*pairs.T, ratings=rng.random(len(pairs)))


def test_k_core_is_the_largest_subset():
    data = random_log()
    for k, item_k in ((3, None), (8, 2), (1, 12)):
        core = k_core(data, k, item_k=item_k)
        assert core.degrees.min() >= k
        assert core.item_counts.min() >= (item_k or k)
        pairs = {*zip(data.user_ids[data.users].tolist(), data.item_ids[data.items].tolist())}
        while True:  # one by one, in any order
            users, items = (np.unique(x, return_counts=True) for x in zip(*pairs))
            few = {int(u) for u, n in zip(*users) if n < k}
            rare = {int(i) for i, n in zip(*items) if n < (item_k or k)}
            kept = {(u, i) for u, i in pairs if u not in few and i not in rare}
            if kept == pairs:
                break
            pairs = kept
        found = zip(core.user_ids[core.users].tolist(), core.item_ids[core.items].tolist())
        assert {*found} == pairs
        ratings = dict(
            zip(
                zip(data.user_ids[data.users].tolist(), data.item_ids[data.items].tolist()),
                data.ratings.tolist(),
            )
        )
        keys = zip(core.user_ids[core.users].tolist(), core.item_ids[core.items].tolist())
        assert [ratings[key] for key in keys] == core.ratings.tolist()
    with raises(ValueError, match="`k` = 500 and `item_k` = 500 leave no interaction"):
        k_core(data, 500)
    with raises(ValueError, match="`k`"):
        k_core(data, 0)


def test_a_share_of_each_user():
    data = random_log()
    split = split_by_ratio(data, test=0.3, seed=1, per_user=True)
    wanted = np.minimum(np.rint(0.3 * data.degrees), data.degrees - 1)
    assert split.test.degrees.tolist() == wanted.tolist()
    again = split_by_ratio(data, test=0.3, seed=1, per_user=True)
    assert split.test.fingerprint() == again.test.fingerprint()
    other = split_by_ratio(data, test=0.3, seed=2, per_user=True)
    assert split.test.fingerprint() != other.test.fingerprint()
    with raises(ValueError, match="selects no interaction"):
        split_by_ratio(Interactions.from_arrays([1, 2], [1, 2]), per_user=True)
    with raises(ValueError, match="`test`"):
        split_by_ratio(data, test=1.0, per_user=True)
