"""Loading by one `source` argument: files, folders, TensorFlow Datasets; and the real data sets."""

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from _helpers.files import fill, warned, write
from _helpers.refusals import raises

from crl_jax.data import (
    DataError,
    DataWarning,
    Interactions,
    Split,
    columns,
    load,
    read,
    simulate,
)

TABLE = "user,item\n1,10\n2,20\n"
OTHER = "user,item\n1,20\n2,10\n"


def atomic(table):
    """A table of RecBole."""
    return table.replace(",", "\t").replace("user", "user:token").replace("item", "item:token")


ATOMIC = atomic(TABLE)


@pytest.mark.parametrize(
    "files",
    [
        {"u.data": "1\t2\t3\t4\n", "u.user": "x", "u.item": "x"},
        {"ratings.dat": "1::2::3::4\n", "users.dat": "x"},
        {"ratings.csv": TABLE, "movies.csv": "x"},
        {"ml.inter": ATOMIC, "ml.user": "x"},
        {"interactions.csv": TABLE, "items.csv": "x", "notes.txt": "x"},
        {"events.tsv": TABLE.replace(",", "\t"), "README.txt": "x", "LICENSE": "x"},
        {"pairs.txt": "1 10\n2 20\n", "notes.md": "x"},
    ],
)
def test_loads_folder_with_one_known_file(tmp_path, files):
    data = load(fill(tmp_path, files))
    assert isinstance(data, Interactions)
    (name, _), *_ = files.items()
    assert load(str(tmp_path / name)).fingerprint() == data.fingerprint()


@pytest.mark.parametrize(
    ("files", "has_valid"),
    [
        ({"train.csv": TABLE, "test.csv": OTHER, "u.data": "", "ml.inter": ""}, False),
        ({"train.txt": "1 10\n2 20\n", "test.txt": "1 20\n2 10\n"}, False),
        (
            {
                "ydata-ymusic-rating-study-v1_0-train.txt": "1\t10\t5\n2\t20\t1\n",
                "ydata-ymusic-rating-study-v1_0-test.txt": "1\t20\t3\n2\t10\t4\n",
                "ydata-ymusic-rating-study-v1_0-survey-answers.txt": "1\t1\t2\n",
                "README.txt": "x",
            },
            False,
        ),
        ({"ml.train.inter": ATOMIC, "ml.test.inter": atomic(OTHER), "ml.inter": ""}, False),
        (
            {
                "train.csv": TABLE,
                "validation.csv": "user,item\n1,20\n",
                "test.tsv": "user\titem\n2\t10\n",
            },
            True,
        ),
    ],
)
def test_loads_folder_with_predefined_split(tmp_path, files, has_valid):
    split = load(fill(tmp_path, files))
    assert isinstance(split, Split)
    assert (split.valid is not None) == has_valid
    assert split.train.item_ids.tolist() == [10, 20]
    assert split.train.items.tolist() == [0, 1]


def test_merge_joins_parts_of_folder(tmp_path):
    head = "user,item,rating,time\n"
    parts = {"train": "1,10,5,1\n2,20,4,1\n", "valid": "1,20,5,2\n", "test": "2,10,4,1\n1,10,2,9\n"}
    fill(tmp_path, {f"{name}.csv": head + rows for name, rows in parts.items()})
    rows = "1,10,2,9\n2,20,4,1\n1,20,5,2\n2,10,4,1\n"
    whole = fill(tmp_path / "whole", {"ratings.csv": head + rows})
    # Fields that only some parts have do not matter once the parts are merged.
    merged, messages = warned(load, tmp_path, merge=True)
    assert [message[:31] for message in messages] == ["dropped 1 repeated interactions"]
    assert merged.fingerprint() == load(whole).fingerprint()
    assert load(whole, merge=True).fingerprint() == merged.fingerprint()
    with pytest.warns(DataWarning, match="dropped 1 repeated"):
        positives = load(tmp_path, merge=True, min_rating=4)
    assert positives.fingerprint() == load(whole, min_rating=4).fingerprint()
    with (
        pytest.warns(DataWarning, match="dropped 1 repeated"),
        raises(DataError, match=f"{tmp_path}: "),
    ):
        load(tmp_path, merge=True, min_rating=6)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "expected train.* and test.*got an empty folder"),
        ({"inner/u.data": TABLE}, r"got the folders \['inner'\]"),
        ({"notes.md": ""}, "got .*notes.md"),
        ({"u.data": "", "ml.inter": ""}, r"got \['ml.inter', 'u.data'\]"),
        ({"a.csv": TABLE, "b.csv": TABLE, "c.txt": ""}, r"got \['a.csv', 'b.csv'\]"),
        ({"train.csv": TABLE, "u.data": ""}, "expected one training and one test file"),
        ({"train.csv": TABLE, "test.csv": OTHER, "train.txt": ""}, "'train.csv', 'train.txt'"),
        ({"a.train.inter": ATOMIC, "b.test.inter": atomic(OTHER)}, "expected one training"),
    ],
)
def test_rejects_ambiguous_folders(tmp_path, files, message):
    with raises(DataError, match=message):
        load(fill(tmp_path, files))


