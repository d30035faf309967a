"""Base classes of the commands that search, train with several seeds, and evaluate the models.

:mod:`experiments._study_command` runs a :class:`Study`: it parses the flags, writes the run
directory and prints. A :class:`TaskStudy` trains a :class:`crl_jax.train.Task`, one run at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from crl_jax import train

from ._learned import Learned
from ._mesh import mesh_of
from ._processes import checkpoint, gathered
from ._progress import Display
from ._registry import filled
from ._schema import Schema
from ._screen import cell, of_seeds
from ._study_options import optimizer_of
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
OnEntry = Callable[[Any, dict[str, Any]], None]
"""Callback ``on_entry(run, entry)``, called with each entry of the history of a :class:`Run`, or of
:class:`Runs` that are trained together."""


@dataclass(frozen=True)
class Run:
    """Training run.

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

    @property
    def title(self) -> str:
        """Name of the run in the progress display."""
        return self.name

    def line(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Returns the line of ``history.jsonl``: each list has one number, which is unpacked."""
        numbers = " ".join(f"{name}={value:g}" for name, value in self.numbers.items())
        label = f"{self.phase} {numbers} seed {self.seed}".replace("  ", " ")
        flat = {name: v[0] if isinstance(v, list) else v for name, v in entry.items()}
        return {"phase": self.phase, "run": self.index, "label": label, **flat}


@dataclass(frozen=True)
class Runs:
    """Runs of a phase that are trained together, with one number per run in each list of an entry.

    Attributes:
      phase: Name of the phase.
      n: Number of runs.
      epochs: Maximum number of epochs.
    """

    phase: str
    n: int
    epochs: int
    index: ClassVar[int] = 0

    @property
    def name(self) -> str:
        """Name in logs."""
        return self.phase

    @property
    def title(self) -> str:
        """Name in the progress display, where phases are aligned."""
        return f"{self.phase:6} ×{self.n}" if self.n > 1 else f"{self.phase:6}"

    def line(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Returns the line of ``history.jsonl``."""
        return {"phase": self.phase, **entry}


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
    cases: np.ndarray = np.empty(0)
    shown: Any = None


@dataclass(frozen=True)
class SearchResult:
    """Result of the hyper-parameter search.

    Attributes:
      points: Hyper-parameter values of the grid, one dictionary per grid point.
      choice: The selected grid point.
      models: Its learned models, one per seed, if the search has trained the final models already.
    """

    points: list[dict[str, float]]
    choice: train.Selection
    models: list[Any] | None = None

    @property
    def point(self) -> dict[str, float]:
        """Hyper-parameter values of the selected point."""
        return self.points[self.choice.point]


def no_search(epochs: int) -> SearchResult:
    """Returns the result of a study that trains for ``epochs`` without a search."""
    choice = train.Selection(0, epochs, np.nan, np.array([np.nan]), np.array([epochs]))
    return SearchResult([{}], choice)


def no_finite_score() -> train.TrainingDiverged:
    """Returns the error for a search in which every run diverged."""
    return train.TrainingDiverged("No run of the search reached a finite validation score.")


class Study(ABC, Generic[C, P]):
    """Base class of the commands.

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
      stages: Consecutive stages of a training. If there are several, entries of the history name
        theirs under ``stage``, and epochs count from 1 in each stage.
    """

    schema: ClassVar[Schema[Any]]
    recipes: ClassVar[Mapping[str, Any]] = {}
    description: ClassVar[str]
    unit: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    score: ClassVar[str]
    stages: ClassVar[tuple[str, ...]] = ("",)

    @abstractmethod
    def folder_name(self, config: C) -> str:
        """Returns the default name of a run directory, without the time."""

    def check(self, config: C) -> None:
        """Raises ``ValueError`` if flags are invalid for any dataset."""
        self.schema.settle(config)

    @abstractmethod
    def load(self, config: C, on_stage: OnStage) -> P:
        """Reads the data."""

    def load_shown(self, config: C, shown: Display) -> P:
        """Reads the data and displays the progress."""
        return self.load(config, shown.stage)

    @abstractmethod
    def complete(self, config: C, problem: P) -> C:
        """Returns the configuration with all defaults, including those that depend on the data.

        Raises:
          ValueError: If flags are incompatible with the data.
        """

    @abstractmethod
    def check_step(self, config: Any, problem: P) -> None:
        """Raises ``ValueError`` if the complete configuration is incompatible with the data."""

    def prepare(self, config: C, problem: P) -> C:
        """Returns the complete configuration, after :meth:`check_step`."""
        config = self.complete(config, problem)
        self.check_step(config, problem)
        return config

    def phases(self, config: C) -> tuple[str, ...]:
        """Returns the names of the phases: ``"search"``, ``"final"``, and any further trainings."""
        del config
        return "search", "final"

    @abstractmethod
    def count(self, config: C, problem: P, phase: str, stage: str) -> int:
        """Returns the number of examples per epoch in a stage of a phase."""

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

    @abstractmethod
    def search(
        self, config: C, problem: P, checkpoints: Path, on_entry: OnEntry, on_stage: OnStage
    ) -> SearchResult:
        """Trains all points of the sweep and selects the best by validation score."""

    @abstractmethod
    def train_models(
        self, config: C, problem: P, phase: str, searched: SearchResult, checkpoints: Path,
        on_entry: OnEntry, on_stage: OnStage,
    ) -> Iterator[list[Any]]:  # fmt: skip
        """Trains the selected point with all seeds, resuming from checkpoints if there are any.

        Yields:
          The learned models, one per seed; each list has those that are trained together.
        """

    @abstractmethod
    def evaluate(
        self, config: C, problem: P, learned: Any, seed: int, on_stage: OnStage
    ) -> Evaluation:
        """Evaluates the learned model of one seed on the test set."""

    @abstractmethod
    def save_models(
        self, config: C, problem: P, phase: str, models: list[Any], folder: Path
    ) -> None:
        """Saves the first models that :meth:`train_models` yields in a phase."""

    def draw_first(self, config: C, problem: P, point: dict[str, float], folder: Path) -> None:
        """Plots figures that need no training, such as views, at a point of a sweep."""

    @abstractmethod
    def draw_curves(
        self, config: C, problem: P, searched: SearchResult, history: list[dict[str, Any]],
        title: str, path: Path,
    ) -> None:  # fmt: skip
        """Plots the history."""

    def draw(
        self, config: C, problem: P, learned: Any, evaluation: Evaluation, title: str, folder: Path
    ) -> None:  # fmt: skip
        """Plots figures of the learned model of the first seed."""

    def summary(
        self, config: C, problem: P, searched: SearchResult, per_seed: list[dict[str, float]],
        history: list[dict[str, Any]],
    ) -> dict[str, Any]:  # fmt: skip
        """Returns the content of ``metrics.json``.

        Returns:
          The mean of each metric over the seeds and, with several seeds, its standard deviation as
          ``NAME_std``; under ``chosen`` the selected ``point`` of the sweep and, after a search,
          its validation score; and the ``seconds`` of training.
        """
        del problem
        found: dict[str, Any] = {n: float(np.mean([m[n] for m in per_seed])) for n in per_seed[0]}
        if len(per_seed) > 1:
            for name in per_seed[0]:
                found[f"{name}_std"] = float(np.std([m[name] for m in per_seed], ddof=1))
        chosen: dict[str, Any] = {"point": searched.point}
        if not np.isnan(searched.choice.score):
            chosen[self.decided_by(config)] = searched.choice.score
        last = {(e["phase"], e.get("run"), e.get("stage")): e["seconds"] for e in history}
        return {**found, "chosen": chosen, "seconds": round(sum(last.values()), 3)}

    @abstractmethod
    def report(
        self, config: C, problem: P, searched: SearchResult, per_seed: list[dict[str, float]]
    ) -> Iterable[str | Table]:
        """Returns what is printed about the results, after the table of the sweep."""


class TaskStudy(Study[C, P]):
    """Study that trains a :class:`crl_jax.train.Task`, one run at a time.

    Attributes:
      names: Display names of the test metrics.
      curves: Display names of the plotted columns of the history.
    """

    names: ClassVar[Mapping[str, str]]
    curves: ClassVar[Mapping[str, str]]

    def run_name(self, config: Any) -> str:
        """Returns the part of a run directory's name that describes the configuration.

        By default the name of the loss.
        """
        return config.objective.loss

    def folder_name(self, config: Any) -> str:
        """See :meth:`Study.folder_name`."""
        return f"{self.schema.command}-{self.run_name(config)}"

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

    def count(self, config: C, problem: P, phase: str, stage: str) -> int:
        """See :meth:`Study.count`."""
        del stage
        return self.batches(config, problem, phase).n

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
        if getattr(options, "batches", "device") != "device":
            source = train.HostBatches.from_arrays(batches.data, options.batch_size, seed=run.seed)
        else:
            source = jax.tree.map(jnp.asarray, batches)
        name = "-".join([run.phase, str(run.index), *([stage] if stage else [])])
        fitted = train.fit(
            task,
            optimizer_of(options, run.numbers if numbers is None else numbers),
            source,
            train.TrainConfig(options.batch_size, mesh=mesh_of(output.mesh)),
            epochs=self.epochs(config, stage),
            seeds=run.seed,
            eval_every=options.eval_every,
            hooks=[
                *([] if measure is None else [train.ValidationMetrics(measure)]),
                checkpoint(checkpoints / f"{name}.npz", output.checkpoint_seconds),
                train.Progress(on_entry),
            ],
        )
        learned = gathered((fitted.params, fitted.state.model_state))
        params, model_state = jax.tree.map(jnp.asarray, learned)
        return replace(fitted, params=params, state=fitted.state._replace(model_state=model_state))

    def trained(self, config: C, problem: P, run: Run, fitted: Any) -> Any:
        """Returns the learned model of a final run, which is evaluated, saved and plotted."""
        return Learned.of(self.task(config, problem, run.phase, run.numbers), fitted)

    def search(
        self, config: Any, problem: P, checkpoints: Path, on_entry: OnEntry, on_stage: OnStage
    ) -> SearchResult:
        """See :meth:`Study.search`.

        The score of a run is the mean of its last three reports; that of a point is the mean over
        its seeds.
        """
        protocol = config.protocol
        # The score of the last stage selects the point.
        *_, epochs = (n for stage in self.stages if (n := self.epochs(config, stage)))
        axes = self.schema.axes(config)
        if not axes:
            return no_search(epochs)
        on_stage("search: compiling and first epoch")
        grid = train.grid(axes, range(protocol.seed, protocol.seed + protocol.search_seeds))
        seeds, numbers = grid.pop("seeds"), grid
        scores = []
        for i, seed in enumerate(seeds):
            own = {name: float(values[i]) for name, values in numbers.items()}
            run = Run("search", i, len(seeds), int(seed), own)
            fitted = self.fit(config, problem, run, checkpoints, partial(on_entry, run))
            last = [entry[self.decided_by(config)][0] for entry in fitted.history[-_LAST:]]
            scores.append(float(np.mean(last)))
        means = np.array(scores).reshape(-1, protocol.search_seeds).mean(axis=1)
        if not np.isfinite(means).any():
            raise no_finite_score()
        best = int(np.nanargmax(means))
        points = [
            {name: float(values[i]) for name, values in numbers.items()}
            for i in range(0, len(seeds), protocol.search_seeds)
        ]
        reached = np.full(len(points), epochs)
        choice = train.Selection(best, epochs, float(means[best]), means, reached)
        return SearchResult(points, choice)

    def train_models(
        self, config: Any, problem: P, phase: str, searched: SearchResult, checkpoints: Path,
        on_entry: OnEntry, on_stage: OnStage,
    ) -> Iterator[list[Any]]:  # fmt: skip
        """See :meth:`Study.train_models`; each seed is trained when its model is requested."""
        for index in range(config.protocol.seeds):
            on_stage(f"{phase}: compiling and first epoch")
            yield [learn(self, config, problem, searched.point, index, checkpoints, on_entry)]

    def save_models(
        self, config: C, problem: P, phase: str, models: list[Any], folder: Path
    ) -> None:
        """See :meth:`Study.save_models`."""
        self.save(models[0], folder)

    @abstractmethod
    def save(self, learned: Any, folder: Path) -> None:
        """Saves the learned model of the first seed."""

    def draw_curves(
        self, config: C, problem: P, searched: SearchResult, history: list[dict[str, Any]],
        title: str, path: Path,
    ) -> None:  # fmt: skip
        """See :meth:`Study.draw_curves`."""
        from ._study_plots import draw_curves  # Matplotlib is slow to import

        draw_curves(path, history, title, self.curves)

    def report(
        self, config: C, problem: P, searched: SearchResult, per_seed: list[dict[str, float]]
    ) -> Iterable[str | Table]:
        """See :meth:`Study.report`."""
        table = Table(title=f"Test set{of_seeds(len(per_seed))}")
        table.add_column("metric")
        table.add_column("value", justify="right")
        for name in per_seed[0]:
            table.add_row(self.names[name], cell([metrics[name] for metrics in per_seed]))
        yield table


def learn(
    study: TaskStudy[Any, P], config: Any, problem: P, point: dict[str, float], index: int,
    checkpoints: Path, on_entry: OnEntry,
) -> Any:  # fmt: skip
    """Trains the final run of one seed at a point of the sweep and returns the learned model."""
    protocol = config.protocol
    run = Run("final", index, protocol.seeds, protocol.seed + index, point)
    fitted = study.fit(config, problem, run, checkpoints, partial(on_entry, run))
    return study.trained(config, problem, run, fitted)
