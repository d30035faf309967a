"""Study of ``python -m experiments.graphs``, see :mod:`experiments._study`."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crl_jax import augment, data, metrics, models, tasks, train

from .. import _truth as truth
from .._knn import BANK, KNNBank, knn_among, train_knn, valid_knn
from .._registry import resolve_flags
from .._rundir import write_arrays
from .._schema import absolute
from .._study import Evaluation, OnStage, Run
from .._task_study import TaskStudy
from .._truth import evaluate_weights
from ..backbones import GRAPH_ENCODERS, make_backbone
from ..view_losses import LOSSES, check_tile, describe_loss, loss_arguments
from ._config import SCHEMA, Config, DataOptions, ProtocolOptions
from ._embed import save_encoder
from ._host import GraphRows, RowViews, TrainedGraphModel, graph_sizes, measure_on

EMBEDDING, FEATURES = "embedding.png", "features.npz"
_DESCRIPTION = """Learn representations of graphs without labels, by contrasting two views of
each (GraphCL), and evaluate them by labels: by a cross-validated support vector machine.

  {program}                                   simulated graphs
  {program} --data MUTAG --loss debiased      a folder with graphs of your own
  {program} --config FILE [flags]             a configuration in JSON, TOML or YAML
  {program} embed --run DIR --data MUTAG      features of graphs
      (embed --help for more)
