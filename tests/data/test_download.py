"""Downloads: only complete files with the expected bytes are stored, and only in the cache."""

import hashlib
from dataclasses import replace

import pytest
from _helpers.files import fill, zipped
from _helpers.refusals import raises

from crl_jax.data import DATASETS, DataError, Dataset, _download, columns, download, load

MEMBER = b"1\t2\t3\t4\n5\t6\t3\t4\n"
NAME = "ml-100k/u.data"
VALID = zipped({NAME: MEMBER})


def make_entry(url, content, **changes):
    digest = hashlib.sha256(content).hexdigest()
    dataset = Dataset(url, digest, len(content), NAME, len(MEMBER), "u.data", "https://example.org")
    return replace(dataset, **changes)


@pytest.fixture
def served(serve):
    """Returns a function that serves an archive; it returns an entry and the server state."""

    def make(content, announced=None, **changes):
        url, state = serve(content, "a.zip")
        return make_entry(url, content if announced is None else announced, **changes), state

    return make


def everything_under(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_fetch_extracts_only_expected_member_once(served, tmp_path, cache):
    outside = {"ml-100k/README": b"x", "../evil": b"x", "/tmp/evil_crl_jax": b"x"}
    entry, state = served(zipped({NAME: MEMBER, **outside}))
    path = _download.fetch(entry, cache)
    assert path == cache / "u.data"
    assert path.read_bytes() == MEMBER
    assert everything_under(tmp_path) == ["cache/.u.data.origin", "cache/u.data"]
    assert _download.fetch(entry, cache) == path
    assert state["requests"] == 1
    entry, _ = served(zipped({"../../u.data": MEMBER}), member="../../u.data")
    assert _download.fetch(entry, tmp_path / "b" / "c") == tmp_path / "b" / "c" / "u.data"


@pytest.mark.parametrize(("lying", "requests"), [(MEMBER[:5], 1), (MEMBER, 0)])
def test_existing_file_is_reused_if_complete(served, tmp_path, lying, requests):
    fill(tmp_path, {"u.data": lying, ".part-old/x": ""})
    entry, state = served(VALID)
    assert _download.fetch(entry, tmp_path).read_bytes() == MEMBER
    assert state["requests"] == requests


@pytest.mark.parametrize("change", ["content", "url", "member"])
def test_changed_entry_is_downloaded_again(served, tmp_path, change):
    entry, state = served(zipped({NAME: MEMBER, "other/u.data": MEMBER[::-1]}))
    _download.fetch(entry, tmp_path)
    if change == "content":
        entry, _ = served(zipped({NAME: MEMBER[::-1]}))
    elif change == "url":
        entry = replace(entry, url=f"{entry.url}?2024")
    else:
        entry = replace(entry, member="other/u.data")
    for _ in range(2):
        read = _download.fetch(entry, tmp_path).read_bytes()
        assert read == (MEMBER if change == "url" else MEMBER[::-1])
    assert state["requests"] == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (VALID[:-1] + b"!", "expected .* bytes with SHA-256"),
        (VALID[: len(VALID) // 2], "expected .* bytes with SHA-256"),
        (VALID + b"\0" * (3 << 20), "got more than"),
        (b"", "got 0 bytes"),
    ],
)
def test_rejects_wrong_bytes_before_opening_archive(
    served, tmp_path, monkeypatch, content, message
):
    entry, _ = served(content, VALID)
    unchecked = "opened unchecked bytes"
    monkeypatch.setattr(_download, "_extract_member", lambda *_: pytest.fail(unchecked))
    with raises(DataError, match=message):
        _download.fetch(entry, tmp_path)
    assert everything_under(tmp_path) == []


def test_stops_reading_beyond_announced_size(served, tmp_path, monkeypatch):
    monkeypatch.setattr(_download, "_BLOCK", 1000)
    entry, _ = served(b"\0" * 5_000_000, b"\0" * 2000)
    original_urlopen, n_read = _download.urllib.request.urlopen, []

    def urlopen(*args, **kwargs):
        source = original_urlopen(*args, **kwargs)
        read = source.read
        source.read = lambda n: n_read.append(n) or read(n)
        return source

    monkeypatch.setattr(_download.urllib.request, "urlopen", urlopen)
    with raises(DataError, match="got more than 2000 bytes"):
        _download.fetch(entry, tmp_path)
    assert n_read == [1000] * 4  # one block more than announced, which is not written


def with_understated_size(size):
    """An archive whose member states the expected size in both headers, but has another one."""
    content = bytearray(zipped({NAME: b"\0" * size}))
    for place in (22, content.index(b"PK\1\2") + 24):
        assert content[place : place + 4] == size.to_bytes(4, "little")
        content[place : place + 4] = len(MEMBER).to_bytes(4, "little")
    return bytes(content)


ABSENT = zipped({"ml-100k/u.item": b"x", "ml-100k/README": b"x"})
INVALID = [  # archive, error, and whether a member is unpacked
    (ABSENT, "expected the member ml-100k/u.data, got ml-100k/u.item, ml-100k/README.", False),
    (zipped(dict.fromkeys("0123456789a", b"x")), r"the member .*, got 0, .*, 8, 9, …\.", False),
    (zipped({}), r"expected the member .*, got none\.", False),
    (zipped({NAME: MEMBER + b"more"}), "expected 16 bytes in ml-100k/u.data, got 20", False),
    (zipped({NAME: b"\0" * 10_000_000}), "got 10000000", False),  # a bomb
    (b"<html>moved</html>", "expected a zip archive", False),
    (with_understated_size(10_000_000), "expected a zip archive", True),
    (with_understated_size(5), "expected 16 bytes in .*, got 5", True),
]


@pytest.mark.parametrize(("content", "message", "unpacked"), INVALID, ids=range(len(INVALID)))
def test_rejects_archives_without_expected_member(
    served, tmp_path, monkeypatch, content, message, unpacked
):
    if not unpacked:
        monkeypatch.setattr("shutil.copyfileobj", lambda *_: pytest.fail("unpacked a member"))
    entry, _ = served(content)
    with raises(DataError, match=message):
        _download.fetch(entry, tmp_path)
    assert everything_under(tmp_path) == []


def test_connection_error_suggests_manual_download(serve, tmp_path, cache):
    with raises(ConnectionError, match=r"absent.zip: not downloaded .* by hand"):
        _download.fetch(make_entry(f"file://{tmp_path}/absent.zip", b""), cache)
    url, _ = serve(VALID[:40], "a.zip", declared=len(VALID))  # the connection drops
    with raises((ConnectionError, DataError)):
        _download.fetch(make_entry(url, VALID), cache)


def test_load_reads_dataset_through_cache(served, tmp_path, monkeypatch):
    entry, state = served(VALID)
    monkeypatch.setitem(DATASETS, "movielens:100k", entry)
    folder = tmp_path / "a" / "movielens-100k"
    for source in ("movielens:100k", folder):  # by its name, and then by its path
        assert len(load(source, cache=tmp_path / "a" if source is not folder else None)) == 2
    assert everything_under(folder) == [".u.data.origin", "u.data"]
    monkeypatch.setenv("CRL_JAX_CACHE", str(tmp_path / "b"))
    assert download("movielens:100k") == tmp_path / "b" / "movielens-100k" / "u.data"
    monkeypatch.delenv("CRL_JAX_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    expected = tmp_path / "home" / ".cache" / "crl_jax" / "movielens-100k" / "u.data"
    assert download("movielens:100k") == expected
    assert state["requests"] == 3
    with raises(ValueError, match=r"`source` must be one of movielens:100k, .*'movielens:2m'"):
        load("movielens:2m")
    with raises(ValueError, match=r"`name` must be one of movielens:100k, .*, got '2m'"):
        download("2m")


def test_registered_entry_suffices_to_load_dataset(served, tmp_path, monkeypatch):
    table = b"who what\n1 2\n"  # does not look like a table
    changes = {"member": "folder/table", "member_size": len(table), "format": "csv"}
    entry, _ = served(zipped({"folder/table": table}), **changes)
    monkeypatch.setitem(DATASETS, "mine:x", entry)
    named = {"user_col": "who", "item_col": "what", "cache": tmp_path}
    assert load("mine:x", **named).item_ids.tolist() == [2]
    assert str(columns("mine:x", **named)[0]) == "user = who, item = what"
    with raises(DataError, match="expected non-negative integers"):
        load("mine:x", format="lightgcn", cache=tmp_path)  # an explicit argument takes precedence
    with raises(ValueError, match=r"`source` must be one of .*, mine:x, got 'mine:y'"):
        load("mine:y")


@pytest.mark.data
def test_pinned_member_size_matches_file(real_data):
    path = real_data / "ml-100k" / "u.data"
    assert path.stat().st_size == DATASETS["movielens:100k"].member_size
