"""Image archives: read without unpacking, within size limits and without path traversal."""

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _helpers.files import encoded, fill, packed, tarred, write, zipped
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax.data import DataError, DataWarning, _archive, load_graphs, load_images
from crl_jax.data._archive import open_tree, read_text

PATHS = ["train/b/1.png", "train/a/10.png", "train/a/2.png", "test/b/0.png"]
FILES = {path: encoded(number) for number, path in enumerate(PATHS)}


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tgz", "x.tar.bz2", "x.tar.xz"])
def test_reads_archives_in_order_without_unpacking(tmp_path, name):
    path = packed(tmp_path / "set" / name, FILES)
    for source in (path, str(path), path.parent):
        split = load_images(source)
        assert split.train.images[:, 0, 0, 0].tolist() == [1, 2, 0]
        assert split.train.labels.tolist() == [0, 0, 1]
        assert split.test.images[0, 0, 0, 0] == 3
    assert [child.name for child in tmp_path.rglob("*")] == ["set", name]


def test_folder_with_only_one_archive_reads_archive(tmp_path):
    fill(tmp_path, {"a.zip": zipped(FILES), "README": "x"})
    (tmp_path / ".hidden").mkdir()
    assert len(load_images(tmp_path).train) == 3
    fill(tmp_path / "c", {path: FILES[path] for path in PATHS if path != "train/a/10.png"})
    with pytest.warns(DataWarning, match="skipped 2 files that are no images: 1 .zip, 1 README"):
        assert len(load_images(tmp_path).train) == 2
    shutil.rmtree(tmp_path / "c")
    write(tmp_path / "b.zip", zipped(FILES))
    with raises(DataError, match=r"expected images .* got 3 files"):
        load_images(tmp_path)


def encrypted(content):
    """A zip archive whose members are marked as encrypted."""
    content, place = bytearray(content), 0
    while (place := content.find(b"PK\1\2", place + 1)) > 0:
        content[place + 8] |= 1
    return bytes(content)


def with_stated_size(content, size):
    """A zip archive whose first member states another size in both of its headers."""
    content = bytearray(content)
    for place in (22, content.index(b"PK\1\2") + 24):
        content[place : place + 4] = size.to_bytes(4, "little")
    return bytes(content)


OUTSIDE = ["../a/x.png", "train/../../x.png", "/train/a/x.png", "train\\a\\x.png", "C:/a/x.png",
           "train//x.png", ".."]  # fmt: skip
IRREGULAR = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
INVALID = [  # archive and error
    *((form({**FILES, name: b"x"}), "expected paths within the archive, got")
      for name in OUTSIDE for form in (zipped, tarred)),
    *((tarred({"train/a/0.png": b""}, kind=kind, link="/etc/passwd"),
       "train/a/0.png: expected a regular file, got a link") for kind in IRREGULAR),
    (zipped({"train/a/0.png": b"/etc/passwd"}, stat.S_IFLNK | 0o777),
     "train/a/0.png: expected a regular file, got a link"),
    *((form({**FILES, "./" + PATHS[0]: b"x"}), f"expected each path once, got {PATHS[0]} twice")
      for form in (zipped, tarred)),
    (zipped({**FILES, "": b"x"}), "x.zip"),
    (zipped({**FILES, "train/a/a\nb.png": b"x"}), "x.zip"),
    (encrypted(zipped(FILES)), "png: not readable .*encrypted"),
    (with_stated_size(zipped({"a/0.png": b"\0" * 1_000_000}), 100), "a/0.png: not readable .*CRC"),
    *((content, "x.zip: (expected a folder, a zip or|not readable)")
      for content in (b"", b"text", b"PK\3\4...", b"PK", gzip.compress(b"text" * 999, mtime=0))),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), INVALID, ids=range(len(INVALID)))