"""

NAMES = {
    "svm": "accuracy, support vector machine",
    "knn": "accuracy, kNN",
    "alignment": "alignment",
    "uniformity": "uniformity",
    **truth.NAMES,
}
"""Display names of the metrics."""
_CURVES = {
    "loss": "loss",
    "valid_knn": "accuracy of kNN on the validation part",
    "train_knn": "accuracy of kNN among all graphs",
    "auc": "AUC of the scores, by labels",
    "alpha": "α of the loss",
}


@dataclass(frozen=True)
class Problem:
    """The graphs of a run. An example is the index of a graph.

    Attributes:
      graphs: All graphs. The final model trains on all of them, without their labels.
      learn: Indices of the training graphs of the hyper-parameter search.
      valid: Indices of the validation graphs of the search.
    """

    graphs: data.Graphs
    learn: np.ndarray
    valid: np.ndarray

    @cached_property
    def arrays(self) -> models.GraphArrays:
        """The graphs on the device."""
        return models.GraphArrays.from_graphs(self.graphs)

    @property
    def all(self) -> np.ndarray:
        """Indices of all graphs."""
        return np.arange(len(self.graphs), dtype=np.int32)

    def labels(self, indices: np.ndarray) -> np.ndarray:
        """Returns the class labels of the graphs at these indices."""
        return self.graphs.labels[indices]


def load_problem(options: DataOptions, has_search: bool, on_stage: OnStage) -> Problem:
    """Reads the graphs and draws the validation split.

    Raises:
      ValueError: If there are too few graphs for the validation part of a search.
      DataError: If the graphs cannot be read.
    """
    on_stage("reading the graphs")
    graphs = data.load_graphs(options.data, features=options.features)
    order = np.random.default_rng(options.split_seed).permutation(len(graphs)).astype(np.int32)
    n_valid = round(options.valid_fraction * len(graphs))
    if has_search and not 0 < n_valid < len(graphs):
        raise ValueError(
            f"--valid-fraction {options.valid_fraction:g} of {len(graphs)} graphs leaves no "
            "training or no validation part."
        )
    learn, valid = np.sort(order[n_valid:]), np.sort(order[:n_valid])
    return Problem(graphs, learn, valid)


def _evaluated(config: Config, problem: Problem) -> np.ndarray:
    """Returns the graphs of the evaluation: all, or without validation graphs after a sweep."""
    return problem.learn if config.protocol.sweep else problem.all


def _check_folds(folds: int, labels: np.ndarray) -> None:
    """Raises ``ValueError`` unless each fold can have a graph of each class."""
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < folds:
        raise ValueError(
            f"--folds must be at most {counts.min()}, the number of graphs of class "
            f"{classes[np.argmin(counts)]}, got {folds}."
        )


class GraphStudy(TaskStudy[Config, Problem]):
    """Self-supervised graph representations, trained on two views of each graph."""

    schema, description = SCHEMA, _DESCRIPTION
    unit, scores, score = "graphs", ("valid_knn", "train_knn"), "kNN"
    names, curves = NAMES, _CURVES

    def check(self, config: Config) -> None:
        """See :meth:`Study.check`."""
        super().check(config)
        check_tile(config)
        protocol = config.protocol
        if protocol.given_folds and protocol.folds != ProtocolOptions.folds:
            raise ValueError(
                f"--given-folds: the data have their own; omit --folds {protocol.folds}."
            )

    def load(self, config: Config, on_stage: OnStage) -> Problem:
        """See :meth:`Study.load`."""
        return load_problem(config.source, bool(config.protocol.sweep), on_stage)

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        if config.protocol.given_folds and problem.graphs.folds is None:
            raise ValueError(f"--given-folds: {config.source.data} brings no folds.")
        if not config.protocol.given_folds:
            _check_folds(config.protocol.folds, problem.labels(_evaluated(config, problem)))
        source = absolute(config.source, "data", but=("simulated",))
        tau_plus = 1 / len(problem.graphs.classes)
        return self.complete_entries(replace(config, source=source), tau_plus=tau_plus)

    def task(
        self, config: Config, problem: Problem, phase: str, numbers: dict[str, float]
    ) -> tasks.SimCLR:
        """See :meth:`TaskStudy.task`."""
        options = config.training
        n_in = problem.graphs.features.shape[1]
        backbone = make_backbone(config.encoding, GRAPH_ENCODERS, n_in=n_in)
        head = models.Projection(options.head, norm=False)
        on_host = _on_host(config)
        views = augment.GraphAugmentation(
            graph_sizes(problem.graphs) if on_host else problem.arrays,
            config.views.kinds,
            numbers.get("ratio", config.views.ratio),
            config.views.add,
        )
        return tasks.SimCLR(
            models.Network(models.BackboneWithHead(backbone, head)),
            RowViews(views) if on_host else views,
            **loss_arguments(config.objective, options.temperature, numbers),
            tile=options.tile,
        )

    def batches(self, config: Config, problem: Problem, phase: str) -> train.ArrayBatches:
        """See :meth:`TaskStudy.batches`."""
        indices = problem.learn if phase == "search" else problem.all
        examples: Any = GraphRows(problem.graphs, indices) if _on_host(config) else indices
        return train.ArrayBatches(tasks.LabelledExamples(examples, problem.labels(indices)))

    def measure(self, config: Config, problem: Problem, phase: str) -> Any:
        """Returns the measurement of the kNN accuracy, see :func:`valid_knn`, :func:`train_knn`."""
        indices = (problem.learn if phase == "search" else problem.all)[:BANK]
        bank, valid = _make_bank(config, problem, indices), problem.valid
        on_host = _on_host(config)
        if on_host:
            bank = bank._replace(examples=np.arange(len(indices), dtype=np.int32))
        if phase != "search":
            measure = train_knn(bank)
        else:
            valid_rows = np.arange(len(indices), len(indices) + len(valid), dtype=np.int32)
            measure = valid_knn(bank, valid_rows if on_host else valid, problem.labels(valid))
            indices = np.concatenate([indices, valid])
        return measure_on(problem.graphs.take(indices), measure) if on_host else measure

    def describe_training(self, config: Config) -> str:
        """See :meth:`Study.describe_training`."""
        swept = tuple(SCHEMA.axes(config))
        parts = [describe_loss(config.objective, swept)]
        if "temperature" not in swept:
            parts.append(f"temperature={config.training.temperature:g}")
        flags = resolve_flags("encoder", config.encoding, GRAPH_ENCODERS)
        parts.append(
            f"{config.encoding.encoder} of {flags['n_layers']} layers, width {flags['width']}"
        )
        return ", ".join(parts)

    def describe_data(self, config: Config, problem: Problem) -> Iterable[str]:
        """See :meth:`Study.describe_data`."""
        graphs, views = problem.graphs, config.views
        yield (
            f"{len(graphs):,} graphs of {graphs.n_nodes.mean():.1f} nodes and "
            f"{graphs.n_edges.mean():.1f} edges, {graphs.features.shape[1]} features, "
            f"{len(graphs.classes)} classes"
        )
        ratio = "of the sweep" if "ratio" in SCHEMA.axes(config) else f"{views.ratio:g}"
        yield f"views: {', '.join(views.kinds)}, ratio {ratio}"

    def trained(
        self, config: Config, problem: Problem, run: Run, fitted: train.FitResult
    ) -> TrainedGraphModel:
        """See :meth:`Study.trained`."""
        learned = super().trained(config, problem, run, fitted)
        return TrainedGraphModel(learned.task, learned.params, learned.model_state, problem.graphs)

    def evaluate(
        self,
        config: Config,
        problem: Problem,
        learned: TrainedGraphModel,
        seed: int,
        on_stage: OnStage,
    ) -> Evaluation:
        """Evaluates the features, and the weights of the loss.

        After a sweep, its validation graphs are excluded.
        """
        protocol, indices = config.protocol, _evaluated(config, problem)
        features, labels = np.asarray(learned.features(indices)), problem.labels(indices)
        folds = problem.graphs.folds
        svm = metrics.cross_validated_svm(
            features, labels, kernel=protocol.kernel, seed=seed,
            folds=folds[indices] if protocol.given_folds and folds is not None else protocol.folds,
        )  # fmt: skip
        on_stage(f"evaluating seed {seed}: neighbours and views")
        knn = knn_among(_make_bank(config, problem, indices), features)
        results = {"svm": svm.accuracy, "knn": knn, **learned.view_metrics(indices, seed)}
        calibration = None
        entry = LOSSES[config.objective.loss]
        if entry.weigh is not None:
            truth = evaluate_weights(entry, learned, indices, labels, seed)
            results, calibration = {**results, **truth.metrics}, truth.calibration
        return Evaluation(
            {n: float(value) for n, value in results.items()}, svm.accuracies, calibration
        )

    def save(self, learned: TrainedGraphModel, folder: Path) -> None:
        """Writes the encoder, and the features of all graphs."""
        save_encoder(folder, learned)
        indices = np.arange(len(learned.graphs), dtype=np.int32)
        write_arrays(folder / FEATURES, features=np.asarray(learned.features(indices)))

    def draw(
        self, config: Config, problem: Problem, learned: TrainedGraphModel, evaluation: Evaluation,
        title: str, folder: Path,
    ) -> None:  # fmt: skip
        """Draws a t-SNE plot of graphs."""
        from .._plots import draw_embedding, plotted_slice  # Matplotlib is slow to import

        indices = problem.all[plotted_slice(len(problem.all))]
        draw_embedding(
            folder / EMBEDDING, np.asarray(learned.features(indices)), problem.labels(indices),
            problem.graphs.classes, f"{title}: graphs by t-SNE", config.protocol.seed,
        )  # fmt: skip


def _on_host(config: Config) -> bool:
    return config.training.batches == "host"


def _make_bank(config: Config, problem: Problem, indices: np.ndarray) -> KNNBank:
    """Returns the graphs at these indices as the memory bank of kNN."""
    n_classes, protocol = len(problem.graphs.classes), config.protocol
    labels, temperature = problem.labels(indices), protocol.knn_temperature
    return KNNBank(indices, labels, n_classes, protocol.neighbours, temperature)
