"""Image sets of TensorFlow Datasets, with a stub of the module."""

import sys
import types

import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax.data import DataError, DataWarning, load_images

RNG = np.random.default_rng(0)


def examples(n, side=4, channels=3, first=0):
    return [
        {
            "image": RNG.integers(0, 256, (side, side, channels), np.uint8),
            "label": np.int64(first + i % 2),
            "id": b"x",
        }
        for i in range(n)
    ]


@pytest.fixture
def fake_tfds(monkeypatch):
    """Splits and features that the stub returns, to be filled by the test."""
    module = types.ModuleType("tensorflow_datasets")
    splits, features = {}, {"label": types.SimpleNamespace(names=["no", "yes"])}

    def load(name, *, with_info):
        assert (name, with_info) == ("some/set", True)
        return splits, types.SimpleNamespace(features=features)

    vars(module).update(load=load, as_numpy=iter)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    return splits, features


def test_splits_with_their_images_and_labels(fake_tfds):
    splits, _ = fake_tfds
    splits |= {"test": examples(2), "train": examples(5)}
    splits["unlabelled"] = [{**example, "label": -1} for example in examples(3)]
    split = load_images("tfds:some/set")
    for name, part in split.parts():
        np.testing.assert_array_equal(part.images, [one["image"] for one in splits[name]])
        assert part.labels.tolist() == [one["label"] for one in splits[name]]
        assert part.classes == ("no", "yes")
    assert len(split.unlabelled) == 3
    assert load_images("tfds:some/set", size=2).test.images.shape == (2, 2, 2, 3)


def test_validation_stands_in_for_testing(fake_tfds):
    splits, features = fake_tfds
    features["label"] = object()  # without class names
    splits |= {"train": examples(5, channels=1), "validation": examples(2, channels=1, first=1)}
    split = load_images("tfds:some/set")
    assert split.test.labels.tolist() == [1, 2]
    assert split.train.classes == ("0", "1", "2")
    splits["test"] = examples(3, channels=1)
    splits["extra"] = examples(3, channels=1)
    with pytest.warns(DataWarning, match="some/set: 2 splits are not read: extra, validation"):
        assert len(load_images("tfds:some/set").test) == 3
    with raises(ValueError, match="`test` requires images without a test part"):
        load_images("tfds:some/set", test=0.5)


def test_training_alone_is_split(fake_tfds):
    splits, _ = fake_tfds
    splits["train"] = examples(10)
    split = load_images("tfds:some/set")
    assert np.bincount(split.test.labels).tolist() == [1, 1]
    assert np.bincount(load_images("tfds:some/set", test=0.4).test.labels).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([], "some/set, train: expected images, got none"),
        ([{"image": 0}], "none named label among image"),
        ([{"text": b"", "label": 0}], "none named image among text, label"),
        (examples(1, channels=4), r"image 0: expected uint8 .* got \(4, 4, 4\) of uint8"),
        ([{"image": np.zeros((4, 4, 3)), "label": 0}], "image 0: expected uint8 .* of float64"),
        (examples(1) + examples(1, side=5), r"image 0 has shape \(4, 4, 3\), image 1 \(5, 5, 3\)"),
        (examples(2, first=1), r"train: `labels` must lie in \[-1, 1\], got 1 to 2"),
    ],
)
def test_problems(fake_tfds, train, message):
    fake_tfds[0]["train"] = train
    with raises(DataError, match=message):
        load_images("tfds:some/set")


def test_it_needs_a_split_for_training_and_the_package(fake_tfds, monkeypatch):
    fake_tfds[0]["test"] = examples(1)
    with raises(DataError, match="tfds:some/set: expected a split train, got test"):
        load_images("tfds:some/set")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with raises(ImportError, match=r"pip install 'crl_jax\[tfds\]'"):
        load_images("tfds:mnist")
