"""Image datasets whose pixels remain on disk: equal to those in memory, with bounded memory use."""

import sys
import tracemalloc
import types

import numpy as np
import pytest
from _helpers.refusals import raises
from PIL import Image

from crl_jax.data import DataError, DiskArray, load_captioned, load_images
from crl_jax.data._images import _binary, _decode

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CRL_JAX_CACHE", str(tmp_path / "cache"))


def put(folder, shapes):
    """Writes random PNG images of two classes."""
    for number, shape in enumerate(shapes):
        path = folder / "ab"[number % 2] / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, shape, np.uint8)).save(path)
    return folder


def check_equal(found, expected):
    """Checks that two splits have the same parts, and that only one of them is in memory."""
    for (name, part), (other, images) in zip(found.parts(), expected.parts(), strict=True):
        assert name == other
        assert isinstance(part.images, DiskArray)
        np.testing.assert_array_equal(part.images[:], images.images)
        np.testing.assert_array_equal(part.take([1, 0]).images[:], images.images[[1, 0]])
        np.testing.assert_array_equal(part.images[1], images.images[1])


@pytest.mark.parametrize("shapes", [[(4, 4)] * 6 + [(4, 4, 3)] * 6, [(6, 5)] * 6 + [(4, 4)] * 6])
def test_class_folders_match_in_memory(tmp_path, shapes):
    """Covers a first colour image after grey ones, and images that are resized."""
    for part in ("train", "test", "unlabelled"):
        put(tmp_path / "set" / part, shapes)
    expected = load_images(tmp_path / "set", size=4)
    for _ in range(2):  # decoded, then from the cache
        found = load_images(tmp_path / "set", size=4, on_disk=True)
        check_equal(found, expected)
        np.testing.assert_array_equal(found.train.labels, expected.train.labels)
        np.testing.assert_array_equal(found.train.names, expected.train.names)
    both = DiskArray.concatenate([found.train.images, found.unlabelled.images])
    np.testing.assert_array_equal(both[[13, 1]][0], expected.unlabelled.images[1])


def test_binary_release_matches_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(_binary, "_BLOCK", 4)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        records = RNG.integers(0, 2, (6, 3073), np.uint8)
        (tmp_path / f"{name}.bin").write_bytes(records.tobytes())
    (tmp_path / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.warns(match="another length"):
        expected = load_images(tmp_path)
    with pytest.warns(match="another length"):
        check_equal(load_images(tmp_path, on_disk=True), expected)


def test_tensorflow_datasets_match_in_memory_and_are_cached(monkeypatch):
    rows = [{"image": RNG.integers(0, 256, (4, 4, 3), np.uint8), "label": i % 2} for i in range(12)]
    features = {"label": types.SimpleNamespace(names=["no", "yes"])}
    info = types.SimpleNamespace(features=features, full_name="some/set/1.0.0")
    module = types.ModuleType("tensorflow_datasets")
    vars(module).update(load=lambda name, *, with_info: ({"train": rows}, info), as_numpy=iter)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    expected = load_images("tfds:some/set")
    check_equal(load_images("tfds:some/set", on_disk=True), expected)
    vars(module).update(as_numpy=lambda split: pytest.fail("read again"))
    check_equal(load_images("tfds:some/set", on_disk=True), expected)


def test_captioned_images_match_in_memory(tmp_path):
    put(tmp_path / "images", [(4, 4, 3)] * 24)
    names = sorted(path.name for path in (tmp_path / "images").rglob("*.png"))
    (tmp_path / "captions.tsv").write_text("".join(f"{name}\tpicture {name}\n" for name in names))
    found, expected = load_captioned(tmp_path, on_disk=True), load_captioned(tmp_path)
    check_equal(found, expected)
    assert found.test.texts == expected.test.texts
    with raises(ValueError, match="`on_disk` needs a folder with captions.tsv, got digits"):
        load_captioned("digits", on_disk=True)
    with raises(ValueError, match="`on_disk` needs images in files, got digits"):
        load_images("digits", on_disk=True)


def test_reports_broken_image_and_caches_nothing(tmp_path):
    put(tmp_path / "set", [(4, 4)] * 12)
    (tmp_path / "set" / "a" / "0004.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with raises(DataError, match=r"a/0004\.png: not decoded"):
        load_images(tmp_path / "set", on_disk=True)
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_peak_memory_is_fraction_of_dataset(tmp_path, monkeypatch):
    """Decoding, selecting and indexing allocate a fraction of the 600 images of 48 KiB."""
    monkeypatch.setattr(_decode, "_BLOCK_IMAGES", 1)
    put(tmp_path / "set", [(128, 128, 3)] * 8)
    for number in range(8, 600):
        path = tmp_path / "set" / "ab"[number % 2] / f"{number:04}.png"
        path.symlink_to(tmp_path / "set" / "ab"[number % 2] / f"{number % 8:04}.png")
    tracemalloc.start()
    try:
        split = load_images(tmp_path / "set", on_disk=True)
        chosen = split.train.take(np.arange(0, len(split.train), 2)).images
        for start in range(0, len(chosen), 32):
            assert chosen[start : start + 32].shape[1:] == (128, 128, 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(split.train) == 480
    assert peak < 600 * 128 * 128 * 3 / 2
