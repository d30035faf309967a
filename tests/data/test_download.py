"""Downloads: only complete files with the expected bytes are stored, and only in the cache."""

import hashlib
import io
import zipfile
from dataclasses import replace
from functools import partial

import pytest
from _helpers.refusals import raises
from _helpers.web import server

from crl_jax.data import DATASETS, DataError, Dataset, _download, columns, download, load

MEMBER = b"1\t2\t3\t4\n5\t6\t3\t4\n"
NAME = "ml-100k/u.data"


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def archive(url, content, **changes):
    digest = hashlib.sha256(content).hexdigest()
    made = Dataset(url, digest, len(content), NAME, len(MEMBER), "u.data", "https://example.org")
    return replace(made, **changes)


@pytest.fixture
def serve():
    """Serves given bytes and counts the requests."""
    with server() as start:
        yield partial(start, path="a.zip")


def everything_under(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_the_member_arrives_once_and_nothing_else_stays(serve, tmp_path):
    content = zipped({NAME: MEMBER, "ml-100k/README": b"x"})
    url, state = serve(content)
    path = _download.fetch(archive(url, content), tmp_path / "cache")
    assert path == tmp_path / "cache" / "u.data"
    assert path.read_bytes() == MEMBER
    assert everything_under(tmp_path) == ["cache/.u.data.origin", "cache/u.data"]
    assert _download.fetch(archive(url, content), tmp_path / "cache") == path
    assert state["requests"] == 1


def test_a_half_written_earlier_file_is_replaced(serve, tmp_path):
    (tmp_path / "u.data").write_bytes(MEMBER[:5])
    (tmp_path / ".part-old").mkdir()
    content = zipped({NAME: MEMBER})
    url, _ = serve(content)
    assert _download.fetch(archive(url, content), tmp_path).read_bytes() == MEMBER


CHANGES = ("content", "url", "member")


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_entry_is_downloaded_anew(serve, tmp_path, change):
    other = "other/u.data"
    content = zipped({NAME: MEMBER, other: MEMBER[::-1]})
    url, state = serve(content)
    entry = archive(url, content)
    _download.fetch(entry, tmp_path)
    if change == "content":
        content = zipped({NAME: MEMBER[::-1]})
        entry = archive(serve(content)[0], content)
    elif change == "url":
        entry = replace(entry, url=f"{url}?2024")
    else:
        entry = replace(entry, member=other)
    for _ in range(2):
        read = _download.fetch(entry, tmp_path).read_bytes()
        assert read == (MEMBER if change == "url" else MEMBER[::-1])
    assert state["requests"] == 2


def test_a_file_that_lies_there_without_a_note_of_its_origin_is_taken(serve, tmp_path):
    (tmp_path / "u.data").write_bytes(MEMBER)
    url, state = serve(zipped({}))
    assert _download.fetch(archive(url, b""), tmp_path) == tmp_path / "u.data"
    assert state["requests"] == 0


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (lambda right: right[:-1] + b"!", "expected .* bytes with SHA-256"),  # corrupt
        (lambda right: right[: len(right) // 2], "expected .* bytes with SHA-256"),
        (lambda right: right + b"\0" * (3 << 20), "got more than"),
        (lambda right: b"", "got 0 bytes"),
    ],
)
def test_other_bytes_are_refused_before_they_are_opened(
    serve, tmp_path, monkeypatch, served, message
):
    right = zipped({NAME: MEMBER})
    url, _ = serve(served(right))
    monkeypatch.setattr(
        _download, "_extract_member", lambda *_: pytest.fail("opened unchecked bytes")
    )
    with raises(DataError, match=message):
        _download.fetch(archive(url, right), tmp_path)
    assert everything_under(tmp_path) == []


def test_an_endless_answer_is_cut_off(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(_download, "_BLOCK", 1000)
    url, _ = serve(b"\0" * 5_000_000)
    opened, n_read = _download.urllib.request.urlopen, []

    def urlopen(*args, **kwargs):
        source = opened(*args, **kwargs)
        read = source.read
        source.read = lambda n: n_read.append(n) or read(n)
        return source

    monkeypatch.setattr(_download.urllib.request, "urlopen", urlopen)
    with raises(DataError, match="got more than 2000 bytes"):
        _download.fetch(archive(url, b"\0" * 2000), tmp_path)
    assert n_read == [1000] * 4  # one block more than announced, which is not written


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"ml-100k/u.item": b"x", "ml-100k/README": b"x"},
            "expected the member ml-100k/u.data, got ml-100k/u.item, ml-100k/README.",
        ),
        ({str(i): b"x" for i in range(11)}, r"expected the member .*, got 0, .*, 8, 9, …\."),
        ({}, r"expected the member .*, got none\."),
        ({NAME: MEMBER + b"more"}, "expected 16 bytes in ml-100k/u.data, got 20"),
        ({NAME: b"\0" * 10_000_000}, "got 10000000"),  # a bomb is never unpacked
    ],
)
def test_archives_without_the_right_member_are_refused(
    serve, tmp_path, monkeypatch, members, message
):
    unpacked = "unpacked the wrong member"
    monkeypatch.setattr("shutil.copyfileobj", lambda *_: pytest.fail(unpacked))
    content = zipped(members)
    url, _ = serve(content)
    with raises(DataError, match=message):
        _download.fetch(archive(url, content), tmp_path)
    assert everything_under(tmp_path) == []