def test_rejects_unsafe_and_broken_archives_in_one_line(tmp_path, content, message):
    path = write(tmp_path / "x.zip", content)
    with raises(DataError, match=message) as caught:
        load_images(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".gz"])
@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("_MAX_FILE_BYTES", 99_999, "big.png: expected at most 99999 bytes, got 100000"),
        ("_MAX_TOTAL_BYTES", 100, "expected at most 100 bytes in all files"),
        ("_MAX_FILES", 3, "expected at most 3 files"),
    ],
)
def test_rejects_archives_over_limits_before_reading(
    tmp_path, monkeypatch, suffix, limit, value, message
):
    path = packed(tmp_path / f"x{suffix}", {"train/a/big.png": b"\0" * 100_000, **FILES})
    monkeypatch.setattr(_archive, limit, value)
    if limit == "_MAX_FILE_BYTES":
        monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("read"))
    with raises(DataError, match=message):
        load_images(path)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([".zip", ".tar", ".gz"]), st.floats(0, 1), st.booleans(), st.integers(1, 255)
)
def test_corrupted_archive_raises_data_error_or_loads(tmp_path_factory, suffix, where, cut, change):
    """A truncated or altered archive is rejected, or read as if it were intact."""
    path = packed(tmp_path_factory.mktemp("broken") / f"x{suffix}", FILES)
    content = bytearray(path.read_bytes())
    place = int(where * (len(content) - 1))
    if cut:
        content = content[:place]
    else:
        content[place] ^= change
    path.write_bytes(content)
    try:
        split = load_images(path, test=None)
    except (DataError, Warning):  # with other names, there are other kinds of files
        return
    assert split.train.images.dtype == np.uint8


def test_open_tree_lists_and_reads_files(tmp_path, cache):
    files = {"b/x": b"12345", "a-b/y": b"", "a/z": b"123"}
    folder = fill(tmp_path / "f", files)
    for path in (folder, *(packed(tmp_path / name, files) for name in ("x.zip", "x.tar"))):
        with open_tree(path) as tree:
            assert list(tree.sizes.items()) == [("a/z", 3), ("a-b/y", 0), ("b/x", 5)]
            assert tree.where("b/x") == f"{path}/b/x"
            assert {name: tree.read(name, 5) for name in files} == files
            with raises(DataError, match="b/x: expected at most 4 bytes, got 5"):
                tree.read("b/x", 4)
            root = tree.root
        assert root.exists() == (path == folder)
    assert not cache.exists()
    write(cache, "a file")  # so that nothing can be written there
    with open_tree(tmp_path / "x.zip") as tree:
        assert tree.read("a/z", 9) == b"123"


def test_rejects_special_files_without_blocking(tmp_path):
    inside = fill(tmp_path / "f", FILES) / "train" / "a"
    os.mkfifo(inside / "pipe.png")
    with raises(DataError, match=r"pipe.png: expected a regular file, got a special file"):
        load_images(tmp_path / "f")
    (inside / "pipe.png").unlink()
    (inside / "link.png").symlink_to("/no/such.png")
    with raises(DataError, match=r"link.png: expected a file, got a symbolic link to a mi"):
        load_images(tmp_path / "f")
    os.mkfifo(tmp_path / "pipe")
    for load in (load_images, load_graphs):
        with raises(DataError, match=r"expected a folder, a zip or a tar .*, got a special"):
            load(tmp_path / "pipe")
    with raises(DataError, match=r"pipe: expected a regular file, got a special"):
        read_text(tmp_path / "pipe")


def test_permission_error_is_propagated(tmp_path, monkeypatch):
    path, original_open = write(tmp_path / "x.zip", zipped(FILES)), Path.open

    def refuse(candidate: Path, *rest: Any, **more: Any) -> Any:
        if candidate == path:
            raise PermissionError("not for you")
        return original_open(candidate, *rest, **more)

    monkeypatch.setattr(Path, "open", refuse)
    with raises(PermissionError, match="not for you"):
        load_images(path)