def test_options_are_passed_to_reader(tmp_path, tfds):
    table = "u,i,r\n1,10,5\n2,20,5\n2,30,1\n"
    names = {"user_col": "u", "item_col": "i", "rating_col": "r"}
    assert len(load(fill(tmp_path, {"ratings.csv": table}), **names, min_rating=4)) == 2
    fill(tmp_path, {"train.csv": table, "test.csv": "u,i,r\n1,20,4\n1,30,1\n"})
    split = load(tmp_path, **names, min_rating=4)
    assert (len(split.train), len(split.test)) == (2, 1)
    for source in (tmp_path, tmp_path / "train.csv", "tfds:x", "simulated"):
        with raises(TypeError, match="min_ratings"):
            load(source, min_ratings=4)  # pyright: ignore[reportCallIssue]


def test_columns_describes_every_source(tmp_path, tfds):
    table = "title,movieId,user_id,rating,unixReviewTime,event\nx,1,2,3,4,view\n"
    path = fill(tmp_path, {"m.csv": table}) / "m.csv"
    (roles,) = columns(path)
    used = "user = user_id, item = movieId, rating = rating, time = unixReviewTime"
    assert str(roles) == f"{used}; ignored: title, event"
    assert roles.origin == str(path)
    (roles,) = columns(path, user_col="title", rating_col="unixReviewTime", time_col="rating")
    assert (roles.user, roles.rating, roles.time) == ("title", "unixReviewTime", "rating")
    (roles,) = columns(path, user_col=2, item_col="1", header=False)
    assert str(roles) == "user = 2, item = 1; ignored: 0, 3, 4, 5"
    with raises(DataError, match="expected a column 'who'"):
        columns(path, user_col="who")

    parts = fill(
        tmp_path / "parts", {"test.txt": "1 2\n", "train.csv": TABLE, "valid.tsv": "uid\tasin\n"}
    )
    assert [(Path(roles.origin).name, str(roles)) for roles in columns(parts)] == [
        ("train.csv", "user = user, item = item"),
        ("valid.tsv", "user = uid, item = asin"),
        ("test.txt", "user = user, item = item"),
    ]
    (parts / "whole").mkdir()
    pl.DataFrame({"x": [1], "asin": [1], "user": [1]}).write_parquet(parts / "whole" / "a.parquet")
    assert [str(roles) for roles in columns(parts / "whole")] == [
        "user = user, item = asin; ignored: x"
    ]
    (roles,) = columns("tfds:x")
    assert roles.ignored == ("movie_genres", "user_gender")
    assert (roles.origin, roles.item, roles.rating) == ("tfds:x", "movie_id", "user_rating")
    assert columns("simulated") == []
    for source in ("simulated", "tfds:x"):
        with raises(ValueError, match="`header` applies to files"):
            columns(source, header=True)


def test_missing_source_error_lists_files_and_datasets(tmp_path, monkeypatch):
    monkeypatch.chdir(fill(tmp_path, {"notes.csv": TABLE}))
    for function in (load, columns):
        with raises(
            FileNotFoundError,
            match=r"^toys: no such file; .* has notes\.csv\. A dataset name must be one of "
            r"movielens:100k, .*, simulated, got 'toys'\.$",
        ):
            function("toys")
    with raises(FileNotFoundError, match="no such file"):
        load(tmp_path / "absent")


