"""Base class of the commands that search, train with several seeds, and evaluate the models.

:mod:`experiments._study_command` runs a :class:`Study`: it parses the flags, writes the run
directory and prints.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from rich.table import Table

from crl_jax import train

from ._progress import Display
from ._schema import Schema

C = TypeVar("C")
P = TypeVar("P")

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
      n_runs: Number of runs of the phase.
      seed: Random seed of the run.
      numbers: Hyper-parameter values that a sweep sets, by name.
    """

    phase: str
    index: int
    n_runs: int
    seed: int
    numbers: dict[str, float]

    @property
    def name(self) -> str:
        """Display name of the run, such as ``search 2/6``."""
        return f"{self.phase} {self.index + 1}/{self.n_runs}" if self.n_runs > 1 else self.phase

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
      index: Index of the training among those of its phase, from 0.
    """

    phase: str
    n: int
    epochs: int
    index: int = 0

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
        return {"phase": self.phase, **({"run": self.index} if self.index else {}), **entry}


class Evaluation(NamedTuple):
    """Test results of one seed.

    Attributes:
      metrics: Test metrics, in display order.
      cases: Score of each test case, for paired comparisons of two trainings.
      figure_data: Additional data for figures.
    """

    metrics: dict[str, float]
    cases: np.ndarray = np.empty(0)
    figure_data: Any = None


class Member(NamedTuple):
    """Model of a blend, or a candidate.

    Attributes:
      config: Its configuration.
      point: Index of its hyper-parameter values among the points of the search.
      epochs: Its number of epochs; 0 for a model that is fitted in closed form.
      tables: Its vectors, learned from the training part; None if they are not needed any more.
    """

    config: Any
    point: int
    epochs: int
    tables: Any = None


@dataclass(frozen=True)
class SearchResult:
    """Result of the hyper-parameter search.

    Attributes:
      points: Hyper-parameter values of the grid, one dictionary per grid point.
      choice: The selected grid point.
      models: Its learned models, one per seed, if the search has trained the final models already.
      config: Its configuration, if it differs in more than numbers that a sweep sets.
      description: Description of the search; empty for that of a grid.
      blend: The models to blend, the selected one first; empty if it is the only one.
      blend_score: Validation score of the blend; NaN without one.
    """

    points: list[dict[str, Any]]
    choice: train.Selection
    models: list[Any] | None = None
    config: Any = None
    description: str = ""
    blend: tuple[Member, ...] = ()
    blend_score: float = np.nan

    @property
    def point(self) -> dict[str, Any]:
        """Hyper-parameter values of the selected point."""
        return self.points[self.choice.point]


def no_search(epochs: int) -> SearchResult:
    """Returns the result of a study that trains for ``epochs`` without a search."""
    choice = train.Selection(0, epochs, np.nan, np.array([np.nan]), np.array([epochs]))
    return SearchResult([{}], choice)


def grid_points(axes: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Returns the points of a sweep in the order of :func:`crl_jax.train.grid`; one without axes.

    >>> grid_points({"lr": [0.1, 0.2], "decay": [1.0]})
    [{'lr': 0.1, 'decay': 1.0}, {'lr': 0.2, 'decay': 1.0}]
    """
    return [dict(zip(axes, map(float, values))) for values in itertools.product(*axes.values())]


def select_point(
    points: list[dict[str, float]], scores: np.ndarray, epochs: np.ndarray
) -> SearchResult:
    """Returns the result of a search that trained each point with all seeds.

    Args:
      points: The points.
      scores: Validation scores, NaN for diverged trainings, ``[points, seeds]``. The score of a
        point is their mean.
      epochs: Numbers of epochs after which the scores were reached, ``[points, seeds]``.

    Raises:
      TrainingDiverged: If no point has a finite score.
    """
    means, stops = scores.mean(axis=1), epochs.max(axis=1)
    if not np.isfinite(means).any():
        raise no_finite_score()
    best = int(np.nanargmax(means))
    choice = train.Selection(best, int(stops[best]), float(means[best]), means, stops)
    return SearchResult(points, choice)


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
        :meth:`selection_score` is overridden.
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

    def for_config(self, config: Any) -> "Study[Any, Any]":
        """Returns the study that runs a configuration."""
        del config
        return self

    def start(self, given: Mapping[str, str]) -> C:
        """Returns the configuration that the flags change, without a recipe or a file.

        Args:
          given: Values of the flags, by field.
        """
        del given
        return self.schema.kind()

    def folder_name(self, config: Any) -> str:
        """Returns the default name of a run directory, without the time."""
        return f"{self.schema.command}-{config.objective.loss}"

    def check(self, config: C) -> None:
        """Raises ``ValueError`` if flags are invalid for any dataset."""
        self.schema.resolve_flags(config)

    def check_resumed(self, before: C, config: C) -> None:
        """Raises ``ValueError`` if other devices than ``before`` would change the results."""

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

    def selection_score(self, config: C) -> str:
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

    def compare(
        self, config: C, problem: P, cases: list[np.ndarray], folder: Path, on_stage: OnStage
    ) -> Iterable[str | Table]:
        """Compares the test results with those of simple baselines.

        Args:
          config: The configuration.
          problem: The data.
          cases: Score of each test case, for each seed.
          folder: The run directory.
          on_stage: See :data:`OnStage`.

        Returns:
          What is printed below the results; by default nothing.
        """
        del config, problem, cases, folder, on_stage
        return ()

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
        results: dict[str, Any] = {n: float(np.mean([m[n] for m in per_seed])) for n in per_seed[0]}
        if len(per_seed) > 1:
            for name in per_seed[0]:
                results[f"{name}_std"] = float(np.std([m[name] for m in per_seed], ddof=1))
        chosen: dict[str, Any] = {"point": searched.point}
        if not np.isnan(searched.choice.score):
            chosen[self.selection_score(config)] = searched.choice.score
        last = {(e["phase"], e.get("run"), e.get("stage")): e["seconds"] for e in history}
        return {**results, "chosen": chosen, "seconds": round(sum(last.values()), 3)}

    @abstractmethod
    def report(
        self, config: C, problem: P, searched: SearchResult, per_seed: list[dict[str, float]]
    ) -> Iterable[str | Table]:
        """Returns what is printed about the results, after the table of the sweep."""
