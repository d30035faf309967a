"""What a study compares: its data, its methods, and what these have in common."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from crl_jax import data, losses, samplers, tasks

from .outcomes import Reported


@dataclass(frozen=True)
class Recipe:
    """What all methods of a study have in common.

    Attributes:
      dim: Width of the embeddings.
      encoder: Name of the encoder, with its default flags.
      learning_rate: Of the published setting.
      weight_decay: L2 on the rows of each triplet, in the published setting.
      deviation: Of the normal initial values, in the published setting.
      epochs: Of the published setting; or a function of the data that gives them.
      metrics: What is reported.
      main: By which of them methods are compared.
      by_user: Whether the main metric is one per user, so that users can be compared.
    """

    dim: int
    learning_rate: float
    weight_decay: float
    deviation: float
    epochs: "int | Callable[[World], int]"
    metrics: tuple[str, ...]
    main: str
    by_user: bool = True
    encoder: str = "mf"

    @property
    def reported(self) -> Reported:
        """What a table of the study reports."""
        return Reported(self.metrics, self.main, "users" if self.by_user else None)

    @property
    def ks(self) -> tuple[int, ...]:
        """The cut-offs of the metrics."""
        return tuple(sorted({int(name.split("@")[1]) for name in self.metrics if "@" in name}))


SAMPLING = Recipe(
    dim=32,
    learning_rate=0.01,
    weight_decay=0.01,
    deviation=0.01,  # with which RNS comes to its published numbers
    epochs=100,
    metrics=tuple(f"{name}@{k}" for k in (5, 10, 20) for name in ("precision", "recall", "ndcg")),
    main="ndcg@20",
)


@dataclass(frozen=True)
class Minibatch:
    """How a method is searched, and then trained, in the minibatch setting.

    Attributes:
      axes: Values that the search tries, all combinations, by their names in the sweeps of
        :func:`crl_jax.tasks.fit_ranking`.
      learning_rate: Where the search does not try several.
      weight_decay: Likewise.
      init_scale: Likewise.
      epochs: Length of a training.
      batch_size: Anchors per step.
      eval_every: Epochs between two validations.
      valid: Share of the training interactions that decides.
      l2_target: What L2 acts on, see :data:`crl_jax.tasks.L2Target`.
      layers: Of a graph encoder; None for its default.
      at_once: Whether all points, and then all seeds, train side by side. On a large graph they are
        quicker in turn: the rows that one of them mixes stay in the caches.
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
class World:
    """The data of a study.

    Attributes:
      train: What models learn from.
      test: What they are scored on, once; the false negatives of the sampling quality.
      folder: Where the data came from.
      masked: What is left out of the rankings that are scored; None for the training part.
    """

    train: data.Interactions
    test: data.Interactions
    folder: str
    masked: data.Interactions | None = None


def by_folder(worlds: Sequence[World]) -> dict[str, list[World]]:
    """The splits of each dataset."""
    found: dict[str, list[World]] = {}
    for world in worlds:
        found.setdefault(world.folder, []).append(world)
    return found


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes:
      label: Its name in the table.
      sampler: Makes the sampler for a training part, which is not always all of it.
      loss: The loss.
      hyperparams: Hyper-parameters of the loss.
      n_neg: Negatives per anchor.
      n_pos: Extra positives per anchor.
      draw: Triplets whose negatives are drawn together in the published setting.
      published: The method's name in the dissertation's numbers, where it is another.
      n_group: Users per anchor who took the same item.
      confidence: Makes the estimator of confidence for a training part.
      schedule: How the hyper-parameters change along the training.
      axis: A hyper-parameter of the loss that a search tries further values of.
      batches: Whether it needs batches of more than one anchor.
      recipe: What it has in common with the others of its study.
      anchors: Whether it goes through the interactions or draws users first, see
        :func:`crl_jax.tasks.fit_ranking`.
      rate: Factor on the learning rate of the published setting.
      minibatch: How it is searched and trained in the minibatch setting.
    """

    label: str
    sampler: Callable[[World], samplers.Sampler] = lambda _: samplers.RNS()
    loss: Callable[..., Any] = losses.bpr
    hyperparams: dict[str, float] = field(default_factory=dict)
    n_neg: int = 1
    n_pos: int = 0
    draw: int = 1024
    published: str | None = None
    n_group: int = 0
    confidence: Callable[[World], tasks.ConfidenceEM] | None = None
    schedule: tasks.HyperparamSchedule | None = None
    axis: tuple[str, tuple[float, ...]] | None = None
    batches: bool = False
    recipe: Recipe = SAMPLING
    anchors: Literal["interactions", "users"] = "interactions"
    rate: float = 1.0
    minibatch: Minibatch = Minibatch()

    @property
    def axes(self) -> dict[str, tuple[float, ...]]:
        """What a search tries, the method's own axis last."""
        own = {} if self.axis is None else {f"task.hyperparams.{self.axis[0]}": self.axis[1]}
        return {**dict(self.minibatch.axes), **own}

    @property
    def points(self) -> int:
        """Points of a search."""
        return math.prod(map(len, self.axes.values()))

    def estimator(self, world: World) -> tasks.ConfidenceEM | None:
        """The estimator of confidence for the training part of ``world``, if it has one."""
        return None if self.confidence is None else self.confidence(world)

    def epochs(self, world: World) -> int:
        """Length of its training in the published setting."""
        epochs = self.recipe.epochs
        return epochs if isinstance(epochs, int) else epochs(world)
