"""CIFAR-10, CIFAR-100 and STL-10 in their binary layouts, as folders and archives."""

import io
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from _helpers.refusals import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from crl_jax.data import DataError, DataWarning, load_images
from crl_jax.data._images import _binary

KINDS = ("cifar10", "cifar100", "stl10")
N_TRAIN, N_TEST, N_UNLABELLED = 10, 4, 3


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CRL_JAX_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Releases as here are made: with a few images in each file."""
    counts = {"train": N_TRAIN, "test": N_TEST, "unlabelled": N_UNLABELLED}
    small = tuple(
        replace(
            release,
            files={
                name: replace(
                    file, count=counts[file.part] // (5 if name.startswith("data_batch") else 1)
                )
                for name, file in release.files.items()
            },
        )
        for release in _binary.RELEASES
    )
    monkeypatch.setattr(_binary, "RELEASES", small)


def pixels_of(kind, n, seed):
    side = 96 if kind == "stl10" else 32
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, 3), np.uint8)


def release(kind):
    """The files of a release by the published layout, and what is in them."""
    train, test = pixels_of(kind, N_TRAIN, 0), pixels_of(kind, N_TEST, 1)
    n_classes = 100 if kind == "cifar100" else 10
    rng = np.random.default_rng(2)
    labels = {"train": rng.integers(0, n_classes, N_TRAIN), "test": rng.integers(0, 9, N_TEST)}
    names = "\n".join(f"name {i}" for i in range(n_classes)) + "\n"
    if kind == "stl10":  # channels, then columns, then rows; classes from 1 on

        def flat(images):
            return b"".join(
                images[i, :, column, channel].tobytes()
                for i in range(len(images))
                for channel in range(3)
                for column in range(96)
            )

        unlabelled = pixels_of(kind, N_UNLABELLED, 3)
        files = {
            "train_X.bin": flat(train),
            "train_y.bin": bytes(int(label) + 1 for label in labels["train"]),
            "test_X.bin": flat(test),
            "test_y.bin": bytes(int(label) + 1 for label in labels["test"]),
            "unlabeled_X.bin": flat(unlabelled),
            "class_names.txt": names.encode(),
            "fold_indices.txt": b"0 1\n",
        }
        return "stl10_binary", files, (train, test, unlabelled), labels

    def records(images, of):  # a byte for the label, and then red, green and blue
        return b"".join(
            (b"\x13" if kind == "cifar100" else b"")
            + bytes([label])
            + b"".join(image[:, :, channel].tobytes() for channel in range(3))
            for image, label in zip(images, of.tolist(), strict=True)
        )

    if kind == "cifar100":
        files = {
            "train.bin": records(train, labels["train"]),
            "test.bin": records(test, labels["test"]),
            "coarse_label_names.txt": b"x\n" * 20,
            "fine_label_names.txt": names.encode(),
        }
        return "cifar-100-binary", files, (train, test), labels
    files = {
        f"data_batch_{i + 1}.bin": records(train[2 * i : 2 * i + 2], labels["train"][2 * i :][:2])
        for i in range(5)
    }
    files |= {
        "test_batch.bin": records(test, labels["test"]),
        "batches.meta.txt": names.encode() + b"\n",
        "readme.html": b"<html>",
    }
    return "cifar-10-batches-bin", files, (train, test), labels


def tarred(files, mode="w:gz", order=reversed):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name in order([*files]):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            archive.addfile(info, io.BytesIO(files[name]))
    return buffer.getvalue()


def write(path, files, form):
    """The files in a folder or an archive of some form."""
    if form == "folder":
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        return path
    if form == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path
    path.write_bytes(tarred(files, "w:gz" if form == "tar.gz" else "w"))
    return path


@pytest.mark.parametrize("form", ["folder", "zip", "tar", "tar.gz"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_release_is_read_from_every_form(tmp_path, kind, form):
    folder, files, parts, labels = release(kind)
    prefix = "./" if form == "tar" else ""
    files = {f"{prefix}{folder}/{name}": content for name, content in files.items()}
    split = load_images(write(tmp_path / f"set.{form}", files, form))
    np.testing.assert_array_equal(split.train.images, parts[0])
    np.testing.assert_array_equal(split.test.images, parts[1])
    assert split.train.labels.tolist() == labels["train"].tolist()
    assert split.test.labels.tolist() == labels["test"].tolist()
    assert split.train.classes[:2] == ("name 0", "name 1")
    assert len(split.train.classes) == (100 if kind == "cifar100" else 10)
    if kind == "stl10":
        np.testing.assert_array_equal(split.unlabelled.images, parts[2])
        assert split.unlabelled.labels.tolist() == [-1] * N_UNLABELLED
    else:
        assert split.unlabelled is None


@pytest.mark.parametrize("kind", KINDS)
def test_resized_releases(tmp_path, kind):
    _, files, parts, labels = release(kind)
    split = load_images(write(tmp_path, files, "folder"), size=48)
    assert split.train.labels.tolist() == labels["train"].tolist()
    for part, whole in zip(("train", "test", "unlabelled"), parts, strict=False):
        for image, original in zip(getattr(split, part).images, whole, strict=True):
            expected = Image.fromarray(original).resize((48, 48), Image.Resampling.BILINEAR)
            np.testing.assert_array_equal(image, expected)


def test_stl10_without_its_unlabelled_images(tmp_path):
    _, files, _, _ = release("stl10")
    del files["unlabeled_X.bin"]
    assert load_images(write(tmp_path, files, "folder")).unlabelled is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_named(tmp_path, kind):
    folder, files, _, _ = release(kind)
    for gone in [name for name in files if name.endswith(".bin") and "unlab" not in name][:2]:
        path = tmp_path / gone
        write(path / folder, {n: c for n, c in files.items() if n != gone}, "folder")
        with raises(DataError, match=f"{folder}: expected the files of .* named {gone}"):
            load_images(path)


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kind=st.sampled_from(KINDS),
    cut=st.integers(1, 3000),
    form=st.sampled_from(["folder", "tar.gz"]),
)
def test_a_truncated_file_is_told_by_its_bytes(tmp_path_factory, kind, cut, form):
    _, files, _, _ = release(kind)
    name = {"cifar10": "data_batch_3.bin", "cifar100": "train.bin", "stl10": "test_X.bin"}[kind]
    whole = len(files[name])
    files[name] = files[name][:-cut]
    path = write(tmp_path_factory.mktemp("cut") / "x", files, form)
    message = f"{name}: expected {whole} bytes, .* records of .*, got {whole - cut}"
    with raises(DataError, match=message):
        load_images(path)


def test_files_of_another_length_are_read_with_a_warning(tmp_path):
    _, files, parts, _ = release("cifar10")
    files["data_batch_2.bin"] = files["data_batch_2.bin"][:3073]
    path = write(tmp_path, files, "folder")
    with pytest.warns(
        DataWarning, match=r"1 files have another .* CIFAR-10: data_batch_2.bin 1 \("
    ):
        split = load_images(path)
    np.testing.assert_array_equal(split.train.images, np.delete(parts[0], 3, axis=0))


@pytest.mark.parametrize(
    ("kind", "name", "place", "byte", "message"),
    [
        ("cifar10", "test_batch.bin", 3073, 10, "labels from 0 to 9, .* got 10"),
        ("cifar100", "train.bin", 1, 100, "labels from 0 to 99, .* got 100"),
        ("stl10", "train_y.bin", 4, 0, "labels from 1 to 10, .* got 0"),
        ("stl10", "train_y.bin", 4, 11, "labels from 1 to 10, .* got 11"),
    ],
)
def test_labels_of_no_class_are_refused(tmp_path, kind, name, place, byte, message):
    _, files, _, _ = release(kind)
    changed = bytearray(files[name])
    changed[place] = byte
    files[name] = bytes(changed)
    with raises(DataError, match=f"{name}: expected {message}"):
        load_images(write(tmp_path, files, "folder"))


def test_labels_and_images_of_stl10_go_together(tmp_path):
    _, files, _, _ = release("stl10")
    files["train_y.bin"] += b"\1"
    with raises(DataError, match=r"train_y.bin: expected 10 labels, .* got 11"):
        load_images(write(tmp_path, files, "folder"))


@pytest.mark.parametrize(
    ("form", "size", "kept"), [("folder", None, 0), ("folder", 8, 5), ("tar.gz", None, 5)]
)
def test_files_that_lie_there_ready_are_not_kept_again(tmp_path, monkeypatch, form, size, kept):
    monkeypatch.setattr("crl_jax.data._images._load._MIN_CACHED_IMAGES", 1)
    _, files, parts, _ = release("cifar10")
    path = write(tmp_path / "x", files, form)
    for _ in range(2):
        split = load_images(path, size=size)
        assert len([file for file in (tmp_path / "cache").rglob("*") if file.is_file()]) == kept
    if size is None:
        np.testing.assert_array_equal(split.train.images, parts[0])


def test_a_release_has_a_test_part(tmp_path):
    _, files, _, _ = release("cifar100")
    with raises(ValueError, match="`test` requires images without a test part"):
        load_images(write(tmp_path, files, "folder"), test=0.5)
