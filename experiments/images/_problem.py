"""Loading, subsampling and splitting of the images of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from crl_jax import data

from ._config import DataOptions

_VALID = 0.1


@dataclass(frozen=True)
class Problem:
    """The images of a run. Datasets without any label have no classes.

    Attributes:
      train: Training images of the final model: the training part, and unlabelled images.
      test: Test images, evaluated once, at the end.
      learn: Training images of the hyper-parameter search.
      valid: Validation images of the search; empty without labels.
    """

    train: data.Images
    test: data.Images
    learn: data.Images
    valid: data.Images

    def part(self, phase: str) -> data.Images:
        """Returns the training images of a phase."""
        return self.learn if phase == "search" else self.train


def load_problem(
    options: DataOptions, on_stage: Callable[[str], None], on_disk: bool = False
) -> Problem:
    """Reads the images and draws the requested subsets, whose pixels may remain on disk.

    Raises:
      ValueError: If there are fewer images than requested, or a part of a labelled dataset has no
        labels.
      DataError: If the images cannot be read.
    """
    on_stage("reading the images")
    split = data.load_images(
        options.data, size=options.image_size, labelled=options.labels, on_disk=on_disk
    )
    seeds = np.random.default_rng(options.split_seed).spawn(3)
    train = sample_images("train_images", split.train, options.train_images, seeds[0])
    test = sample_images("test_images", split.test, options.test_images, seeds[1])
    learn, valid = train, train.take(slice(0))
    if train.classes:
        for name, part in (("training", train), ("test", test)):
            if not (part.labels >= 0).any():
                raise ValueError(
                    f"--data {options.data}: the {name} part has no labels for the "
                    "evaluation; --labels False evaluates without."
                )
        share = _VALID if options.valid_fraction is None else options.valid_fraction
        held_out = np.zeros(len(train), bool)
        held_out[
            balanced_indices(train.labels, round(share * np.sum(train.labels >= 0)), seeds[2])
        ] = True
        if not held_out.any() or held_out.all():
            raise ValueError(
                f"--valid-fraction {share:g} of {len(train)} images leaves no training "
                "or no validation part."
            )
        learn, valid = train.take(~held_out), train.take(held_out)
    if split.unlabelled is not None:
        train, learn = (concatenate_images(part, split.unlabelled) for part in (train, learn))
    return Problem(train, test, learn, valid)


def sample_images(name: str, images: data.Images, n: int | None, rng: Any) -> data.Images:
    """Returns ``n`` images sampled evenly across classes, in their original order; all if None."""
    if n is None:
        return images
    if n > len(images):
        raise ValueError(f"`{name}` must be at most {len(images)}, got {n}.")
    return images.take(np.sort(balanced_indices(images.labels, n, rng)))


def balanced_indices(labels: np.ndarray, n: int, rng: Any) -> np.ndarray:
    """Returns the indices of ``n`` random examples, balanced across classes where possible."""
    order = rng.permutation(len(labels))
    order = order[labels[order] >= 0] if (labels >= 0).sum() >= n else order
    ordered_labels = labels[order]
    by_class = np.argsort(ordered_labels, kind="stable")
    starts = np.searchsorted(ordered_labels[by_class], ordered_labels[by_class])
    class_rank = np.empty(len(order), int)
    class_rank[by_class] = np.arange(len(order)) - starts  # rank of each example within its class
    return order[np.argsort(class_rank, kind="stable")[:n]]


def labelled(images: data.Images) -> data.Images:
    """Returns the labelled images."""
    known = images.labels >= 0
    return images if known.all() else images.take(known)


def concatenate_images(first: data.Images, second: data.Images) -> data.Images:
    """Concatenates two sets of images, without file names."""
    pixels: Any = [first.images, second.images]
    concatenate = (
        np.concatenate if isinstance(pixels[0], np.ndarray) else data.DiskArray.concatenate
    )
    return data.Images(
        concatenate(pixels), np.concatenate([first.labels, second.labels]), first.classes
    )
