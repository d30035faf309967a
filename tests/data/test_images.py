"""Images in memory, the digits, parts of a split, and rejection of invalid sources."""

import sys
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from crl_jax.data import DataError, Images, ImageSplit, load_images
from crl_jax.data._split_sampling import sample_test_mask


def make_images(n=6, side=4, channels=3, classes=("a", "b")):
    rng = np.random.default_rng(n)
    pixels = rng.integers(0, 256, (n, side, side, channels), np.uint8)
    return Images(pixels, (np.arange(n) % len(classes)).astype(np.int32), classes)


def test_images_are_read_only_copies():
    pixels, labels = np.zeros((2, 4, 5, 3), np.uint8), np.array([0, -1], np.int32)
    images = Images(pixels, labels, ("a",))
    pixels[:], labels[:] = 9, 0
    assert images.images.sum() == 0
    assert images.labels.tolist() == [0, -1]
    assert len(images) == 2
    assert repr(images) == "Images(2 of 4 × 5 × 3, 1 classes)"
    with raises(ValueError, match="read-only"):
        images.images[0] = 1
    with raises(FrozenInstanceError):
        images.labels = labels  # pyright: ignore[reportAttributeAccessIssue]
    kept = images.images
    assert Images(kept, images.labels, ("a",)).images is kept


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((2, 4, 5), np.uint8)}, r"`images` must be a 4-dim.*\(2, 4, 5\)"),
        ({"images": np.zeros((2, 4, 5, 3), np.float32)}, "`images` .* uint8, got .* of float32"),
        ({"labels": np.zeros(3, np.int32)}, r"`labels` must have shape \(2,\), got \(3,\)"),
        ({"labels": np.zeros(2, np.int64)}, "`labels` .* int32, got .* of int64"),
        ({"labels": np.array([0, 2], np.int32)}, r"`labels` must lie in \[-1, 2\), got 0 to 2"),
        ({"labels": np.array([-2, 0], np.int32)}, r"`labels` must lie in \[-1, 2\), got -2 to 0"),
        ({"classes": ("a", "a")}, "`classes` must be distinct"),
        ({"names": np.array(["x"])}, r"`names` must have shape \(2,\), got \(1,\)"),
        ({"names": np.zeros(2)}, "`names` must be strings, got float64"),
    ],
)
def test_rejects_inconsistent_fields(change, message):
    fields = {"images": np.zeros((2, 4, 5, 3), np.uint8), "labels": np.zeros(2, np.int32)}
    fields["classes"] = ("a", "b")
    Images(**fields)
    with raises(ValueError, match=message):
        Images(**fields | change)


def test_names_follow_selected_images():
    images = make_images()
    named = Images(images.images, images.labels, images.classes, np.array(list("uvwxyz")))
    assert named.take([3, 0]).names.tolist() == ["x", "u"]
    assert not named.take([3, 0]).names.flags.writeable
    assert named.without_labels().names.tolist() == list("uvwxyz")
    assert named.without_labels().labels.tolist() == [-1] * 6
    assert images.take([0]).names is None
    split = load_images(ImageSplit(named, named), size=2)
    assert split.test.names.tolist() == list("uvwxyz")


@pytest.mark.parametrize("source", ["digits", (np.zeros((4, 2, 2), np.uint8), np.arange(4) % 2)])
def test_labelled_false_ignores_labels(source):
    split = load_images(source, labelled=False, test=0.5)
    with_labels = load_images(source, test=0.5)
    for name, part in split.parts():
        assert part.classes == ()
        assert (part.labels == -1).all()
        np.testing.assert_array_equal(part.images, getattr(with_labels, name).images)


@settings(deadline=None)
@given(st.lists(st.integers(-6, 5)))
def test_take_matches_numpy_indexing(index):
    images = make_images()
    some = images.take(index)
    places = np.array(index, np.intp)
    np.testing.assert_array_equal(some.images, images.images[places])
    np.testing.assert_array_equal(some.labels, images.labels[places])
    assert some.classes == images.classes
    assert not some.images.flags.writeable


def test_take_accepts_masks_and_slices():
    images = make_images()
    assert images.take(images.labels == 1).labels.tolist() == [1, 1, 1]
    some = images.take(slice(1, 4))
    assert some.labels.tolist() == [1, 0, 1]
    assert np.shares_memory(some.images, images.images)
    for wrong in (2, [0.5], [[0, 1]], ["a"]):
        with raises(ValueError, match="`index` must be a slice, or a one-dimensional"):
            images.take(wrong)
    with raises(IndexError):
        images.take([6])


def test_split_requires_matching_parts():
    split = ImageSplit(make_images(), make_images(2), make_images(3))
    assert {name: len(part) for name, part in split.parts()} == {
        "train": 6, "test": 2, "unlabelled": 3
    }  # fmt: skip
    assert [name for name, _ in ImageSplit(make_images(), make_images(2)).parts()] == [
        "train",
        "test",
    ]
    with raises(ValueError, match=r"`test` must have shape \(2, 4, 4, 3\), got \(2, 5, 5"):
        ImageSplit(make_images(), make_images(2, side=5))
    with raises(ValueError, match="`unlabelled` must have the classes of `train`"):
        ImageSplit(make_images(), make_images(2), make_images(2, classes=("a", "c")))


@settings(deadline=None)
@given(st.lists(st.integers(-1, 4), min_size=2), st.floats(0.01, 0.99))
def test_test_fraction_applies_to_each_class(labels, share):
    labels = np.array(labels, np.int32)
    counts = {label: int(np.sum(labels == label)) for label in set(labels.tolist())}
    if max(counts.values()) == 1:
        with raises(DataError, match="x: expected a class of two images or more"):
            sample_test_mask(labels, share, "x")
        return
    sampled = sample_test_mask(labels, share, "x")
    np.testing.assert_array_equal(sampled, sample_test_mask(labels, share, "x"))
    for label, n in counts.items():
        expected = 0 if n == 1 else min(max(round(share * n), 1), n - 1)
        assert sampled[labels == label].sum() == expected


