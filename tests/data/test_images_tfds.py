"""Image datasets of TensorFlow Datasets, with a stub of the module."""

import sys
import types

import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax.data import DataError, DataWarning, load_images

RNG = np.random.default_rng(0)


def examples(n, side=4, channels=3, first=0):
    pixels = RNG.integers(0, 256, (n, side, side, channels), np.uint8)
    return [
        {"image": image, "label": np.int64(first + i % 2), "id": b"x"}
        for i, image in enumerate(pixels)
    ]


@pytest.fixture
def tfds(fake_tfds):
    """Splits and features that the stub returns, to be filled by the test."""
    splits, features = {}, {"label": types.SimpleNamespace(names=["no", "yes"])}

    def load(name, *, with_info):
        assert (name, with_info) == ("some/set", True)
        return splits, types.SimpleNamespace(features=features)

    fake_tfds["load"] = load
    return splits, features


def test_reads_splits_images_and_labels(tfds):
    splits, _ = tfds
    splits |= {"test": examples(2), "train": examples(5)}
    splits["unlabelled"] = [{**example, "label": -1} for example in examples(3)]
    split = load_images("tfds:some/set")
    for name, part in split.parts():
        np.testing.assert_array_equal(part.images, [one["image"] for one in splits[name]])
        assert part.labels.tolist() == [one["label"] for one in splits[name]]
        assert part.classes == ("no", "yes")
    assert len(split.unlabelled) == 3
    assert load_images("tfds:some/set", size=2).test.images.shape == (2, 2, 2, 3)


def test_validation_split_replaces_missing_test_split(tfds):
    splits, features = tfds
    features["label"] = object()  # without class names
    splits |= {"train": examples(5, channels=1), "validation": examples(2, channels=1, first=1)}
    split = load_images("tfds:some/set")
    assert split.test.labels.tolist() == [1, 2]
    assert split.train.classes == ("0", "1", "2")
    splits |= {"test": examples(3, channels=1), "extra": examples(3, channels=1)}
    with pytest.warns(DataWarning, match="some/set: 2 splits are not read: extra, validation"):
        assert len(load_images("tfds:some/set").test) == 3
    with raises(ValueError, match="`test` requires images without a test part"):
        load_images("tfds:some/set", test=0.5)


@pytest.mark.parametrize(("share", "counts"), [(None, [1, 1]), (0.4, [2, 2])])
def test_splits_training_data_without_test_split(tfds, share, counts):
    tfds[0]["train"] = examples(10)
    split = load_images("tfds:some/set", test=share)
    assert np.bincount(split.test.labels).tolist() == counts


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (None, "tfds:some/set: expected a split train, got test"),
        ([], "some/set, train: expected images, got none"),
        ([{"image": 0}], "none named label among image"),
        ([{"text": b"", "label": 0}], "none named image among text, label"),
        (examples(1, channels=4), r"image 0: expected uint8 .* got \(4, 4, 4\) of uint8"),
        ([{"image": np.zeros((4, 4, 3)), "label": 0}], "image 0: expected uint8 .* of float64"),
        (examples(1) + examples(1, side=5), r"image 0 has shape \(4, 4, 3\), image 1 \(5, 5, 3\)"),
        (examples(2, first=1), r"train: `labels` must lie in \[-1, 1\], got 1 to 2"),
    ],
)
def test_rejects_invalid_datasets(tfds, train, message):
    tfds[0].update({"test": examples(1)} if train is None else {"train": train})
    with raises(DataError, match=message):
        load_images("tfds:some/set")


def test_requires_tensorflow_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with raises(ImportError, match=r"pip install 'crl_jax\[tfds\]'"):
        load_images("tfds:mnist")
