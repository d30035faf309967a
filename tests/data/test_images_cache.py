"""Downloads of image sets, and the cache of decoded images: correct and complete."""

import hashlib
import io
import json
import os
import shutil
import threading
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from _helpers.refusals import raises
from _helpers.web import server
from PIL import Image

from crl_jax.data import (
    IMAGE_SETS,
    DataError,
    DataWarning,
    ImageSet,
    _download,
    download,
    load_images,
)
from crl_jax.data._images import _cache, _load


@pytest.fixture(autouse=True)
def _keep_all(monkeypatch):
    monkeypatch.setattr(_load, "_MIN_CACHED_IMAGES", 1)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CRL_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def decoded(monkeypatch):
    """Counts how often images are decoded."""
    calls = []
    inner = _load.load_files
    monkeypatch.setattr(_load, "load_files", lambda *given: (calls.append(1), inner(*given))[1])
    return calls


def png(number):
    buffer = io.BytesIO()
    Image.fromarray(np.full((2, 2), number, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def archive(first=0, model_state=()):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for number, path in enumerate(["train/a/0.png", "train/b/1.png", "test/a/2.png"]):
            file.writestr(path, png(first + number))
        for name in model_state:
            file.writestr(name, b"x")
    return buffer.getvalue()


def firsts(split):
    return [part.images[:, 0, 0, 0].tolist() for _, part in split.parts()]


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_second_time_nothing_is_decoded(tmp_path, cache, decoded):
    path = tmp_path / "x.zip"
    path.write_bytes(archive(model_state=["train/a/.hidden"]))
    for _ in range(2):
        with pytest.warns(DataWarning, match="x.zip: skipped 1 hidden files"):
            split = load_images(path)
        assert firsts(split) == [[0, 1], [2]]
        assert split.train.labels.tolist() == [0, 1]
        assert split.train.classes == ("a", "b")
        assert split.train.names.tolist() == ["train/a/0.png", "train/b/1.png"]
        assert not split.train.images.flags.writeable
    assert len(decoded) == 1
    assert isinstance(split.train.images.base, np.memmap)
    with pytest.warns(DataWarning):
        assert firsts(load_images(path, keep=False)) == [[0, 1], [2]]
    assert len(decoded) == 2
    with pytest.warns(DataWarning):
        load_images(path, keep=False, cache=tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.warns(DataWarning):
        load_images(path, cache=tmp_path / "other")
    assert len(decoded) == 4
    assert files_in(tmp_path / "other")


def test_what_changed_is_decoded_anew_and_the_old_goes(tmp_path, cache, decoded, monkeypatch):
    path = tmp_path / "x.zip"
    path.write_bytes(archive())
    before = load_images(path)
    n_files = len(files_in(cache))
    time = path.stat().st_mtime_ns
    path.write_bytes(archive(first=10))
    os.utime(path, ns=(time, time + 1))  # same size, a nanosecond later
    assert firsts(load_images(path)) == [[10, 11], [12]]
    assert firsts(before) == [[0, 1], [2]]
    assert len(files_in(cache)) == n_files
    path.write_bytes(archive(first=20) + b"\0")  # same modification time
    os.utime(path, ns=(time, time + 1))
    assert firsts(load_images(path)) == [[20, 21], [22]]
    monkeypatch.setattr(_load, "_pillow_version", lambda: "none")
    load_images(path)
    assert len(decoded) == 4
    assert load_images(path, size=1).train.images.shape == (2, 1, 1, 1)
    assert firsts(load_images(path)) == [[20, 21], [22]]
    assert len(decoded) == 5


def test_a_folder_is_known_by_all_its_files(tmp_path, cache, decoded):
    with zipfile.ZipFile(io.BytesIO(archive())) as content:
        content.extractall(tmp_path / "set")
    for _ in range(2):
        load_images(tmp_path / "set")
    assert len(decoded) == 1
    (tmp_path / "set" / "train" / "a" / "3.png").write_bytes(png(3))
    assert firsts(load_images(tmp_path / "set")) == [[0, 3, 1], [2]]
    path = tmp_path / "set" / "test" / "a" / "2.png"
    os.utime(path, ns=(0, 7))
    load_images(tmp_path / "set")
    assert len(decoded) == 3
    load_images(tmp_path / "set" / ".." / "set")
    assert len(decoded) == 3
    path.rename(path.with_name("4.png"))
    (tmp_path / "set" / "train" / "a").rename(tmp_path / "set" / "train" / "c")
    with pytest.warns(DataWarning, match="1 classes have no image in training"):
        assert load_images(tmp_path / "set").train.labels.tolist() == [1, 2, 2]


def test_each_share_of_a_test_part_is_kept(tmp_path, cache, decoded):
    for number in range(10):
        (tmp_path / "set" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / "a" / f"{number}.png").write_bytes(png(number))
    for _ in range(2):
        assert len(load_images(tmp_path / "set").test) == 2
        assert len(load_images(tmp_path / "set", test=0.5).test) == 5
    assert len(decoded) == 2


@pytest.mark.parametrize(
    "damage",
    ["cut", "gone", "empty", "note", "nested", "classes", "pickle", "shape", "byte", "parts"],
)
def test_damage_in_the_cache_is_mended(tmp_path, cache, decoded, damage):
    path = tmp_path / "x.zip"
    path.write_bytes(archive())
    load_images(path)
    (images,) = cache.rglob("train-images.npy")
    note = images.with_name("made_of.json")
    if damage == "cut":
        images.write_bytes(images.read_bytes()[:-1])
    elif damage == "gone":
        images.unlink()
    elif damage == "empty":
        images.write_bytes(b"")
    elif damage == "note":
        note.write_text(note.read_text()[:-3])
    elif damage == "byte":
        content = bytearray(images.read_bytes())
        content[-1] ^= 1
        images.write_bytes(content)
    elif damage == "parts":
        note.write_text(json.dumps({**json.loads(note.read_text()), "parts": []}))
    elif damage == "classes":
        note.write_text(note.read_text().replace('"a"', '"c"'))
    elif damage == "nested":
        note.write_text("[" * 100_000)
    elif damage == "pickle":
        np.save(images, np.array([{}], object), allow_pickle=True)
    else:
        np.save(images, np.zeros((3, 2, 2, 1), np.uint8))
    for _ in range(2):
        assert firsts(load_images(path)) == [[0, 1], [2]]
    assert len(decoded) == 2


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, decoded):
    path = tmp_path / "x.zip"
    path.write_bytes(archive())
    (tmp_path / "cache").write_text("a file, and no folder")
    with pytest.warns(DataWarning, match=r"x.zip: decoded images were not kept in the cache: "):
        assert firsts(load_images(path, cache=tmp_path / "cache")) == [[0, 1], [2]]


def test_no_half_of_a_write_is_ever_read(tmp_path, cache, monkeypatch):
    path = tmp_path / "x.zip"
    path.write_bytes(archive())

    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(_cache.json, "dumps", full)
    monkeypatch.setattr(_cache, "_entry_folder", lambda folder, _: folder / "it")
    with pytest.warns(DataWarning, match="not kept in the cache: no space left"):
        load_images(path)
    assert files_in(cache) == []


def test_several_at_once_leave_one_whole(tmp_path, cache):
    path = tmp_path / "x.zip"
    path.write_bytes(archive())
    found, threads = [], []
    for _ in range(6):
        threads.append(threading.Thread(target=lambda: found.append(firsts(load_images(path)))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert found == [[[0, 1], [2]]] * 6
    assert len(files_in(cache)) == 7
    (note,) = cache.rglob("made_of.json")
    assert json.loads(note.read_text())["classes"] == ["a", "b"]


def test_the_slower_of_two_leaves_what_the_quicker_one_made(tmp_path, cache, monkeypatch):
    path = tmp_path / "x.zip"
    path.write_bytes(archive())
    load_images(path)
    before = [file.stat().st_ino for file in files_in(cache)]
    remove = shutil.rmtree

    def remove_scratch(folder, *given, **named):  # that directory is new
        if Path(folder).name.startswith((".part-", ".unpacked-")):
            remove(folder, *given, **named)

    monkeypatch.setattr(_cache.shutil, "rmtree", remove_scratch)
    monkeypatch.setattr(_cache, "load_cached", lambda *_: None)
    monkeypatch.setattr(_load, "load_cached", lambda *_: None)
    assert firsts(load_images(path)) == [[0, 1], [2]]
    assert [file.stat().st_ino for file in files_in(cache)] == before


def test_few_images_are_not_kept(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(_load, "_MIN_CACHED_IMAGES", 4)
    path = tmp_path / "x.zip"
    path.write_bytes(archive())
    load_images(path)
    assert files_in(cache) == []


@pytest.fixture
def serve():
    """Serves given bytes and counts the requests."""
    with server() as start:
        yield partial(start, path="files/x.zip?version=1")


def entry(url, content):
    return ImageSet(url, hashlib.sha256(content).hexdigest(), len(content), "https://example.org")


def test_a_set_is_downloaded_once(serve, cache, decoded, monkeypatch):
    content = archive()
    url, state = serve(content)
    monkeypatch.setitem(IMAGE_SETS, "cifar10", entry(url, content))
    for _ in range(2):
        assert firsts(load_images("cifar10")) == [[0, 1], [2]]
    assert download("cifar10") == cache / "cifar10" / "x.zip"
    assert (state["requests"], len(decoded)) == (1, 1)
    (cache / "cifar10" / "x.zip").unlink()
    assert firsts(load_images("cifar10")) == [[0, 1], [2]]  # decoded from the current files
    assert state["requests"] == 1
    assert firsts(load_images("cifar10", keep=False)) == [[0, 1], [2]]
    assert state["requests"] == 2

    content = archive(first=7)
    url, _ = serve(content)
    monkeypatch.setitem(IMAGE_SETS, "cifar10", entry(url, content))
    assert firsts(load_images("cifar10")) == [[7, 8], [9]]
    assert state["requests"] == 3


def test_other_bytes_are_never_opened(serve, cache, tmp_path, monkeypatch):
    content = archive()
    url, _ = serve(archive(first=1))
    monkeypatch.setitem(IMAGE_SETS, "cifar10", entry(url, content))
    monkeypatch.setattr(_load, "open_tree", lambda *_: pytest.fail("opened"))
    with raises(DataError, match=r"expected .* bytes with SHA-256"):
        load_images("cifar10")
    assert files_in(tmp_path) == []


def test_an_archive_put_there_by_hand_is_taken_if_it_is_the_right_one(serve, cache, monkeypatch):
    content = archive()
    url, state = serve(content)
    monkeypatch.setitem(IMAGE_SETS, "mine:x", entry(url, content))
    path = cache / "mine-x" / "x.zip"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert download("mine:x") == path
    assert state["requests"] == 0
    monkeypatch.setattr(_download, "_retrieve", lambda *_: pytest.fail("computed again"))
    assert download("mine:x") == path
    monkeypatch.undo()
    monkeypatch.setenv("CRL_JAX_CACHE", str(cache))
    monkeypatch.setitem(IMAGE_SETS, "mine:x", entry(url, content))
    (cache / "mine-x" / ".x.zip.origin").unlink()
    path.write_bytes(archive(first=1))  # same size
    assert download("mine:x").read_bytes() == content
    assert state["requests"] == 1


def test_the_pinned_sets():
    assert [*IMAGE_SETS] == ["cifar10", "cifar100", "stl10", "tiny-imagenet"]
    for pinned in IMAGE_SETS.values():
        assert len(bytes.fromhex(pinned.sha256)) == 32
        assert pinned.size > 100_000_000
    with raises(ValueError, match=r"`name` must be one of .*, tiny-imagenet, got 'imagenet'"):
        download("imagenet")
