"""Archives of images: read where they lie, in bounds, and nothing in them chooses a place."""

import gzip
import io
import os
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from crl_jax.data import DataError, DataWarning, _archive, load_graphs, load_images
from crl_jax.data._archive import open_tree, read_text


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CRL_JAX_CACHE", str(tmp_path / "cache"))


def png(number):
    buffer = io.BytesIO()
    Image.fromarray(np.full((2, 2), number, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


PATHS = ["train/b/1.png", "train/a/10.png", "train/a/2.png", "test/b/0.png"]
FILES = {path: png(number) for number, path in enumerate(PATHS)}


def zipped(path, files, mode=None):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (mode or 0) << 16
            archive.writestr(info, content)
    return path


def tarred(path, files, kind=tarfile.REGTYPE, link=""):
    modes = {".tar": "w", ".gz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz", ".tgz": "w:gz"}
    with tarfile.open(path, modes[path.suffix]) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(content), kind, link
            archive.addfile(info, io.BytesIO(content))
    return path


def packed(path, files):
    return zipped(path, files) if path.suffix == ".zip" else tarred(path, files)


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tgz", "x.tar.bz2", "x.tar.xz"])
def test_archives_are_read_in_order_and_nothing_is_unpacked(tmp_path, name):
    folder = tmp_path / "set"
    folder.mkdir()
    path = packed(folder / name, FILES)
    for source in (path, str(path), folder):
        split = load_images(source)
        assert split.train.images[:, 0, 0, 0].tolist() == [1, 2, 0]
        assert split.train.labels.tolist() == [0, 0, 1]
        assert split.test.images[0, 0, 0, 0] == 3
    assert [child.name for child in tmp_path.rglob("*")] == ["set", name]


def test_a_folder_with_several_archives_or_folders_is_what_it_is(tmp_path):
    zipped(tmp_path / "a.zip", FILES)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "README").write_text("x")
    assert len(load_images(tmp_path).train) == 3
    for path, content in FILES.items():
        (tmp_path / "c" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "c" / path).write_bytes(content)
    with pytest.warns(DataWarning):
        assert len(load_images(tmp_path).train) == 3
    shutil.rmtree(tmp_path / "c")
    zipped(tmp_path / "b.zip", FILES)
    with raises(DataError, match=r"expected images .* got 3 files"):
        load_images(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../a/x.png",
        "train/../../x.png",
        "/train/a/x.png",
        "train\\a\\x.png",
        "C:/a/x.png",
        "train//x.png",
        "..",
    ],
)
@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_odd_paths_are_refused(tmp_path, name, suffix):
    path = packed(tmp_path / f"x{suffix}", {**FILES, name: b"x"})
    with raises(DataError, match="expected paths within the archive, got"):
        load_images(path)


@pytest.mark.parametrize("name", ["", "train/a/a\nb.png"])
def test_names_without_characters_or_with_line_breaks_give_one_line(tmp_path, name):
    path = zipped(tmp_path / "x.zip", {**FILES, name: b"x"})
    with raises(DataError) as caught:
        load_images(path)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_a_path_stands_once(tmp_path, suffix):
    path = packed(tmp_path / f"x{suffix}", {**FILES, "./" + PATHS[0]: b"x"})
    with raises(DataError, match=f"expected each path once, got {PATHS[0]} twice"):
        load_images(path)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind):
    path = tarred(tmp_path / "x.tar", {"train/a/0.png": b""}, kind, link="/etc/passwd")
    with raises(DataError, match=r"train/a/0.png: expected a regular file, got a link"):
        load_images(path)


def test_links_in_a_zip_are_refused(tmp_path):
    path = zipped(tmp_path / "x.zip", {"train/a/0.png": b"/etc/passwd"}, stat.S_IFLNK | 0o777)
    with raises(DataError, match=r"train/a/0.png: expected a regular file, got a link"):
        load_images(path)


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".gz"])
def test_members_that_are_too_large_are_refused_before_they_are_read(tmp_path, suffix, monkeypatch):
    path = packed(tmp_path / f"x{suffix}", {**FILES, "train/a/big.png": b"\0" * 100_000})
    monkeypatch.setattr(_archive, "_MAX_FILE_BYTES", 99_999)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("read"))
    with raises(DataError, match=r"big.png: expected at most 99999 bytes, got 100000"):
        load_images(path)


def test_a_member_that_lies_about_its_size(tmp_path):
    content = bytearray(zipped(tmp_path / "x.zip", {"a/0.png": b"\0" * 1_000_000}).read_bytes())
    for place in (22, content.index(b"PK\1\2") + 24):  # both places of the unpacked size
        content[place : place + 4] = (100).to_bytes(4, "little")
    (tmp_path / "x.zip").write_bytes(content)
    with (
        raises(DataError, match=r"a/0.png: not readable .*CRC"),
        open_tree(tmp_path / "x.zip"),
    ):
        pytest.fail("read")


