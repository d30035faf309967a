"""Downloads of image datasets, and the cache of decoded images."""

import hashlib
import io
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from _helpers.files import encoded, fill, warned, write, zipped
from _helpers.refusals import raises

from crl_jax.data import IMAGE_SETS, DataError, DataWarning, ImageSet, _download, download
from crl_jax.data import load_images as load
from crl_jax.data._images import _cache, _load


@pytest.fixture(autouse=True)
def _cache_all_images(monkeypatch):
    monkeypatch.setattr(_load, "_MIN_CACHED_IMAGES", 1)


@pytest.fixture
def decode_calls(monkeypatch):
    """Records the calls that decode images."""
    calls = []
    inner = _load.load_files
    monkeypatch.setattr(_load, "load_files", lambda *given: (calls.append(1), inner(*given))[1])
    return calls


def images_from(first=0):
    names = ["train/a/0.png", "train/b/1.png", "test/a/2.png"]
    return {name: encoded(first + number) for number, name in enumerate(names)}


def archive(first=0):
    return zipped(images_from(first))


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "x.zip", archive())


def first_pixels(split):
    return [part.images[:, 0, 0, 0].tolist() for _, part in split.parts()]


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_second_load_reads_cache(tmp_path, decode_calls):
    path = write(tmp_path / "x.zip", zipped({**images_from(), "train/a/.hidden": b"x"}))
    expected_messages = [f"{path}: skipped 1 hidden files"]
    for _ in range(2):
        split, messages = warned(load, path)
        assert messages == expected_messages
        assert first_pixels(split) == [[0, 1], [2]]
        assert split.train.labels.tolist() == [0, 1]
        assert split.train.classes == ("a", "b")
        assert split.train.names.tolist() == ["train/a/0.png", "train/b/1.png"]
        assert not split.train.images.flags.writeable
    assert len(decode_calls) == 1
    assert isinstance(split.train.images.base, np.memmap)
    for n_decoded, keep, kept in ((2, False, False), (3, True, True)):
        split, messages = warned(load, path, keep=keep, cache=tmp_path / "other")
        assert (first_pixels(split), messages) == ([[0, 1], [2]], expected_messages)
        assert len(decode_calls) == n_decoded
        assert bool(files_in(tmp_path / "other")) == kept


def test_changed_archive_is_decoded_again_and_replaced(path, cache, decode_calls, monkeypatch):
    before = load(path)
    n_files = len(files_in(cache))
    time = path.stat().st_mtime_ns
    path.write_bytes(archive(first=10))
    os.utime(path, ns=(time, time + 1))  # same size, a nanosecond later
    assert first_pixels(load(path)) == [[10, 11], [12]]
    assert first_pixels(before) == [[0, 1], [2]]
    assert len(files_in(cache)) == n_files
    path.write_bytes(archive(first=20) + b"\0")  # same modification time
    os.utime(path, ns=(time, time + 1))
    assert first_pixels(load(path)) == [[20, 21], [22]]
    monkeypatch.setattr(_load, "pillow_version", lambda: "none")
    load(path)
    assert len(decode_calls) == 4
    assert load(path, size=1).train.images.shape == (2, 1, 1, 1)
    assert first_pixels(load(path)) == [[20, 21], [22]]
    assert len(decode_calls) == 5


def test_cache_key_covers_all_files_of_folder(tmp_path, decode_calls):
    folder = fill(tmp_path / "set", images_from())
    for _ in range(2):
        load(folder)
    assert len(decode_calls) == 1
    write(folder / "train/a/3.png", encoded(3))
    assert first_pixels(load(folder)) == [[0, 3, 1], [2]]
    path = folder / "test/a/2.png"
    os.utime(path, ns=(0, 7))
    load(folder)
    assert len(decode_calls) == 3
    load(folder / ".." / "set")
    assert len(decode_calls) == 3
    path.rename(path.with_name("4.png"))
    (folder / "train/a").rename(folder / "train/c")
    with pytest.warns(DataWarning, match="1 classes have no image in training"):
        assert load(folder).train.labels.tolist() == [1, 2, 2]


def test_caches_each_test_fraction(tmp_path, decode_calls):
    folder = fill(tmp_path / "set", {f"a/{number}.png": encoded(number) for number in range(10)})
    for _ in range(2):
        assert len(load(folder).test) == 2
        assert len(load(folder, test=0.5).test) == 5
    assert len(decode_calls) == 2


