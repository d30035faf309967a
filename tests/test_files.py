"""Atomic writes of files, by one writer and by several."""

import threading
from pathlib import Path

from _helpers.refusals import raises

from crl_jax._files import whole


def test_write_replaces_file_atomically_and_creates_folder(tmp_path):
    path = tmp_path / "new" / "file"
    for text in ("first", "second"):
        with whole(path) as partial:
            partial.write_text(text)
            assert not path.exists() or path.read_text() == "first"
        assert path.read_text() == text
    assert [*path.parent.iterdir()] == [path]


def test_failed_write_keeps_file_and_removes_temporary(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail():
        with whole(path) as partial:
            partial.write_text("half")
            raise KeyError

    with raises(KeyError):
        fail()
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_rejects_folder_before_writing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, Path()):
        with raises(IsADirectoryError) as caught, whole(folder):
            raise AssertionError
        assert caught.value.filename == str(folder)
    assert not [*tmp_path.iterdir()]


def test_concurrent_writers_never_expose_partial_file(tmp_path):
    path, texts = tmp_path / "file", ["a" * 100_000, "b" * 200_000]
    path.write_text(texts[0])
    done, contents = threading.Event(), []

    def read():
        while not done.is_set():
            contents.append(path.read_text())

    def write(text):
        for _ in range(50):
            with whole(path) as partial:
                partial.write_text(text)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert contents
    assert set(contents) <= set(texts)
    assert [*tmp_path.iterdir()] == [path]