def test_all_files_together_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(_archive, "_MAX_TOTAL_BYTES", 100)
    with raises(DataError, match="expected at most 100 bytes in all files"):
        load_images(tarred(tmp_path / "x.tar", FILES))


def test_too_many_members(tmp_path, monkeypatch):
    monkeypatch.setattr(_archive, "_MAX_FILES", 3)
    with raises(DataError, match="expected at most 3 files"):
        load_images(zipped(tmp_path / "x.zip", FILES))


def test_locked_archives_are_told(tmp_path):
    content = bytearray(zipped(tmp_path / "x.zip", FILES).read_bytes())
    place = 0
    while (place := content.find(b"PK\1\2", place + 1)) > 0:
        content[place + 8] |= 1  # encrypted
    (tmp_path / "x.zip").write_bytes(content)
    with raises(DataError, match=r"png: not readable .*encrypted"):
        load_images(tmp_path / "x.zip")


@pytest.mark.parametrize(
    "content", [b"", b"text", b"PK\3\4...", b"PK", gzip.compress(b"text" * 999, mtime=0)]
)
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "x.zip").write_bytes(content)
    with raises(DataError, match=r"x.zip: (expected a folder, a zip or|not readable)"):
        load_images(tmp_path / "x.zip")


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([".zip", ".tar", ".gz"]), st.floats(0, 1), st.booleans(), st.integers(1, 255)
)
def test_a_broken_archive_is_an_error_of_the_data(tmp_path_factory, suffix, where, cut, change):
    """Cut short or with a changed byte, it is refused, or read as if it were whole."""
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
    except (DataError, ImportWarning):
        return
    except Warning:  # other names, other kinds of files
        return
    assert split.train.images.dtype == np.uint8


def test_the_files_of_a_tree(tmp_path):
    files = {"b/x": b"12345", "a-b/y": b"", "a/z": b"123"}
    for name, content in files.items():
        (tmp_path / "f" / name).parent.mkdir(parents=True)
        (tmp_path / "f" / name).write_bytes(content)
    for path in (
        tmp_path / "f",
        zipped(tmp_path / "x.zip", files),
        tarred(tmp_path / "x.tar", files),
    ):
        with open_tree(path) as tree:
            assert list(tree.sizes.items()) == [("a/z", 3), ("a-b/y", 0), ("b/x", 5)]
            assert tree.where("b/x") == f"{path}/b/x"
            assert {name: tree.read(name, 5) for name in files} == files
            with raises(DataError, match="b/x: expected at most 4 bytes, got 5"):
                tree.read("b/x", 4)
            root = tree.root
        assert root.exists() == (path == tmp_path / "f")
    assert not (tmp_path / "cache").exists()


def test_unpacking_without_a_writable_cache(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with open_tree(zipped(tmp_path / "x.zip", FILES)) as tree:
        assert tree.read(PATHS[0], 1000) == FILES[PATHS[0]]


def test_special_files_are_refused_without_waiting(tmp_path):
    for name, content in FILES.items():
        (tmp_path / "f" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "f" / name).write_bytes(content)
    os.mkfifo(tmp_path / "f" / "train" / "a" / "pipe.png")
    with raises(DataError, match=r"pipe.png: expected a regular file, got a special file"):
        load_images(tmp_path / "f")
    os.remove(tmp_path / "f" / "train" / "a" / "pipe.png")
    os.symlink("/no/such.png", tmp_path / "f" / "train" / "a" / "link.png")
    with raises(DataError, match=r"link.png: expected a file, got a symbolic link to a mi"):
        load_images(tmp_path / "f")
    for load in (load_images, load_graphs):
        os.mkfifo(tmp_path / load.__name__)
        with raises(DataError, match=r"expected a folder, a zip or a tar .*, got a special"):
            load(tmp_path / load.__name__)
    os.mkfifo(tmp_path / "vocab.txt")
    with raises(DataError, match=r"vocab.txt: expected a regular file, got a special"):
        read_text(tmp_path / "vocab.txt")


def test_a_file_that_may_not_be_read_says_so(tmp_path, monkeypatch):
    path = zipped(tmp_path / "x.zip", FILES)

    opened = Path.open

    def refuse(asked: Path, *rest: Any, **more: Any) -> Any:
        if asked == path:
            raise PermissionError("not for you")
        return opened(asked, *rest, **more)

    monkeypatch.setattr(Path, "open", refuse)
    with raises(PermissionError, match="not for you"):
        load_images(path)
