"""Training and evaluation of a study: its search and its final runs, without terminal output."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import train

from ._learned import Learned
from ._mesh import mesh_of
from ._registry import filled
from ._schema import Schema
from ._study_options import optimizer_of
from ._summary import over_seeds
from ._traced import trace_step
from .view_losses import complete_loss

C = TypeVar("C")
P = TypeVar("P")

_LAST = 3
"""Number of last reports whose mean is the score of a run."""
OnLine = Callable[[dict[str, Any]], None]
"""Callback ``on_entry(entry)``, called with each entry of the history."""
OnStage = Callable[[str], None]
"""Callback ``on_stage(what)``, called with the description of each stage that begins."""
OnEntry = Callable[["Run", dict[str, Any]], None]
"""Callback ``on_entry(run, entry)``, called with each entry of the history of a run."""


@dataclass(frozen=True)
class Run:
    """Training run of a study.

    Attributes:
      phase: ``"search"`` or ``"final"``.
      index: Index of the run within its phase, from 0.
      of: Number of runs of the phase.
      seed: Random seed of the run.
      numbers: Hyper-parameter values that a sweep sets, by name.
    """

    phase: str
    index: int
    of: int
    seed: int
    numbers: dict[str, float]

    @property
    def name(self) -> str:
        """Display name of the run, such as ``search 2/6``."""
        return f"{self.phase} {self.index + 1}/{self.of}" if self.of > 1 else self.phase


class Trained(Protocol):
    """Protocol of training results, such as :class:`crl_jax.train.FitResult`."""

    @property
    def history(self) -> list[dict[str, Any]]:
        """Entries of the training history, one per report."""
        ...


class Evaluation(NamedTuple):
    """Test results of one seed.

    Attributes:
      metrics: Test metrics, in display order.
      cases: Score of each test case, for paired comparisons of two trainings.
      shown: Additional data for figures.
    """

    metrics: dict[str, float]
    cases: np.ndarray
    shown: Any = None


@dataclass(frozen=True)
class Outcome:
    """Results of a configuration.

    Attributes:
      points: Hyper-parameter values of the grid, one dictionary per grid point.
      choice: The selected grid point.
      per_seed: Test metrics of every seed.
    """

    points: list[dict[str, float]]
    choice: train.Selection
    per_seed: list[dict[str, float]]


class Study(ABC, Generic[C, P]):
    """Base class of commands that train with several seeds and evaluate the learned models.

    Configurations have sections ``training``, ``protocol`` and ``output`` with the fields of
    :mod:`experiments._study_options`.

    Attributes:
      schema: Name and flags of the command.
      recipes: Predefined configurations by name.
      description: Help text; ``{program}`` and ``{recipes}`` are filled in.
      unit: Plural noun for training examples, such as ``"images"``.
      scores: Metrics of the reports. The first selects the result of a search, unless
        :meth:`decided_by` is overridden.
      score: Short name of that metric.
      names: Display names of the test metrics.
      curves: Display names of the plotted columns of the history.
      stages: Consecutive stages of a training. If there are several, entries of the history name
        theirs under ``stage``, and epochs count from 1 in each stage.
    """

    schema: ClassVar[Schema[Any]]
    recipes: ClassVar[Mapping[str, Any]] = {}
    description: ClassVar[str]
    unit: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    score: ClassVar[str]
    names: ClassVar[Mapping[str, str]]
    curves: ClassVar[Mapping[str, str]]
    stages: ClassVar[tuple[str, ...]] = ("",)

    def run_name(self, config: Any) -> str:
        """Returns the part of a run directory's name that describes the configuration.

        By default the name of the loss.
        """
        return config.objective.loss

    def check(self, config: C) -> None:
        """Raises ``ValueError`` if flags are invalid for any dataset."""
        self.schema.settle(config)

    @abstractmethod
    def load(self, config: C, on_stage: OnStage) -> P:
        """Reads the data."""

    @abstractmethod
    def complete(self, config: C, problem: P) -> C:
        """Returns the configuration with all defaults, including those that depend on the data.

        Raises:
          ValueError: If flags are incompatible with the data.
        """

    def complete_entries(self, config: Any, tau_plus: float, but: str = "") -> Any:
        """Returns the configuration with the defaults of the chosen loss, encoder and method.

        Args:
          config: The configuration.
          tau_plus: Default τ⁺ for losses with that hyper-parameter.
          but: Choice whose flags remain unchanged.
        """
        swept = tuple(self.schema.axes(config))
        values = self.schema.settle(config)
        values["loss"] = complete_loss(values["loss"], tau_plus)
        for section, choice, _ in self.schema.choices:
            if choice != but:
                options = filled(getattr(config, section), values[choice], swept)
                config = replace(config, **{section: options})
        return config

    @abstractmethod
    def task(self, config: C, problem: P, phase: str, numbers: dict[str, float]) -> train.Task:
        """Returns the training task of a phase.

        Args:
          config: The configuration.
          problem: The data.
          phase: ``"search"`` or ``"final"``.
          numbers: Values of a sweep, which override those of the flags.

        Raises:
          ValueError: If flags contradict each other or are incompatible with the data.
        """

    @abstractmethod
    def batches(self, config: C, problem: P, phase: str) -> train.ArrayBatches:
        """Returns the training examples of a phase, in host memory."""

    @abstractmethod
    def measure(self, config: C, problem: P, phase: str) -> Callable[..., Any] | None:
        """Returns the metric function of reports, see :class:`crl_jax.train.ValidationMetrics`."""

    def check_step(self, config: Any, problem: P) -> None:
        """Traces a training step at the first point of the sweep, without executing it.

        Raises:
          ValueError: If there are too few examples for a batch, or if flags contradict each other
            or are incompatible with the data.
        """
        axes = self.schema.axes(config)
        phase, size = "search" if axes else "final", config.training.batch_size
        data = self.batches(config, problem, phase).data
        n = len(jax.tree.leaves(data)[0])
        if n < size:
            raise ValueError(
                f"--batch-size must be at most the {n} {self.unit} to learn from, got {size}."
            )
        task = self.task(config, problem, phase, {name: v[0] for name, v in axes.items()})
        trace_step(task, jax.tree.map(lambda leaf: leaf[:size], data))

    def prepare(self, config: C, problem: P) -> C:
        """Returns the complete configuration, checked by tracing a step."""
        config = self.complete(config, problem)
        self.check_step(config, problem)
        return config

    def count(self, config: C, problem: P, phase: str, stage: str) -> int:
        """Returns the number of examples per epoch in a stage of a phase."""
        del stage
        return self.batches(config, problem, phase).n

    def epochs(self, config: Any, stage: str) -> int:
        """Returns the number of epochs of a stage."""
        del stage
        return config.training.epochs

    def decided_by(self, config: C) -> str:
        """Returns the name of the score that selects the result of a search."""
        del config
        return self.scores[0]

    @abstractmethod
    def describe_training(self, config: C) -> str:
        """Returns a one-line description of the training."""

    @abstractmethod
    def describe_data(self, config: C, problem: P) -> Iterable[str]:
        """Returns the lines of a description of the data."""

    def fit(
        self, config: Any, problem: P, run: Run, checkpoints: Path, on_entry: OnLine
    ) -> Trained:
        """Trains a run, resuming from its checkpoints if there are any."""
        return self.fit_stage(
            config, run, checkpoints, on_entry,
            task=self.task(config, problem, run.phase, run.numbers),
            batches=self.batches(config, problem, run.phase),
            measure=self.measure(config, problem, run.phase),
        )  # fmt: skip

    def fit_stage(
        self, config: Any, run: Run, checkpoints: Path, on_entry: OnLine, *, task: Any,
        batches: train.ArrayBatches, measure: Callable[..., Any] | None, stage: str = "",
        numbers: dict[str, float] | None = None,
    ) -> train.FitResult:  # fmt: skip
        """Trains one stage, see :meth:`fit`.

        Args:
          config, run, checkpoints, on_entry: See :meth:`fit`.
          task: The task.
          batches: The examples, in host or device memory.
          measure: Metric function of the reports, or None.
          stage: Name of the stage.
          numbers: Values of a sweep for the optimizer; by default those of the run.
        """
        options, output = config.training, config.output
        source: Any
        if getattr(options, "batches", "device") == "host":
            source = train.HostBatches.from_arrays(batches.data, options.batch_size, seed=run.seed)
        else:
            source = jax.tree.map(jnp.asarray, batches)
        name = "-".join([run.phase, str(run.index), *([stage] if stage else [])])
        return train.fit(
            task,
            optimizer_of(options, run.numbers if numbers is None else numbers),
            source,
            train.TrainConfig(options.batch_size, mesh=mesh_of(output.mesh)),
            epochs=self.epochs(config, stage),
            seeds=run.seed,
            eval_every=options.eval_every,
            hooks=[
                *([] if measure is None else [train.ValidationMetrics(measure)]),
                train.Checkpoint(checkpoints / f"{name}.npz", output.checkpoint_seconds),
                train.Progress(on_entry),
            ],
        )

    def trained(self, config: C, problem: P, run: Run, fitted: Any) -> Any:
        """Returns the learned model of a final run, which is evaluated, saved and plotted."""
        return Learned.of(self.task(config, problem, run.phase, run.numbers), fitted)

    @abstractmethod
    def evaluate(
        self, config: C, problem: P, learned: Any, seed: int, on_stage: OnStage
    ) -> Evaluation:
        """Evaluates the learned model of one seed on the test set."""

    def draw_first(self, config: C, problem: P, point: dict[str, float], folder: Path) -> None:
        """Plots figures that need no training, such as views, at a point of a sweep."""

    @abstractmethod
    def save(self, learned: Any, folder: Path) -> None:
        """Saves the learned model of the first seed."""

    def draw(
        self, config: C, problem: P, learned: Any, evaluation: Evaluation, title: str, folder: Path
    ) -> None:  # fmt: skip
        """Plots figures of the learned model of the first seed."""


def search(
    study: Study[Any, P], config: Any, problem: P, checkpoints: Path, on_entry: OnEntry
) -> tuple[list[dict[str, float]], train.Selection]:
    """Trains all points of the sweep and selects the best by validation score.

    The score of a run is the mean of its last three reports; that of a point is the mean over its
    seeds.
    """
    protocol = config.protocol
    # The score of the last stage selects the point.
    *_, epochs = (n for stage in study.stages if (n := study.epochs(config, stage)))
    axes = study.schema.axes(config)
    if not axes:
        return [{}], train.Selection(0, epochs, np.nan, np.array([np.nan]), np.array([epochs]))
    grid = train.grid(axes, range(protocol.seed, protocol.seed + protocol.search_seeds))
    seeds, numbers = grid.pop("seeds"), grid
    scores = []
    for i, seed in enumerate(seeds):
        own = {name: float(values[i]) for name, values in numbers.items()}
        run = Run("search", i, len(seeds), int(seed), own)
        fitted = study.fit(config, problem, run, checkpoints, partial(on_entry, run))
        last = [entry[study.decided_by(config)][0] for entry in fitted.history[-_LAST:]]
        scores.append(float(np.mean(last)))
    of_points = np.array(scores).reshape(-1, protocol.search_seeds)
    means = of_points.mean(axis=1)
    if not np.isfinite(means).any():
        raise train.TrainingDiverged("No run of the search came to a finite validation score.")
    best = int(np.nanargmax(means))
    points = [
        {name: float(values[i]) for name, values in numbers.items()}
        for i in range(0, len(seeds), protocol.search_seeds)
    ]
    reached = np.full(len(points), epochs)
    return points, train.Selection(best, epochs, float(means[best]), means, reached)


def learn(
    study: Study[Any, P], config: Any, problem: P, point: dict[str, float], index: int,
    checkpoints: Path, on_entry: OnEntry,
) -> Any:  # fmt: skip
    """Trains the final run of one seed at a point of the sweep and returns the learned model."""
    protocol = config.protocol
    run = Run("final", index, protocol.seeds, protocol.seed + index, point)
    fitted = study.fit(config, problem, run, checkpoints, partial(on_entry, run))
    return study.trained(config, problem, run, fitted)


def summary(
    study: Study[Any, Any], config: Any, outcome: Outcome, history: list[dict[str, Any]]
) -> dict[str, Any]:
    """Returns the content of ``metrics.json``.

    Returns:
      The mean of each metric over the seeds and, with several seeds, its standard deviation as
      ``NAME_std``; under ``chosen`` the selected ``point`` of the sweep and, if there is a sweep,
      its validation score; and the ``seconds`` of training.
    """
    choice = outcome.choice
    found: dict[str, Any] = over_seeds(outcome.per_seed)
    chosen: dict[str, Any] = {"point": outcome.points[choice.point]}
    if not np.isnan(choice.score):
        chosen[study.decided_by(config)] = choice.score
    found["chosen"] = chosen
    last = {(e["phase"], e["run"], e.get("stage")): e["seconds"] for e in history}
    return found | {"seconds": round(sum(last.values()), 3)}