@pytest.mark.parametrize(
    ("size", "message"),
    [(10_000_000, "expected a zip archive"), (5, "expected 16 bytes in .*, got 5")],
)
def test_a_member_that_lies_about_its_size_is_refused(serve, tmp_path, size, message):
    content = bytearray(zipped({NAME: b"\0" * size}))
    # Local header and central directory both contain the unpacked size.
    for place in (22, content.index(b"PK\1\2") + 24):
        assert content[place : place + 4] == size.to_bytes(4, "little")
        content[place : place + 4] = len(MEMBER).to_bytes(4, "little")
    content = bytes(content)
    url, _ = serve(content)
    with raises(DataError, match=message):
        _download.fetch(archive(url, content), tmp_path)
    assert everything_under(tmp_path) == []


def test_names_in_the_archive_choose_no_place(serve, tmp_path):
    content = zipped({"../evil": b"x", "/tmp/evil_crl_jax": b"x", NAME: MEMBER})
    url, _ = serve(content)
    _download.fetch(archive(url, content), tmp_path / "cache")
    assert everything_under(tmp_path) == ["cache/.u.data.origin", "cache/u.data"]
    content = zipped({"../../u.data": MEMBER})
    url, _ = serve(content)
    path = _download.fetch(archive(url, content, member="../../u.data"), tmp_path / "b" / "cache")
    assert path == tmp_path / "b" / "cache" / "u.data"


def test_what_is_no_zip_is_refused(serve, tmp_path):
    url, _ = serve(b"<html>moved</html>")
    with raises(DataError, match="expected a zip archive"):
        _download.fetch(archive(url, b"<html>moved</html>"), tmp_path)


def test_no_connection_is_said_with_a_way_out(serve, tmp_path):
    with raises(ConnectionError, match=r"absent.zip: not downloaded .* by hand"):
        _download.fetch(archive(f"file://{tmp_path}/absent.zip", b""), tmp_path / "cache")
    content = zipped({NAME: MEMBER})
    url, _ = serve(content[:40], declared=len(content))  # the connection drops
    with raises((ConnectionError, DataError)):
        _download.fetch(archive(url, content), tmp_path / "cache")


def test_load_reads_a_release_through_the_cache(serve, tmp_path, monkeypatch):
    content = zipped({NAME: MEMBER})
    url, state = serve(content)
    monkeypatch.setitem(DATASETS, "movielens:100k", archive(url, content))
    assert len(load("movielens:100k", cache=tmp_path / "a")) == 2
    folder = tmp_path / "a" / "movielens-100k"
    assert everything_under(folder) == [".u.data.origin", "u.data"]
    assert len(load(folder)) == 2  # also by its explicit path
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


def test_an_entry_is_all_that_a_dataset_needs(serve, tmp_path, monkeypatch):
    table = b"who what\n1 2\n"  # does not look like a table
    content = zipped({"folder/table": table})
    entry = archive(serve(content)[0], content, member="folder/table", member_size=len(table))
    monkeypatch.setitem(DATASETS, "mine:x", replace(entry, format="csv"))
    named = {"user_col": "who", "item_col": "what", "cache": tmp_path}
    assert load("mine:x", **named).item_ids.tolist() == [2]
    assert str(columns("mine:x", **named)[0]) == "user = who, item = what"
    with raises(DataError, match="expected non-negative integers"):
        load("mine:x", format="lightgcn", cache=tmp_path)  # an explicit argument takes precedence
    with raises(ValueError, match=r"`source` must be one of .*, mine:x, got 'mine:y'"):
        load("mine:y")


@pytest.mark.data
def test_the_pinned_member_size_is_that_of_the_file_at_hand(real_data):
    path = real_data / "ml-100k" / "u.data"
    assert path.stat().st_size == DATASETS["movielens:100k"].member_size