def test_loads_simulated_data_by_name(tmp_path, monkeypatch):
    assert load("simulated").fingerprint() == simulate().interactions.fingerprint()
    with raises(ValueError, match="`user_col` applies to files, not to simulated data"):
        load("simulated", user_col="who")
    with raises(DataError, match="simulated: expected ratings, as `min_rating` is given"):
        load("simulated", min_rating=4)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "simulated", TABLE)
    assert len(load("./simulated")) == 2


@pytest.fixture
def tfds(fake_tfds):
    """The examples that a stub of tensorflow_datasets yields, with the fields of MovieLens."""
    rows = [(b"138", b"5", 4, 879024327), (b"92", b"709", 2, 875654590)]
    examples = [
        {
            "movie_genres": np.array([4, 14]),
            "movie_id": movie,
            "timestamp": np.int64(time),
            "user_id": user,
            "user_rating": np.float32(rating),
            "user_gender": np.bool_(True),
        }
        for user, movie, rating, time in rows
    ]

    def fake_load(name, *, split):
        assert split == "train"
        assert name in ("movielens/100k-ratings", "x")
        return examples

    fake_tfds["load"] = fake_load
    return examples


def test_loads_tfds(tfds):
    data = load("tfds:movielens/100k-ratings")
    assert data.user_ids.tolist() == [92, 138]
    assert data.item_ids.tolist() == [5, 709]
    assert data.items.tolist() == [1, 0]
    assert data.ratings.tolist() == [2, 4]
    assert data.timestamps.tolist() == [875654590, 879024327]
    with pytest.warns(DataWarning, match="tfds:movielens/100k-ratings: 1 users"):
        assert len(load("tfds:movielens/100k-ratings", min_rating=3)) == 1
    assert load("tfds:x", time_col="user_rating", rating_col="timestamp").timestamps[0] == 2
    for example in tfds:
        del example["timestamp"]
    assert load("tfds:x").timestamps is None


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"format": "csv"}, "`format` applies to files"),
        ({}, {"user_col": "who"}, r"tfds:x: expected a column 'who'.*'movie_id'"),
        (
            {"user_rating": np.float32("nan")},
            {},
            "row 2: expected a value as 'user_rating', got nan",
        ),
        ({"user_id": b""}, {}, "tfds:x: row 2: expected a non-empty id"),
        (None, {}, "tfds:x: expected interactions, got none"),
    ],
)
def test_rejects_invalid_tfds_data(tfds, change, options, message):
    if change is None:
        tfds.clear()
    else:
        tfds[1] |= change
    with raises(ValueError, match=message):
        load("tfds:x", **options)


def test_tfds_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with raises(ImportError, match=r"pip install 'crl_jax\[tfds\]'"):
        load("tfds:movielens/100k-ratings")


@pytest.mark.data
def test_movielens_100k_formats_agree(real_data):
    folder = real_data / "ml-100k"
    data = load(folder / "u.data")
    assert (data.n_users, data.n_items, len(data)) == (943, 1682, 100_000)
    assert data.degrees.min() == 20  # as its README says
    assert data.ratings[data.user_index(196) == data.users].size == 39
    row = (data.users == data.user_index("196")) & (data.items == data.item_index("242"))
    assert (data.ratings[row], data.timestamps[row]) == (3, 881250949)  # the first line
    assert load(folder / "ml-100k.inter").fingerprint() == data.fingerprint()

    with pytest.warns(DataWarning, match="35 items have no interaction in training"):
        split = load(folder)
    assert (split.train.n_users, split.train.n_items) == (943, 1682)
    assert (len(split.train), len(split.test)) == (80_000, 20_000)
    # The split numbers users and items by their first appearance in u.data.
    lines = np.loadtxt(folder / "u.data", dtype=np.int64)
    whole = {(u, i): r for u, i, r, _ in lines.tolist()}
    first_user, first_item = (list(dict.fromkeys(lines[:, c].tolist())) for c in (0, 1))
    both = {
        (first_user[u], first_item[i]): r
        for part in (split.train, split.test)
        for u, i, r in zip(part.users, part.items, part.ratings.astype(int), strict=True)
    }
    assert both == whole