def test_test_samples_are_spread_over_dataset():
    labels = np.zeros(10_000, np.int32)
    sampled = sample_test_mask(labels, 0.25, "x")
    assert sampled.sum() == 2500
    for hundred in np.split(sampled, 100):  # hypergeometric, mean 25, deviation 4.3
        assert 5 <= hundred.sum() <= 45


def test_digits_match_scikit_learn():
    split = load_images("digits")
    pixels, labels = load_digits(return_X_y=True)
    assert (len(split.train), len(split.test), split.unlabelled) == (1438, 359, None)
    assert split.train.classes == tuple("0123456789")
    assert set(split.train.labels.tolist()) == set(split.test.labels.tolist()) == set(range(10))
    both = np.concatenate([split.train.images, split.test.images]).reshape(-1, 64)
    assert sorted(np.unique(both)) == [round(255 * level / 16) for level in range(17)]
    back = np.rint(both * (16 / 255)).astype(int)
    of = np.concatenate([split.train.labels, split.test.labels])
    given = sorted(
        [*row, label] for row, label in zip(pixels.astype(int).tolist(), labels.tolist())
    )
    assert sorted([*row, label] for row, label in zip(back.tolist(), of.tolist())) == given
    again = load_images("digits")
    np.testing.assert_array_equal(again.test.images, split.test.images)
    half = load_images("digits", test=0.5, size=16)
    assert half.test.images.shape == (898, 16, 16, 1)


def test_scikit_learn_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with raises(ImportError, match=r"pip install 'crl_jax\[experiments\]'"):
        load_images("digits")


def test_loads_arrays_in_memory():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (10, 4, 4), np.uint8)
    labels = np.arange(10)[:, None] % 2
    split = load_images((pixels, labels))
    assert (len(split.train), len(split.test)) == (8, 2)
    assert split.train.classes == ("0", "1")
    together = sorted(np.concatenate([split.train.images, split.test.images])[..., 0].tolist())
    assert together == sorted(pixels.tolist())
    wide = load_images((pixels.astype(np.int64), labels), test=0.5)
    assert len(wide.test) == 4  # of five in each class, as Python rounds 2.5
    assert wide.train.images.dtype == np.uint8
    images = Images(pixels[..., None], labels[:, 0].astype(np.int32), ("no", "yes"))
    assert load_images(images).train.classes == ("no", "yes")
    split = ImageSplit(images, images)
    assert load_images(split).test.images is images.images
    assert load_images(split, size=2).train.images.shape == (10, 2, 2, 1)
    assert load_images((pixels, np.full(10, -1))).test.classes == ()
    split = load_images((np.zeros((12, 8, 8, 3), np.uint8), [0, 5, 900_000, -1] * 3), test=0.5)
    assert split.train.classes == ("0", "5", "900000")
    assert set(split.train.labels.tolist()) == {-1, 0, 1, 2}


BLANK = np.zeros((2, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((np.zeros((2, 4, 4, 3)), [0, 0]), r"`images` .* whole .* np.rint\(255 \* images\)"),
        ((np.full((2, 4, 4), 256), [0, 0]), r"`images` must lie in \[0, 255\], got 256 to 256"),
        ((np.full((2, 4, 4), -1), [0, 0]), r"`images` must lie in \[0, 255\], got -1 to -1"),
        ((np.zeros((2, 4, 4, 2), np.uint8), [0, 0]), r"1 or 3\], got \(2, 4, 4, 2\)"),
        ((BLANK[:, 0], [0, 0]), r"`images` must have shape .* got \(2, 4\)"),
        ((BLANK, [0]), r"`labels` must have shape \(2,\), .* got \(1,\)"),
        ((BLANK, [0, 0.5]), "`labels` must be whole numbers, got float64"),
        ((BLANK, [0, -2]), r"`labels` must lie in \[-1, .*got -2 to 0"),
        ((BLANK, ["a", "b"]), "`labels` must be an array of numbers"),
        (([[[0, 1]], [[0]]], [0, 0]), "`images` must be an array of numbers, of one size"),
        (7, "`source` must be a name, a path, Images, .* got 7"),
        (BLANK, r"`source` must be .* got array\("),
    ],
)
def test_rejects_invalid_sources(source, message):
    with raises(ValueError, match=message):
        load_images(source)


def test_rejects_invalid_options():
    for size in (0, -1, 2.5, "8"):
        with raises(ValueError, match="`size` must be a whole number of pixels"):
            load_images("digits", size=size)
    for share in (0, 1, 1.5, float("nan")):
        with raises(ValueError, match=r"`test` must lie in \(0, 1\)"):
            load_images("digits", test=share)
    with raises(ValueError, match="`test` requires images without a test part"):
        load_images(ImageSplit(make_images(), make_images()), test=0.5)


def test_unknown_name_error_lists_available_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = "digits, cifar10, cifar100, stl10, tiny-imagenet, and tfds:NAME"
    with raises(FileNotFoundError, match=f"{names}.*Did you mean cifar10?"):
        load_images("cifar-10")
    with raises(FileNotFoundError, match=f"no such file.*{names}") as caught:
        load_images("qqqq")
    assert "mean" not in str(caught.value)
    with raises(FileNotFoundError, match="no such file") as caught:
        load_images(tmp_path / "deep" / "cifar10")
    assert "names" not in str(caught.value)
    with raises(FileNotFoundError, match="no such file"):
        load_images("./digits")
