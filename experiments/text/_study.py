"""What ``python -m experiments.text`` trains and judges, see :mod:`experiments._study`."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import _truth as truth
from .._bert import layers, settled
from .._registry import filled, settle
from .._rundir import write_arrays
from .._study import Judged, OnStage, Run, Study
from ..view_losses import fill_loss, in_words, settle_loss, share_of_classes
from . import _training as training
from ._config import FLAGS, SCHEMA, Config, anchor
from ._judge import TextLearned, judge, judge_weights
from ._problem import Problem, load_problem
from ._reports import part_of
from ._saved import save_encoder
from ._unlabelled import refuse_labels
from .losses import LOSSES
from .methods import METHODS
from .recipes import RECIPES

EMBEDDING, FEATURES = "embedding.png", "features.npz"
_PICTURED = 1000
"""Test texts in the picture of the embedding."""
_RATE, _RATE_OF_WEIGHTS = 1e-3, 5e-5
_DESCRIPTION = """Pre-train an encoder of texts by contrast, with pairs of one class or without
labels (SimCSE), fine-tune it, and judge it by a test part.

  {program}                                   sentences of docstrings, a small encoder
  {program} --data FOLDER --weights FOLDER    your own texts, published weights
  {program} --method none                     fine-tuning alone, to compare with
  {program} --recipe NAME [flags]             a published configuration:
      {recipes}
  {program} embed --run DIR --texts FILE      features of texts
      (embed --help for more)