@pytest.mark.data
def test_gowalla_has_published_counts(real_data):
    split = load(real_data / "gowalla")
    assert (split.train.n_users, split.train.n_items) == (29_858, 40_981)
    assert (len(split.train), len(split.test)) == (810_128, 217_242)
    assert split.train.user_ids.tolist() == list(range(29_858))


def write_shards(folder, lines, count, name="ratings"):
    for place in range(count):
        rows = "user,item,rating\n" + "".join(lines[place::count])
        write(folder / f"{name}-{place:05}-of-{count:05}.csv", rows)


LINES = [f"{user},{item},{1 + item % 5}\n" for user in range(7) for item in range(user, 11, 2)]


def test_reads_shards_as_log_or_split(tmp_path):
    folder = fill(tmp_path / "log", {"README.txt": "x"})
    write_shards(folder, LINES, 3)
    write_shards(tmp_path, LINES, 1, "whole")
    data = load(folder)
    assert data.fingerprint() == read(tmp_path / "whole-00000-of-00001.csv").fingerprint()
    assert read(sorted(folder.glob("ratings-*"))).fingerprint() == data.fingerprint()
    (roles,) = columns(folder)
    assert roles.rating == "rating"
    parts = {"train": LINES[:1] + LINES[4:], "test": LINES[1:4]}
    for n, (name, lines) in enumerate(parts.items()):
        write_shards(fill(tmp_path / "split", {}), lines, 2 - n, name)
    split = load(tmp_path / "split")
    assert isinstance(split, Split)
    assert {name: len(part) for name, part in split.parts()} == {
        name: len(lines) for name, lines in parts.items()
    }
    assert len(load(tmp_path / "split", merge=True)) == len(LINES)


def test_recognises_spark_file_names(tmp_path):
    frame = pl.DataFrame({"user": [1, 2], "item": [3, 3]})
    for place in range(2):
        path = tmp_path / f"part-0000{place}-8a1c-c000.snappy.parquet"
        frame.with_columns(pl.col("user") + place).write_parquet(path)
    fill(
        tmp_path, dict.fromkeys(("._log.csv", ".DS_Store.csv", "_SUCCESS"), b"\x00\x05\x16\x07\x00")
    )
    with pytest.warns(DataWarning, match=r"part-00000-.* and 1 more: dropped 1 repeated"):
        assert len(load(tmp_path)) == 3


def test_shards_share_ids_and_may_be_empty(tmp_path):
    names = [f"part-0000{place}-a.csv" for place in range(4)]
    rows = ["user,item\n1,2\n2,3\n", "user,item\n1.0,5.0\n3.0,2.0\n", "user,item\nx,2\n", ""]
    data = load(fill(tmp_path, dict(zip(names, rows))))
    assert data.user_ids.tolist() == ["1", "2", "3", "x"]
    assert data.item_ids.tolist() == [2, 3, 5]
    fill(tmp_path, dict.fromkeys(names, ""))
    with raises(DataError, match="expected interactions, got an empty file"):
        load(tmp_path)


def test_reports_invalid_shards(tmp_path):
    write_shards(tmp_path, LINES, 3)
    first, _, last = sorted(tmp_path.iterdir())
    good, bare = last.read_text(), "user,item\n1,2\n"
    for path, content, message in (
        (last, good + "1,1,none\n", rf"00002-of-00003.csv:{good.count(chr(10)) + 1}: .*'none'"),
        (last, bare, r"00002-of-00003\.csv: expected ratings in all files"),
        (first, bare, r"00001-of-00003\.csv: expected ratings in all files"),
    ):
        write(last, good)
        write(path, content)
        with raises(DataError, match=message):
            load(tmp_path)
    last.unlink()
    with raises(DataError, match=r"expected 3 shards of ratings.csv, got 2"):
        load(tmp_path)
    with raises(ValueError, match="`path` must be a file or a list of files"):
        read([])
    lists = fill(tmp_path / "lists", {"a.txt": "1 2\n", "b.txt": "1 3\n"})
    with raises(ValueError, match="`path` must be one file in the format lightgcn"):
        read(sorted(lists.iterdir()))
