"""What ``python -m experiments.images`` trains and judges, see :mod:`experiments._study`."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crl_jax import train

from .. import _truth as truth
from .._encoder_file import save_backbone
from .._learned import Learned
from .._registry import filled, settle
from .._study import Judged, OnStage, Run, Study, fit_run
from .._truth import judge_weights
from ..view_losses import LOSSES, fill_loss, settle_loss, share_of_classes
from ..view_losses import in_words as loss_in_words
from . import _training as training
from ._config import FLAGS, SCHEMA, Config, anchor
from ._judge import judge
from ._problem import Problem, labelled, load_problem
from ._unlabelled import refuse_labels
from ._views import in_words, settle_views
from .encoders import ENCODERS
from .methods import METHODS
from .recipes import RECIPES

VIEWS, EMBEDDING, POSTERIOR = "views.png", "embedding.png", "posterior.png"
_PICTURED = 1000
"""Test images in the picture of the embedding."""
_DESCRIPTION = """Learn representations of images without labels, and judge them by labels, if there
are some: by a linear classifier on them, and by the vote of the nearest images.

  {program}                                   scikit-learn's digits, SimCLR
  {program} --data FOLDER --loss bayesian     your own images
  {program} --recipe NAME [flags]             a published configuration:
      {recipes}
  {program} embed --run DIR --data FOLDER     features of images
      (embed --help for more)