def npy_bytes(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


DAMAGE = {  # changes to the cached images, and to the metadata file
    "cut": (lambda images: images[:-1], None),
    "gone": (None, None),
    "empty": (lambda _: b"", None),
    "byte": (lambda images: images[:-1] + bytes([images[-1] ^ 1]), None),
    "pickle": (lambda _: npy_bytes(np.array([{}], object)), None),
    "shape": (lambda _: npy_bytes(np.zeros((3, 2, 2, 1), np.uint8)), None),
    "cut note": (bytes, lambda note: note[:-3]),
    "parts": (bytes, lambda note: json.dumps({**json.loads(note), "parts": []})),
    "classes": (bytes, lambda note: note.replace('"a"', '"c"')),
    "nested": (bytes, lambda _: "[" * 100_000),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_cache_is_rebuilt(path, cache, decode_calls, kind):
    load(path)
    (images,) = cache.rglob("train-images.npy")
    note = images.with_name("made_of.json")
    change_images, change_note = DAMAGE[kind]
    if change_images is None:
        images.unlink()
    else:
        images.write_bytes(change_images(images.read_bytes()))
    if change_note is not None:
        note.write_text(change_note(note.read_text()))
    for _ in range(2):
        assert first_pixels(load(path)) == [[0, 1], [2]]
    assert len(decode_calls) == 2


def test_warns_of_unwritable_cache(path, tmp_path):
    write(tmp_path / "taken", "a file, and no folder")
    with pytest.warns(DataWarning, match=r"x.zip: decoded images were not kept in the cache: "):
        assert first_pixels(load(path, cache=tmp_path / "taken")) == [[0, 1], [2]]


def test_failed_cache_write_leaves_no_files(path, cache, monkeypatch):
    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(_cache.json, "dumps", full)
    monkeypatch.setattr(_cache, "_entry_folder", lambda folder, _: folder / "it")
    with pytest.warns(DataWarning, match="not kept in the cache: no space left"):
        load(path)
    assert files_in(cache) == []


def test_concurrent_loads_leave_one_complete_entry(path, cache):
    found, threads = [], []
    for _ in range(6):
        threads.append(threading.Thread(target=lambda: found.append(first_pixels(load(path)))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert found == [[[0, 1], [2]]] * 6
    assert len(files_in(cache)) == 7
    (note,) = cache.rglob("made_of.json")
    assert json.loads(note.read_text())["classes"] == ["a", "b"]


def test_later_writer_keeps_existing_entry(path, cache, monkeypatch):
    load(path)
    before = [file.stat().st_ino for file in files_in(cache)]
    remove = shutil.rmtree

    def remove_scratch(folder, *given, **named):  # that directory is new
        if Path(folder).name.startswith((".part-", ".unpacked-")):
            remove(folder, *given, **named)

    monkeypatch.setattr(_cache.shutil, "rmtree", remove_scratch)
    monkeypatch.setattr(_cache, "load_cached", lambda *_: None)
    monkeypatch.setattr(_load, "load_cached", lambda *_: None)
    assert first_pixels(load(path)) == [[0, 1], [2]]
    assert [file.stat().st_ino for file in files_in(cache)] == before


def test_small_datasets_are_not_cached(path, cache, monkeypatch):
    monkeypatch.setattr(_load, "_MIN_CACHED_IMAGES", 4)
    load(path)
    assert files_in(cache) == []


@pytest.fixture
def served(serve, monkeypatch):
    """Returns a function that serves an archive as a named dataset; it returns the server state."""

    def make(name, content, announced=None):
        url, state = serve(content, "files/x.zip?version=1")
        right = announced or content
        digest = hashlib.sha256(right).hexdigest()
        entry = ImageSet(url, digest, len(right), "https://example.org")
        monkeypatch.setitem(IMAGE_SETS, name, entry)
        return state

    return make


def test_dataset_is_downloaded_once(served, cache, decode_calls):
    state = served("cifar10", archive())
    for _ in range(2):
        assert first_pixels(load("cifar10")) == [[0, 1], [2]]
    assert download("cifar10") == cache / "cifar10" / "x.zip"
    assert (state["requests"], len(decode_calls)) == (1, 1)
    (cache / "cifar10" / "x.zip").unlink()
    assert first_pixels(load("cifar10")) == [[0, 1], [2]]  # decoded from the current files
    assert state["requests"] == 1
    assert first_pixels(load("cifar10", keep=False)) == [[0, 1], [2]]
    assert state["requests"] == 2
    served("cifar10", archive(first=7))
    assert first_pixels(load("cifar10")) == [[7, 8], [9]]
    assert state["requests"] == 3


def test_rejects_wrong_bytes_before_opening(served, tmp_path, monkeypatch):
    served("cifar10", archive(first=1), archive())
    monkeypatch.setattr(_load, "open_tree", lambda *_: pytest.fail("opened"))
    with raises(DataError, match=r"expected .* bytes with SHA-256"):
        load("cifar10")
    assert files_in(tmp_path) == []


def test_manually_placed_archive_is_used_if_valid(served, cache, monkeypatch):
    content = archive()
    state = served("mine:x", content)
    path = write(cache / "mine-x" / "x.zip", content)
    assert download("mine:x") == path
    assert state["requests"] == 0
    with monkeypatch.context() as patch:
        patch.setattr(_download, "_retrieve", lambda *_: pytest.fail("computed again"))
        assert download("mine:x") == path
    (cache / "mine-x" / ".x.zip.origin").unlink()
    path.write_bytes(archive(first=1))  # same size
    assert download("mine:x").read_bytes() == content
    assert state["requests"] == 1


def test_pinned_datasets_have_checksums_and_sizes():
    assert [*IMAGE_SETS] == ["cifar10", "cifar100", "stl10", "tiny-imagenet"]
    for pinned in IMAGE_SETS.values():
        assert len(bytes.fromhex(pinned.sha256)) == 32
        assert pinned.size > 100_000_000
    with raises(ValueError, match=r"`name` must be one of .*, tiny-imagenet, got 'imagenet'"):
        download("imagenet")
