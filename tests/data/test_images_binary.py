"""CIFAR-10, CIFAR-100 and STL-10 in their binary layouts, as folders and archives."""

from dataclasses import replace

import numpy as np
import pytest
from _helpers.files import fill, packed
from _helpers.refusals import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from crl_jax.data import DataError, DataWarning, load_images
from crl_jax.data._images import _binary

KINDS = ("cifar10", "cifar100", "stl10")
COUNTS = {"train": 10, "test": 4, "unlabelled": 3}
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Declares releases with a few images per file, as these tests write them."""

    def small(name, file):
        return replace(file, count=COUNTS[file.part] // (5 if "data_batch" in name else 1))

    releases = [
        replace(release, files={name: small(name, file) for name, file in release.files.items()})
        for release in _binary.RELEASES
    ]
    monkeypatch.setattr(_binary, "RELEASES", tuple(releases))


def channels_first(image, transposed=False):
    """Bytes of an image, channel by channel, in row order or, as in STL-10, in column order."""
    return np.transpose(image, (2, 1, 0) if transposed else (2, 0, 1)).tobytes()


def release(kind):
    """Folder name, files, images and labels of a release in the published layout."""
    side, n_classes = (96 if kind == "stl10" else 32), (100 if kind == "cifar100" else 10)
    rng = np.random.default_rng(2)
    parts = {name: rng.integers(0, 256, (n, side, side, 3), np.uint8) for name, n in COUNTS.items()}
    labels = {name: rng.integers(0, n_classes - 1, COUNTS[name]).tolist() for name in parts}
    names = "".join(f"name {i}\n" for i in range(n_classes)).encode()
    if kind == "stl10":  # labels start at 1
        files = {
            f"{part}_X.bin": b"".join(channels_first(image, transposed=True) for image in images)
            for part, images in parts.items()
        }
        files["unlabeled_X.bin"] = files.pop("unlabelled_X.bin")
        for part in ("train", "test"):
            files[f"{part}_y.bin"] = bytes(label + 1 for label in labels[part])
        files |= {"class_names.txt": names, "fold_indices.txt": b"0 1\n"}
        labels["unlabelled"] = [-1] * COUNTS["unlabelled"]
        return "stl10_binary", files, parts, labels

    coarse = b"\x13" if kind == "cifar100" else b""
    train, test = (
        [coarse + bytes([label]) + channels_first(x) for x, label in zip(parts[part], labels[part])]
        for part in ("train", "test")
    )
    del parts["unlabelled"], labels["unlabelled"]
    if kind == "cifar100":
        files = {"train.bin": b"".join(train), "test.bin": b"".join(test)}
        files |= {"coarse_label_names.txt": b"x\n" * 20, "fine_label_names.txt": names}
        return "cifar-100-binary", files, parts, labels
    files = {f"data_batch_{i + 1}.bin": b"".join(train[2 * i :][:2]) for i in range(5)}
    files |= {"test_batch.bin": b"".join(test), "batches.meta.txt": names + b"\n"}
    return "cifar-10-batches-bin", files | {"readme.html": b"<html>"}, parts, labels


def write(path, files):
    """Writes the files to a folder, or in reverse order to an archive."""
    return packed(path, dict(reversed(files.items()))) if path.suffix else fill(path, files)


@pytest.mark.parametrize("name", ["set", "set.zip", "set.tar", "set.tar.gz"])
@each_kind
def test_reads_releases_from_folders_and_archives(tmp_path, kind, name):
    folder, files, parts, labels = release(kind)
    prefix = "./" if name.endswith("tar") else ""
    files = {f"{prefix}{folder}/{file}": content for file, content in files.items()}
    split = load_images(write(tmp_path / name, files))
    assert [part for part, _ in split.parts()] == [*parts]
    for part, images in split.parts():
        np.testing.assert_array_equal(images.images, parts[part])
        assert images.labels.tolist() == labels[part]
        assert images.classes[:2] == ("name 0", "name 1")
        assert len(images.classes) == (100 if kind == "cifar100" else 10)


@each_kind
def test_resizes_images_of_releases(tmp_path, kind):
    _, files, parts, labels = release(kind)
    split = load_images(fill(tmp_path, files), size=48)
    assert split.train.labels.tolist() == labels["train"]
    for part, images in split.parts():
        for image, original in zip(images.images, parts[part], strict=True):
            expected = Image.fromarray(original).resize((48, 48), Image.Resampling.BILINEAR)
            np.testing.assert_array_equal(image, expected)


def test_stl10_may_lack_unlabelled_images(tmp_path):
    _, files, _, _ = release("stl10")
    del files["unlabeled_X.bin"]
    assert load_images(fill(tmp_path, files)).unlabelled is None


@each_kind
def test_reports_missing_file(tmp_path, kind):
    folder, files, _, _ = release(kind)
    for missing in [name for name in files if name.endswith(".bin") and "unlab" not in name][:2]:
        some = {name: content for name, content in files.items() if name != missing}
        fill(tmp_path / missing / folder, some)
        with raises(DataError, match=f"{folder}: expected the files of .* named {missing}"):
            load_images(tmp_path / missing)


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kind=st.sampled_from(KINDS), cut=st.integers(1, 3000), form=st.sampled_from(["x", "x.tar.gz"])
)
def test_reports_size_of_truncated_file(tmp_path_factory, kind, cut, form):
    _, files, _, _ = release(kind)
    name = {"cifar10": "data_batch_3.bin", "cifar100": "train.bin", "stl10": "test_X.bin"}[kind]
    whole = len(files[name])
    files[name] = files[name][:-cut]
    path = write(tmp_path_factory.mktemp("cut") / form, files)
    message = f"{name}: expected {whole} bytes, .* records of .*, got {whole - cut}"
    with raises(DataError, match=message):
        load_images(path)


def test_warns_of_files_with_unexpected_length(tmp_path):
    _, files, parts, _ = release("cifar10")
    files["data_batch_2.bin"] = files["data_batch_2.bin"][:3073]
    message = r"1 files have another .* CIFAR-10: data_batch_2.bin 1 \("
    with pytest.warns(DataWarning, match=message):
        split = load_images(fill(tmp_path, files))
    np.testing.assert_array_equal(split.train.images, np.delete(parts["train"], 3, axis=0))


@pytest.mark.parametrize(
    ("kind", "name", "place", "byte", "message"),
    [
        ("cifar10", "test_batch.bin", 3073, 10, "labels from 0 to 9, .* got 10"),
        ("cifar100", "train.bin", 1, 100, "labels from 0 to 99, .* got 100"),
        ("stl10", "train_y.bin", 4, 0, "labels from 1 to 10, .* got 0"),
        ("stl10", "train_y.bin", 4, 11, "labels from 1 to 10, .* got 11"),
        ("stl10", "train_y.bin", 10, 1, "10 labels, .* got 11"),
    ],
)
def test_rejects_labels_without_class_or_image(tmp_path, kind, name, place, byte, message):
    _, files, _, _ = release(kind)
    files[name] = files[name][:place] + bytes([byte]) + files[name][place + 1 :]
    with raises(DataError, match=f"{name}: expected {message}"):
        load_images(fill(tmp_path, files))


@pytest.mark.parametrize(
    ("name", "size", "kept"), [("x", None, 0), ("x", 8, 5), ("x.tgz", None, 5)]
)
def test_caches_only_resized_or_compressed_releases(tmp_path, cache, monkeypatch, name, size, kept):
    monkeypatch.setattr("crl_jax.data._images._load._MIN_CACHED_IMAGES", 1)
    _, files, parts, _ = release("cifar10")
    path = write(tmp_path / name, files)
    for _ in range(2):
        split = load_images(path, size=size)
        assert len([file for file in cache.rglob("*") if file.is_file()]) == kept
    if size is None:
        np.testing.assert_array_equal(split.train.images, parts["train"])
    with raises(ValueError, match="`test` requires images without a test part"):
        load_images(path, test=0.5)