"""


NAMES = {
    "accuracy": "accuracy",
    "precision": "precision, mean of classes",
    "recall": "recall, mean of classes",
    "f1": "F1, mean of classes",
    "knn": "accuracy, kNN before fine-tuning",
    "alignment": "alignment of classes",
    "dropout_alignment": "alignment of two dropouts",
    "uniformity": "uniformity",
    "spearman": "Spearman's correlation of pairs",
    **truth.NAMES,
}
"""The test metrics in words."""
_CURVES = {
    "loss": "loss of pre-training",
    "valid_knn": "accuracy of kNN on the validation part",
    "train_knn": "accuracy of kNN among training texts",
    "train_dropout_alignment": "alignment of two dropouts of training texts",
    "train_uniformity": "uniformity of training texts",
    "auc": "AUC of the scores, by labels",
    "alpha": "α of the loss",
    "fine_tune_loss": "loss of fine-tuning",
    "train_accuracy": "accuracy on the training part, with dropout",
    "valid_accuracy": "accuracy on the validation part",
}


class TextStudy(Study[Config, Problem]):
    """Encoders of texts, pre-trained by contrast and fine-tuned."""

    schema, flags, recipes, description = SCHEMA, FLAGS, RECIPES, _DESCRIPTION
    unit, scores, score = "texts", ("valid_accuracy", "valid_knn", "train_knn"), "accuracy"
    names, curves = NAMES, _CURVES
    stages = (training.PRE_TRAINING, training.FINE_TUNING)

    def title(self, config: Config) -> str:
        """See :meth:`Study.title`."""
        method = config.method.method
        return f"{method}-{config.objective.loss}" if METHODS[method].make else method

    def settle(self, config: Config) -> None:
        """See :meth:`Study.settle`."""
        _settle(config)

    def load(self, config: Config, on_stage: OnStage) -> Problem:
        """See :meth:`Study.load`."""
        return load_problem(config.source, config.encoding, on_stage)

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        axes = SCHEMA.sweep(config.protocol.sweep, config)
        swept = tuple(axes)
        of_method, of_loss = _settle(config)
        pretrains = METHODS[config.method.method].make is not None
        config = replace(
            anchor(config),
            encoding=replace(config.encoding, **settled(config.encoding, problem.encoder)),
            method=filled(config.method, of_method, swept),
            training=filled(config.training, _rates(config, problem), swept),
        )
        if not problem.train.classes:
            refuse_labels(config)
        if axes and (not len(problem.valid) or len(np.unique(problem.learn.labelled.labels)) < 2):
            raise ValueError(
                "--valid leaves nothing to decide a --sweep on, or less than two classes to learn "
                "from."
            )
        if not pretrains:
            return config
        n_classes = len(problem.train.classes)
        config = replace(
            config,
            objective=fill_loss(
                config.objective, of_loss, swept, tau_plus=share_of_classes(n_classes)
            ),
        )
        phase = "search" if axes else "final"
        n = len(training.pre_trained_on(config, problem, phase))
        if n < config.training.batch_size:
            raise ValueError(
                f"--batch-size must be at most the {n} texts that pre-training learns from, "
                f"got {config.training.batch_size}."
            )
        training.trace_step(config, problem, phase, {name: v[0] for name, v in axes.items()})
        return config

    def count(self, config: Config, problem: Problem, phase: str, stage: str) -> int:
        """See :meth:`Study.count`."""
        if stage == training.FINE_TUNING:
            return len(part_of(problem, phase).labelled)
        return training.batches_of(config, problem, phase).n

    def epochs(self, config: Config, stage: str) -> int:
        """See :meth:`Study.epochs`."""
        of = config.training
        return of.fine_tune_epochs if stage == training.FINE_TUNING else of.epochs

    def decided_by(self, config: Config) -> str:
        """See :meth:`Study.decided_by`."""
        return "valid_accuracy" if config.training.fine_tune_epochs else "valid_knn"

    def in_words(self, config: Config) -> str:
        """See :meth:`Study.in_words`."""
        swept = tuple(SCHEMA.sweep(config.protocol.sweep, config))
        own = settle("method", config.method, METHODS, swept)
        said = ["no pre-training"]
        if METHODS[config.method.method].make is not None:
            said = [config.method.method, in_words(config.objective, swept, LOSSES)]
            if "temperature" not in swept:
                said.append(f"temperature={own['temperature']:g}")
        if n := config.training.fine_tune_epochs:
            said.append(f"fine-tuned for {n} epoch{'s' if n > 1 else ''}")
        return ", ".join(said)

    def describe(self, config: Config, problem: Problem) -> Iterable[str]:
        """See :meth:`Study.describe`."""
        n, n_known = len(problem.train), len(problem.train.labelled)
        n_classes = len(problem.train.classes)
        of_which = f" ({n_known:,} with a label)" if n_classes and n_known < n else ""
        yield (
            f"{n:,} training{of_which} and {len(problem.test):,} test texts, "
            f"{f'{n_classes} classes' if n_classes else 'no labels'}; "
            f"{problem.n_cut / n:.1%} are cut at {config.source.length} tokens"
        )
        settings = problem.encoder.settings
        weights = "random weights"
        if config.encoding.weights is not None:
            weights = f"weights of {Path(config.encoding.weights).name}"
        yield (
            f"encoder of {layers(settings.n_layers)}, width {settings.width}, "
            f"{len(problem.encoder.words):,} pieces of words; {weights}"
        )

    def fit(
        self, config: Config, problem: Problem, run: Run, checkpoints: Path,
        on_entry: Callable[[dict[str, Any]], None],
    ) -> training.Trained:  # fmt: skip
        """See :meth:`Study.fit`."""
        return training.fit(config, problem, run, checkpoints, on_entry)

    def learned(
        self, config: Config, problem: Problem, run: Run, fitted: training.Trained
    ) -> TextLearned:
        """See :meth:`Study.learned`."""
        return TextLearned.of(problem, fitted)

    def judge(
        self, config: Config, problem: Problem, learned: TextLearned, seed: int, on_stage: OnStage
    ) -> Judged:
        """Metrics of the classifier and of the features, and of the weights of the loss."""
        found, right = judge(config, learned, seed)
        shown, entry = None, LOSSES[config.objective.loss]
        if learned.contrast is not None and entry.weigh is not None and problem.train.classes:
            truth = judge_weights(entry, learned.contrast, learned.test, seed)
            found, shown = found | truth.metrics, truth.calibration
        return Judged(found, right, shown)

    def keep(self, learned: TextLearned, folder: Path) -> None:
        """The encoder, and features of the test texts before and after fine-tuning."""
        save_encoder(folder, learned)
        write_arrays(
            folder / FEATURES,
            features=np.asarray(learned.features), before=np.asarray(learned.features_before),
            labels=learned.test.labels, classes=np.array(learned.test.classes, np.str_),
        )  # fmt: skip

    def draw(
        self, config: Config, problem: Problem, learned: TextLearned, judged: Judged, title: str,
        folder: Path,
    ) -> None:  # fmt: skip
        """Test texts in the plane."""
        from .._study_plots import draw_embedding  # Matplotlib takes long to import

        some = slice(None, None, max(1, len(learned.test) // _PICTURED))
        features = np.asarray(learned.features)[some][:_PICTURED]
        if np.isfinite(features).all():
            title, seed = f"{title}: test texts by t-SNE", config.protocol.seed
            pictured = learned.test.take(some).take(slice(_PICTURED))
            draw_embedding(folder / EMBEDDING, features, pictured, title, seed)


def _settle(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of the flags of method and loss.

    Raises:
      ValueError: If one was given, or swept, that is not taken.
    """
    swept = tuple(SCHEMA.sweep(config.protocol.sweep, config))
    of_loss = settle_loss(config.objective, swept, LOSSES)
    return settle("method", config.method, METHODS, swept), of_loss


def _rates(config: Config, problem: Problem) -> dict[str, float]:
    """The learning rates that were left out, of the stages that there are."""
    options = config.training
    rate = _RATE if problem.encoder.params is None else _RATE_OF_WEIGHTS
    is_used = {
        "lr": METHODS[config.method.method].make is not None,
        "fine_tune_lr": options.fine_tune_epochs > 0,
    }
    return {name: rate for name, used in is_used.items() if used and getattr(options, name) is None}
