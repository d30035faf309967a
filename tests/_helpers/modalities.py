"""Table of the four representation-learning commands, with flags of a small run of each."""

import importlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image

from _helpers.bert import TINY, published
from crl_jax import models

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = ("fine good great", "dull bad poor", "odd new quaint")


@dataclass(frozen=True, eq=False)
class Modality:
    """A command of representation learning.

    Attributes:
      name: The command.
      study: Name of its study.
      small: Flags of a small run; ``DATA`` is replaced by the folder of :func:`write_texts`.
      sweep: A hyper-parameter to sweep, and two of its values.
      score: The validation score that selects the best run.
      metric: A test metric.
      columns: Columns of every history entry.
      metrics: Test metrics of a loss that weights negatives.
      saved: File of the features or weights, and its arrays that a resumed run reproduces.
      stages: Stages of a training and their numbers of epochs.
      n_classes: Number of classes, balanced.
    """

    name: str
    study: str
    small: str
    sweep: tuple[str, float, float]
    score: str
    metric: str
    columns: frozenset[str]
    metrics: frozenset[str]
    saved: tuple[str, ...]
    stages: Mapping[str | None, int]
    n_classes: int

    @cached_property
    def module(self) -> Any:
        """The package of the command."""
        return importlib.import_module(f"experiments.{self.name}")

    def of(self, module: str) -> Any:
        """Imports a module of the command."""
        return importlib.import_module(f"experiments.{self.name}.{module}")

    @property
    def new_study(self) -> Any:
        """A new study of the command."""
        return getattr(self.of("_study"), self.study)()

    def flags(self, data: Any) -> list[str]:
        """Returns the flags of a small run, on texts in the folder ``data``."""
        return shlex.split(self.small.replace("DATA", shlex.quote(str(data))))


TEXT_FLAGS = (
    "--width 4 --n-layers 1 --heads 2 --vocab-size 60 --length 6 --head 3 --batch-size 16 "
    "--epochs 2 --fine-tune-epochs 3"
)
_OF_WEIGHTS = {"posterior_auc", "false_negatives", "false_negative_weight", "alignment"}
MODALITIES = {
    of.name: of
    for of in (
        Modality(
            "images", "Images",
            "--train-images 200 --test-images 100 --width 4 --head 16 8 --batch-size 100 "
            "--epochs 2 --neighbours 5",
            sweep=("beta", 0.6, 0.9),
            score="valid_knn",
            metric="linear",
            columns=frozenset({"loss", "alpha", "auc", "false_negatives"}),
            metrics=frozenset({"knn", "uniformity", *_OF_WEIGHTS}),
            saved=("encoder.npz",),
            stages={None: 2},
            n_classes=10,
        ),
        Modality(
            "graphs", "GraphStudy",
            "--kinds drop_nodes --width 8 --n-layers 1 --head 8 --epochs 2 --folds 3",
            sweep=("ratio", 0.1, 0.3),
            score="valid_knn",
            metric="svm",
            columns=frozenset({"loss", "alpha", "auc", "false_negatives"}),
            metrics=frozenset({"knn", "uniformity", *_OF_WEIGHTS}),
            saved=("features.npz", "features"),
            stages={None: 2},
            n_classes=3,
        ),
        Modality(
            "text", "TextStudy",
            f"{TEXT_FLAGS} --data DATA --pairs DATA/pairs.txt",
            sweep=("fine_tune_lr", 1e-9, 0.05),
            score="valid_accuracy",
            metric="accuracy",
            columns=frozenset(),
            metrics=frozenset({"spearman", "f1", "knn", *_OF_WEIGHTS}),
            saved=("features.npz", "features", "before"),
            stages={"pre-training": 2, "fine-tuning": 3},
            n_classes=3,
        ),
        Modality(
            "pairs", "Pairs",
            "--width 4 --text-vocab-size 60 --text-width 8 --text-n-layers 1 --text-heads 2 "
            "--dim 8 --batch-size 200 --epochs 2",
            sweep=("beta", 0.6, 0.9),
            score="valid_recall@10",
            metric="text_to_image_recall@10",
            columns=frozenset({"temperature", "alpha", "auc", "valid_recall@10"}),
            metrics=frozenset({"zero_shot", "image_uniformity", *_OF_WEIGHTS}),
            saved=("embeddings.npz", "images", "texts"),
            stages={None: 2},
            n_classes=10,
        ),
    )
}  # fmt: skip


def write_texts(folder):
    """Writes texts of three classes with class-specific words, scored pairs, and BERT weights."""
    rng = np.random.default_rng(0)
    for name, n in (("train", 60), ("test", 30)):
        rows = ["text\tlabel"]
        for i in range(n):
            own = WORDS[i % 3].split()
            rows.append(f"{own[rng.integers(3)]} {own[rng.integers(3)]} film {i % 7}\tclass{i % 3}")
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    (folder / "sentences.txt").write_text("".join(f"{x}\n" for x in texts_of(folder, "train")))
    pairs = ["fine film\tgreat film\t5", "dull film\tfine film\t1", "odd film\tnew film\t4",
             "good film\tbad one\t0.5"]  # fmt: skip
    (folder / "pairs.txt").write_text("".join(f"{pair}\n" for pair in pairs))
    (folder / "weights").mkdir()
    np.savez(folder / "weights" / "model.npz", **published(TINY))
    pieces = (*SPECIAL, "film", *(word for words in WORDS for word in words.split()))
    (folder / "weights" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return folder


def texts_of(folder, part="test"):
    """Returns the texts of a part."""
    return [line.split("\t")[0] for line in (folder / f"{part}.tsv").read_text().splitlines()[1:]]


def write_images(folder, pixels, name_of="{:02}.png".format):
    """Writes images as PNG files, named by their index."""
    for i, image in enumerate(pixels):
        path = folder / name_of(i)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return folder


@dataclass(frozen=True)
class PixelEncoder:
    """Normalised linear features of images of 8 × 8 pixels, which compile quickly."""

    width: int
    n_channels: int
    stem: str = ""
    norm: str = ""

    @property
    def n_features(self) -> int:
        """Dimension of the features."""
        return 2 * self.width

    def __call__(self, rngs):
        """Builds the module."""
        from flax import nnx

        class Module(nnx.Module):
            def __init__(self, linear):
                self.linear = linear
                self.remat = "none"

            def __call__(self, images, where=None):
                return self.linear(images.reshape(len(images), -1), where)

        n_in = 64 * self.n_channels
        return Module(models.Projection((self.n_features,), last_norm=True, n_in=n_in)(rngs))


class FirstFeatures:
    """Stub of t-SNE: the first two features."""

    def __init__(self, **settings):
        del settings

    def fit_transform(self, features):
        """Returns the two features of each example."""
        return features[:, :2]
