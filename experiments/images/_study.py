"""Study of ``python -m experiments.images``, see :mod:`experiments._study`."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crl_jax import data, tasks, train

from .. import _truth as truth
from .._encoder_file import save_backbone
from .._knn import BANK, KNNBank, train_knn, valid_knn
from .._registry import resolve_flags
from .._schema import absolute
from .._study import Evaluation, OnStage
from .._study_options import refuse_labels
from .._task_study import TaskStudy
from .._trained_model import TrainedModel, measure_views
from .._truth import evaluate_weights
from ..backbones import IMAGE_ENCODERS, check_view_size, make_backbone
from ..configs import cifar10_small, resnet50
from ..view_losses import (
    IMAGE_LOSSES,
    check_tile,
    default_beta,
    default_tau_plus,
    describe_loss,
    loss_arguments,
)
from ._config import SCHEMA, Config
from ._evaluate import evaluate_features
from ._problem import Problem, balanced_indices, labelled, load_problem
from ._views import describe_views, make_views, resolve_views
from .methods import METHODS, Parts

RECIPES: dict[str, Config] = {**resnet50.CONFIGS, **cifar10_small.CONFIGS}
VIEWS, EMBEDDING, POSTERIOR = "views.png", "embedding.png", "posterior.png"
_N_VIEW_IMAGES = 1000
"""Number of images whose views are compared in reports."""
_DESCRIPTION = """Learn representations of images without labels, and evaluate them by labels, if
there are any: by a linear classifier and by nearest neighbours.

  {program}                                   scikit-learn's digits, SimCLR
  {program} --data FOLDER --loss bayesian     your own images
  {program} --recipe NAME [flags]             a published configuration:
      {recipes}
  {program} --config FILE [flags]             a configuration in JSON, TOML or YAML
  {program} embed --run DIR --data FOLDER     features of images
      (embed --help for more)
