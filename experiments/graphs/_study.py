"""What ``python -m experiments.graphs`` trains and judges, see :mod:`experiments._study`."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from crl_jax import metrics, tasks, train

from .. import _truth as truth
from .._knn import knn_among
from .._learned import Learned
from .._registry import filled, settle
from .._rundir import write_arrays
from .._study import Judged, OnStage, Run, Study, fit_run
from .._truth import judge_weights
from ..view_losses import LOSSES, fill_loss, in_words, settle_loss
from . import _training as training
from ._config import FLAGS, SCHEMA, Config, anchor
from ._problem import Problem, load_problem
from ._saved import save_encoder
from .encoders import ENCODERS

EMBEDDING, FEATURES = "embedding.png", "features.npz"
_PICTURED = 1000
"""Graphs in the picture of the embedding."""
_DESCRIPTION = """Learn representations of graphs without labels, by contrasting two views of each
(GraphCL), and judge them by labels: by a cross-validated support vector machine.

  {program}                                   simulated graphs
  {program} --data MUTAG --loss debiased      a folder with graphs of your own
  {program} embed --run DIR --data MUTAG      features of graphs
      (embed --help for more)
"""


class _Classes:
    """Labels and names of classes, of some graphs."""

    def __init__(self, problem: Problem, places: np.ndarray):
        self.labels, self.classes = problem.labels(places), problem.graphs.classes


NAMES = {
    "svm": "accuracy, support vector machine",
    "knn": "accuracy, kNN",
    "alignment": "alignment",
    "uniformity": "uniformity",
    **truth.NAMES,
}
"""The metrics in words."""
_CURVES = {
    "loss": "loss",
    "valid_knn": "accuracy of kNN on the validation part",
    "train_knn": "accuracy of kNN among all graphs",
    "auc": "AUC of the scores, by labels",
    "alpha": "α of the loss",
}


class GraphStudy(Study[Config, Problem]):
    """Representations of graphs, learned from two views of each."""

    schema, flags, description = SCHEMA, FLAGS, _DESCRIPTION
    unit, scores, score = "graphs", ("valid_knn", "train_knn"), "kNN"
    names, curves = NAMES, _CURVES

    def title(self, config: Config) -> str:
        """See :meth:`Study.title`."""
        return config.objective.loss

    def settle(self, config: Config) -> None:
        """See :meth:`Study.settle`."""
        _settle(config)

    def load(self, config: Config, on_stage: OnStage) -> Problem:
        """See :meth:`Study.load`."""
        return load_problem(config.source, on_stage)

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        swept = tuple(SCHEMA.sweep(config.protocol.sweep, config))
        of_loss, of_encoder = _settle(config)
        n_classes = len(problem.graphs.classes)
        config = replace(
            anchor(config),
            objective=fill_loss(config.objective, of_loss, swept, tau_plus=1 / n_classes),
            encoding=filled(config.encoding, of_encoder, swept),
        )
        if len(problem.learn) < config.training.batch_size:
            raise ValueError(
                f"--batch-size must be at most the {len(problem.learn)} graphs that the search "
                f"learns from, got {config.training.batch_size}."
            )
        if config.protocol.given_folds and problem.graphs.folds is None:
            raise ValueError(f"--given-folds: {config.source.data} brings no folds.")
        axes = SCHEMA.sweep(config.protocol.sweep, config)
        training.trace_step(config, problem, {name: v[0] for name, v in axes.items()})
        return config

    def count(self, config: Config, problem: Problem, phase: str, stage: str) -> int:
        """See :meth:`Study.count`."""
        return len(problem.learn if phase == "search" else problem.all)

    def in_words(self, config: Config) -> str:
        """See :meth:`Study.in_words`."""
        swept = tuple(SCHEMA.sweep(config.protocol.sweep, config))
        said = [in_words(config.objective, swept)]
        if "temperature" not in swept:
            said.append(f"temperature={config.training.temperature:g}")
        own = settle("encoder", config.encoding, ENCODERS)
        said.append(f"{config.encoding.encoder} of {own['n_layers']} layers, width {own['width']}")
        return ", ".join(said)

    def describe(self, config: Config, problem: Problem) -> Iterable[str]:
        """See :meth:`Study.describe`."""
        graphs, views = problem.graphs, config.views
        yield (
            f"{len(graphs):,} graphs of {graphs.n_nodes.mean():.1f} nodes and "
            f"{graphs.n_edges.mean():.1f} edges, {graphs.features.shape[1]} features, "
            f"{len(graphs.classes)} classes"
        )
        yield f"views: {', '.join(views.kinds)}, ratio {views.ratio:g}"

    def fit(
        self, config: Config, problem: Problem, run: Run, checkpoints: Path,
        on_entry: Callable[[dict[str, Any]], None],
    ) -> train.FitResult:  # fmt: skip
        """See :meth:`Study.fit`."""
        places = problem.learn if run.phase == "search" else problem.all
        labels = jnp.asarray(problem.labels(places))
        return fit_run(
            training.task_of(config, problem, run.numbers),
            tasks.LabelledExamples(jnp.asarray(places), labels),
            training.accuracy(config, problem, run.phase),
            config, run, checkpoints, on_entry,
        )  # fmt: skip

    def learned(
        self, config: Config, problem: Problem, run: Run, fitted: train.FitResult
    ) -> Learned:
        """See :meth:`Study.learned`."""
        return Learned.of(training.task_of(config, problem, run.numbers), fitted)

    def judge(
        self, config: Config, problem: Problem, learned: Learned, seed: int, on_stage: OnStage
    ) -> Judged:
        """Metrics of the features, and of the weights of the loss.

        After a sweep, the graphs that decided it are left out.
        """
        protocol = config.protocol
        places = problem.all
        if protocol.sweep:
            places = problem.learn
        features, labels = np.asarray(learned.features(places)), problem.labels(places)
        folds = problem.graphs.folds
        svm = metrics.cross_validated_svm(
            features, labels, kernel=protocol.kernel, seed=seed,
            folds=folds[places] if protocol.given_folds and folds is not None else protocol.folds,
        )  # fmt: skip
        on_stage(f"judging seed {seed}: neighbours and views")
        of_knn = knn_among(training.voters(config, problem, places), features)
        found = {"svm": svm.accuracy, "knn": of_knn, **learned.of_views(places, seed)}
        shown = None
        entry = LOSSES[config.objective.loss]
        if entry.weigh is not None:
            truth = judge_weights(entry, learned, places, labels, seed)
            found, shown = {**found, **truth.metrics}, truth.calibration
        return Judged({n: float(value) for n, value in found.items()}, svm.accuracies, shown)

    def keep(self, learned: Learned, folder: Path) -> None:
        """The encoder, and features of all graphs."""
        save_encoder(folder, learned)
        places = np.arange(learned.task.augment.graphs.n, dtype=np.int32)
        write_arrays(folder / FEATURES, features=np.asarray(learned.features(places)))

    def draw(
        self, config: Config, problem: Problem, learned: Learned, judged: Judged, title: str,
        folder: Path,
    ) -> None:  # fmt: skip
        """Graphs in the plane."""
        from .._study_plots import draw_embedding  # Matplotlib takes long to import

        every = max(1, len(problem.all) // _PICTURED)
        places = problem.all[::every][:_PICTURED]
        features = np.asarray(learned.features(places))
        if np.isfinite(features).all():
            title, seed = f"{title}: graphs by t-SNE", config.protocol.seed
            draw_embedding(folder / EMBEDDING, features, _Classes(problem, places), title, seed)


def _settle(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of the flags of loss and encoder.

    Raises:
      ValueError: If one was given, or swept, that is not taken.
    """
    swept = tuple(SCHEMA.sweep(config.protocol.sweep, config))
    of_loss = settle_loss(config.objective, swept)
    return of_loss, settle("encoder", config.encoding, ENCODERS, swept)
