"""Data and methods of tables and figures, and the settings that methods share."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from crl_jax import data, losses, samplers, tasks

from .outcomes import ReportedMetrics


@dataclass(frozen=True)
class Recipe:
    """Settings shared by all methods of a study.

    Attributes:
      dim: Width of the embeddings.
      learning_rate: Learning rate of the published setting.
      weight_decay: L2 on the rows of each triplet, in the published setting.
      deviation: Standard deviation of the normal initial values, in the published setting.
      epochs: Returns the number of epochs of the published setting for the data.
      metrics: Reported metrics.
      main: Metric by which methods are compared.
      by_user: Whether the main metric has a value per user, so that users can be compared.
      encoder: Name of the encoder, with its default flags.
      batch_size: Anchors per step of the published setting: 1 for SGD on one triplet, more for Adam
        on mini-batches, with L2 on whole tables.
      layers: Number of layers of a graph encoder in the published setting.
    """

    dim: int
    learning_rate: float
    weight_decay: float
    deviation: float
    epochs: "Callable[[Problem], int]"
    metrics: tuple[str, ...]
    main: str
    by_user: bool = True
    encoder: str = "mf"
    batch_size: int = 1
    layers: int = 1

    @property
    def reported(self) -> ReportedMetrics:
        """Metrics reported in the tables of the study."""
        return ReportedMetrics(self.metrics, self.main, "users" if self.by_user else None)

    @property
    def ks(self) -> tuple[int, ...]:
        """Cutoffs of the metrics."""
        return tuple(sorted({int(name.split("@")[1]) for name in self.metrics if "@" in name}))


SAMPLING = Recipe(
    dim=32,
    learning_rate=0.01,
    weight_decay=0.01,
    deviation=0.01,  # with which RNS reaches its published results
    epochs=lambda _: 100,
    metrics=tuple(f"{name}@{k}" for k in (5, 10, 20) for name in ("precision", "recall", "ndcg")),
    main="ndcg@20",
)


@dataclass(frozen=True)
class Minibatch:
    """Search and training of a method in the minibatch setting.

    Attributes:
      axes: Values tried by the search, in all combinations, keyed by sweep field name, see
        :func:`crl_jax.tasks.fit_ranking`.
      learning_rate: Learning rate, unless searched.
      weight_decay: L2, unless searched.
      init_scale: Scale of the initial values, unless searched.
      epochs: Number of epochs of a training.
      batch_size: Anchors per step.
      eval_every: Epochs between two validations.
      valid: Validation share of the training interactions.
      l2_target: Parameters penalised by L2, see :data:`crl_jax.tasks.L2Target`.
      layers: Number of layers of a graph encoder; None for its default.
      at_once: Whether all points, and then all seeds, train in parallel. On a large graph they are
        faster sequentially: the rows that one run propagates stay in the CPU caches.
    """

    axes: tuple[tuple[str, tuple[float, ...]], ...] = (
        ("optimizer.learning_rate", (1e-3, 2e-3)),
        ("optimizer.weight_decay", (1e-5, 3e-5)),
        ("task.init_scale", (0.1, 1.0)),
    )
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    init_scale: float = 1.0
    epochs: int = 200
    batch_size: int = 1024
    eval_every: int = 5
    valid: float = 0.2
    l2_target: tasks.L2Target = "tables"
    layers: int | None = None
    at_once: bool = True


@dataclass(frozen=True)
class Problem:
    """The data of a study.

    Attributes:
      train: Training interactions.
      test: Test interactions, which are scored only once; the false negatives of the sampling
        quality.
      folder: Source of the data.
      masked: Interactions excluded from the scored rankings; None for the training part.
    """

    train: data.Interactions
    test: data.Interactions
    folder: str
    masked: data.Interactions | None = None


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes:
      label: Its name in the table.
      sampler: Factory of the sampler for a training part, which may be a subset of all training
        interactions.
      loss: The loss.
      hyperparams: Hyper-parameters of the loss.
      n_neg: Negatives per anchor.
      n_pos: Extra positives per anchor.
      draw: Triplets whose negatives are drawn together in the published setting.
      published: The method's name in the dissertation's tables, if different from the label.
      n_group: Users per anchor who interacted with the same item.
      confidence: Factory of the confidence estimator for a training part.
      schedule: Schedule of the hyper-parameters over the training.
      axis: A hyper-parameter of the loss with additional values for the search.
      batches: Whether it needs batches of more than one anchor.
      recipe: Settings shared with the other methods of its study.
      anchors: Whether it iterates over the interactions or draws users first, see
        :func:`crl_jax.tasks.fit_ranking`.
      rate: Factor on the learning rate of the published setting.
      minibatch: Search and training in the minibatch setting.
    """

    label: str
    sampler: Callable[[Problem], samplers.Sampler] = lambda _: samplers.RNS()
    loss: Callable[..., Any] = losses.bpr
    hyperparams: dict[str, float] = field(default_factory=dict)
    n_neg: int = 1
    n_pos: int = 0
    draw: int = 1024
    published: str | None = None
    n_group: int = 0
    confidence: Callable[[Problem], tasks.ConfidenceEM] | None = None
    schedule: tasks.HyperparamSchedule | None = None
    axis: tuple[str, tuple[float, ...]] | None = None
    batches: bool = False
    recipe: Recipe = SAMPLING
    anchors: Literal["interactions", "users"] = "interactions"
    rate: float = 1.0
    minibatch: Minibatch = Minibatch()

    @property
    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values tried by a search, with the method's own axis last."""
        own = {} if self.axis is None else {f"task.hyperparams.{self.axis[0]}": self.axis[1]}
        return {**dict(self.minibatch.axes), **own}

    @property
    def points(self) -> int:
        """Number of points of a search."""
        return math.prod(map(len, self.axes.values()))

    def estimator(self, problem: Problem) -> tasks.ConfidenceEM | None:
        """Returns the confidence estimator for the training part of ``problem``, if any."""
        return None if self.confidence is None else self.confidence(problem)

    def epochs(self, problem: Problem) -> int:
        """Returns the number of epochs of its training in the published setting."""
        return self.recipe.epochs(problem)