"""


NAMES = {
    "linear": "accuracy, linear",
    "linear_top5": "accuracy of the five best, linear",
    "linear_augmented": "accuracy, linear as published",
    "linear_augmented_top5": "accuracy of the five best, linear as published",
    "knn": "accuracy, kNN",
    "alignment": "alignment",
    "uniformity": "uniformity",
    **truth.NAMES,
}
"""Display names of the test metrics."""
_CURVES = {
    "loss": "loss",
    "valid_knn": "accuracy of kNN on the validation part",
    "train_knn": "accuracy of kNN among training images",
    "train_alignment": "alignment of views of training images",
    "train_uniformity": "uniformity of training images",
    "auc": "AUC of the scores, by labels",
    "alpha": "α of the loss",
}


class Images(TaskStudy[Config, Problem]):
    """Self-supervised image representations, trained on two views of each image."""

    schema, recipes, description = SCHEMA, RECIPES, _DESCRIPTION
    unit, scores, score = "images", ("valid_knn", "train_knn"), "kNN"
    names, curves = NAMES, _CURVES

    def folder_name(self, config: Config) -> str:
        """See :meth:`Study.folder_name`."""
        return f"images-{config.method.method}-{config.objective.loss}"

    def check(self, config: Config) -> None:
        """See :meth:`Study.check`."""
        name, swept = config.method.method, SCHEMA.axes(config)
        is_temperature_given = config.training.temperature != Config().training.temperature
        if not METHODS[name].takes_temperature and ("temperature" in swept or is_temperature_given):
            raise ValueError(f"--method {name} has no --temperature.")
        if METHODS[name].needs_all and (batches := config.training.batches) != "device":
            raise ValueError(
                f"--method {name} clusters all images, which must be in device memory: omit "
                f"--batches {batches}."
            )
        check_tile(config, IMAGE_LOSSES, None if METHODS[name].takes_tile else f"--method {name}")
        super().check(config)

    def load(self, config: Config, on_stage: OnStage) -> Problem:
        """See :meth:`Study.load`."""
        return load_problem(config.source, on_stage, config.training.batches == "disk")

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        n_classes = len(problem.train.classes)
        if not n_classes:
            name = config.method.method
            label_flags = {
                f"--method {name}": (METHODS[name].needs_labels, "other methods need none")
            }
            refuse_labels(config, self.unit, label_flags, but=("probe", "probe_epochs"))
        source = absolute(config.source, "data", but=("digits", *data.IMAGE_SETS))
        views = resolve_views(config.views, problem.train.images)
        check_view_size(config.encoding, views.view_size)
        config = replace(config, source=replace(source, labels=n_classes > 0), views=views)
        return self.complete_entries(
            config, tau_plus=default_tau_plus(n_classes), beta=default_beta(n_classes)
        )

    def task(self, config: Config, problem: Problem, phase: str, numbers: dict[str, float]) -> Any:
        """See :meth:`TaskStudy.task`."""
        chosen, options = METHODS[config.method.method], config.training
        part = problem.part(phase)
        loss = loss_arguments(config.objective, options.temperature, numbers, IMAGE_LOSSES)
        n_channels = part.images.shape[-1]
        backbone = make_backbone(config.encoding, IMAGE_ENCODERS, n_channels=n_channels)
        views = make_views(config.views)
        parts = Parts(backbone, options.head, views, loss, options.tile, part)
        return chosen.make(parts, **resolve_flags("method", config.method, METHODS, tuple(numbers)))

    def batches(self, config: Config, problem: Problem, phase: str) -> train.ArrayBatches:
        """Returns batches of images, with labels if there are classes."""
        part = problem.part(phase)
        examples = tasks.LabelledExamples(part.images, part.labels)
        return train.ArrayBatches(examples if part.classes else part.images)

    def measure(self, config: Config, problem: Problem, phase: str) -> Any:
        """Returns the measurement of the kNN accuracy, see :func:`valid_knn` and :func:`train_knn`.

        Without labels, returns :func:`measure_views` of training images.
        """
        protocol = config.protocol
        rng = np.random.default_rng(protocol.seed)
        if not problem.train.classes:
            indices = rng.permutation(len(problem.train))[:_N_VIEW_IMAGES]
            return measure_views(problem.train.images[np.sort(indices)], protocol.seed)
        part = labelled(problem.part(phase))
        bank = part.take(balanced_indices(part.labels, min(BANK, len(part)), rng))
        knn_bank = KNNBank(
            bank.images[:], bank.labels, len(bank.classes), protocol.neighbours,
            protocol.knn_temperature,
        )  # fmt: skip
        if phase == "search":
            images: Any = problem.valid.images
            return valid_knn(knn_bank, images, problem.valid.labels)
        return train_knn(knn_bank)

    def describe_training(self, config: Config) -> str:
        """See :meth:`Study.describe_training`."""
        method, swept = METHODS[config.method.method], SCHEMA.axes(config)
        parts = [config.method.method]
        if method.takes_loss:
            parts.append(describe_loss(config.objective, tuple(swept), IMAGE_LOSSES))
        if method.takes_temperature and "temperature" not in swept:
            parts.append(f"temperature={config.training.temperature:g}")
        width = resolve_flags("encoder", config.encoding, IMAGE_ENCODERS).get("width")
        width = f" of width {width}" if width else ""
        parts.append(f"{config.encoding.encoder}{width}")
        return ", ".join(parts)

    def describe_data(self, config: Config, problem: Problem) -> Iterable[str]:
        """See :meth:`Study.describe_data`."""
        height, width, channels = problem.train.images.shape[1:]
        unlabelled, n_classes = int(np.sum(problem.train.labels < 0)), len(problem.train.classes)
        label_note = f" ({unlabelled:,} without a label)" if n_classes and unlabelled else ""
        yield (
            f"{len(problem.train):,} training{label_note} and {len(problem.test):,} test images, "
            f"{height} × {width} × {channels}, "
            f"{f'{n_classes} classes' if n_classes else 'no labels'}"
        )
        yield describe_views(config.views)

    def evaluate(
        self, config: Config, problem: Problem, learned: TrainedModel, seed: int, on_stage: OnStage
    ) -> Evaluation:
        """Evaluates the features, and the weights of the loss with their calibration."""
        evaluation = evaluate_features(
            config.protocol, labelled(problem.train), problem.test, learned, seed,
            on_device=config.training.batches == "device",
        )  # fmt: skip
        entry = IMAGE_LOSSES[config.objective.loss]
        weighs = entry.weigh is not None and METHODS[config.method.method].takes_loss
        if not weighs or not problem.train.classes:
            return evaluation
        known = labelled(problem.test)
        truth = evaluate_weights(entry, learned, known.images, known.labels, seed)
        return Evaluation(evaluation.metrics | truth.metrics, evaluation.cases, truth.calibration)

    def draw_first(
        self, config: Config, problem: Problem, point: dict[str, float], folder: Path
    ) -> None:
        """Draws views of training images."""
        from ._plots import draw_views  # Matplotlib is slow to import

        augment = make_views(config.views)
        draw_views(folder / VIEWS, augment, problem.train, config.protocol.seed)

    def save(self, learned: TrainedModel, folder: Path) -> None:
        """See :meth:`TaskStudy.save`."""
        save_backbone(folder, learned)

    def draw(
        self, config: Config, problem: Problem, learned: TrainedModel, evaluation: Evaluation,
        title: str, folder: Path,
    ) -> None:  # fmt: skip
        """Draws the calibration, if there is one, and a t-SNE plot of test images."""
        from .._plots import draw_embedding, plotted_slice
        from ._plots import draw_posterior

        if evaluation.figure_data is not None:
            draw_posterior(folder / POSTERIOR, evaluation.figure_data, title)
        subset = problem.test.take(plotted_slice(len(problem.test)))
        draw_embedding(
            folder / EMBEDDING, np.asarray(learned.features(subset.images)), subset.labels,
            subset.classes, f"{title}: test images by t-SNE", config.protocol.seed,
        )  # fmt: skip