"""


NAMES = {
    "linear": "accuracy, linear",
    "linear_top5": "accuracy of the five best, linear",
    "linear_published": "accuracy, linear as published",
    "knn": "accuracy, kNN",
    "alignment": "alignment",
    "uniformity": "uniformity",
    **truth.NAMES,
}
"""The test metrics in words."""
_CURVES = {
    "loss": "loss",
    "valid_knn": "accuracy of kNN on the validation part",
    "train_knn": "accuracy of kNN among training images",
    "train_alignment": "alignment of views of training images",
    "train_uniformity": "uniformity of training images",
    "auc": "AUC of the scores, by labels",
    "alpha": "α of the loss",
}


class Images(Study[Config, Problem]):
    """Representations of images, learned from two views of each."""

    schema, flags, recipes, description = SCHEMA, FLAGS, RECIPES, _DESCRIPTION
    unit, scores, score = "images", ("valid_knn", "train_knn"), "kNN"
    names, curves = NAMES, _CURVES

    def title(self, config: Config) -> str:
        """See :meth:`Study.title`."""
        return f"{config.method.method}-{config.objective.loss}"

    def settle(self, config: Config) -> None:
        """See :meth:`Study.settle`."""
        _settle(config)

    def load(self, config: Config, on_stage: OnStage) -> Problem:
        """See :meth:`Study.load`."""
        return load_problem(config.source, on_stage)

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        swept = tuple(SCHEMA.sweep(config.protocol.sweep, config))
        of_method, of_loss, of_encoder = _settle(config)
        n_classes = len(problem.train.classes)
        if not n_classes:
            refuse_labels(config)
        config = anchor(config)
        config = replace(
            config,
            source=replace(config.source, labels=n_classes > 0),
            views=settle_views(config.views, problem.train.images),
            method=filled(config.method, of_method, swept),
            objective=fill_loss(
                config.objective, of_loss, swept, tau_plus=share_of_classes(n_classes)
            ),
            encoding=filled(config.encoding, of_encoder, swept),
        )
        if len(problem.learn) < config.training.batch_size:
            raise ValueError(
                f"--batch-size must be at most the {len(problem.learn)} images that the search "
                f"learns from, got {config.training.batch_size}."
            )
        axes = SCHEMA.sweep(config.protocol.sweep, config)
        training.trace_step(config, problem.train, {name: v[0] for name, v in axes.items()})
        return config

    def count(self, config: Config, problem: Problem, phase: str, stage: str) -> int:
        """See :meth:`Study.count`."""
        return len(problem.learn if phase == "search" else problem.train)

    def in_words(self, config: Config) -> str:
        """See :meth:`Study.in_words`."""
        method, swept = METHODS[config.method.method], SCHEMA.sweep(config.protocol.sweep, config)
        said = [config.method.method]
        if method.takes_loss:
            said.append(loss_in_words(config.objective, tuple(swept)))
        if method.takes_temperature and "temperature" not in swept:
            said.append(f"temperature={config.training.temperature:g}")
        width = settle("encoder", config.encoding, ENCODERS).get("width")
        width = f" of width {width}" if width else ""
        said.append(f"{config.encoding.encoder}{width}")
        return ", ".join(said)

    def describe(self, config: Config, problem: Problem) -> Iterable[str]:
        """See :meth:`Study.describe`."""
        height, width, channels = problem.train.images.shape[1:]
        unlabelled, n_classes = int(np.sum(problem.train.labels < 0)), len(problem.train.classes)
        of_which = f" ({unlabelled:,} without a label)" if n_classes and unlabelled else ""
        yield (
            f"{len(problem.train):,} training{of_which} and {len(problem.test):,} test images, "
            f"{height} × {width} × {channels}, "
            f"{f'{n_classes} classes' if n_classes else 'no labels'}"
        )
        yield in_words(config.views)

    def fit(
        self, config: Config, problem: Problem, run: Run, checkpoints: Path,
        on_entry: Callable[[dict[str, Any]], None],
    ) -> train.FitResult:  # fmt: skip
        """See :meth:`Study.fit`."""
        part = problem.learn if run.phase == "search" else problem.train
        return fit_run(
            training.task_of(config, part, run.numbers),
            training.examples_of(part),
            training.measured(config, problem, run.phase),
            config, run, checkpoints, on_entry,
        )  # fmt: skip

    def learned(
        self, config: Config, problem: Problem, run: Run, fitted: train.FitResult
    ) -> Learned:
        """See :meth:`Study.learned`."""
        task = training.task_of(config, problem.train, run.numbers)
        return Learned.of(task, fitted)

    def judge(
        self, config: Config, problem: Problem, learned: Learned, seed: int, on_stage: OnStage
    ) -> Judged:
        """Metrics of the features, and of the weights of the loss; its calibration is shown."""
        found = judge(config.protocol, problem.labelled, problem.test, learned, seed)
        entry = LOSSES[config.objective.loss]
        weighs = entry.weigh is not None and METHODS[config.method.method].takes_loss
        if not weighs or not problem.train.classes:
            return Judged(*found)
        known = labelled(problem.test)
        truth = judge_weights(entry, learned, known.images, known.labels, seed)
        return Judged(found.metrics | truth.metrics, found.right, truth.calibration)

    def draw_first(
        self, config: Config, problem: Problem, point: dict[str, float], folder: Path
    ) -> None:
        """Views as they are made."""
        from ._plots import draw_views  # Matplotlib takes long to import

        task = training.task_of(config, problem.train, point)
        draw_views(folder / VIEWS, task.augment, problem.train, config.protocol.seed)

    def keep(self, learned: Learned, folder: Path) -> None:
        """See :meth:`Study.keep`."""
        save_backbone(folder, learned)

    def draw(
        self, config: Config, problem: Problem, learned: Learned, judged: Judged, title: str,
        folder: Path,
    ) -> None:  # fmt: skip
        """The calibration, if there is one, and test images in the plane."""
        from .._study_plots import draw_embedding
        from ._plots import draw_posterior

        if judged.shown is not None:
            draw_posterior(folder / POSTERIOR, judged.shown, title)
        pictured = problem.test.take(slice(_PICTURED))
        features = np.asarray(learned.features(pictured.images))
        if np.isfinite(features).all():
            title, seed = f"{title}: test images by t-SNE", config.protocol.seed
            draw_embedding(folder / EMBEDDING, features, pictured, title, seed)


def _settle(config: Config) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The values of the flags of method, loss and encoder.

    Raises:
      ValueError: If one was given, or swept, that is not taken.
    """
    swept = tuple(SCHEMA.sweep(config.protocol.sweep, config))
    method = METHODS[config.method.method]
    if not method.takes_temperature and (
        "temperature" in swept or config.training.temperature != Config().training.temperature
    ):
        raise ValueError(f"--method {config.method.method} has no --temperature.")
    return (
        settle("method", config.method, METHODS, swept),
        settle_loss(config.objective, swept),
        settle("encoder", config.encoding, ENCODERS, swept),
    )
