"""What a command trains with each seed, and judges: its runs, without the screen."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from crl_jax import train

from ._mesh import mesh_of
from ._schema import Schema
from ._study_options import optimizer_of
from ._summary import over_seeds

C = TypeVar("C")
P = TypeVar("P")

_LAST = 3
"""Reports whose mean is the score of a run: the last."""
OnStage = Callable[[str], None]
"""``on_stage(what)``, called with what begins."""
OnEntry = Callable[["Run", dict[str, Any]], None]
"""``on_entry(run, entry)``, called with each entry of the history of a run."""


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
      phase: ``"search"`` or ``"final"``.
      index: How many of the phase come before it.
      of: How many the phase has.
      seed: The seed of all its randomness.
      numbers: What a sweep sets, by name.
    """

    phase: str
    index: int
    of: int
    seed: int
    numbers: dict[str, float]

    @property
    def name(self) -> str:
        """Such as ``search 2/6``."""
        return f"{self.phase} {self.index + 1}/{self.of}" if self.of > 1 else self.phase


def fit_run(
    task: Any,
    examples: Any,
    measure: Callable[..., Any],
    config: Any,
    run: Run,
    checkpoints: Path,
    on_entry: Callable[[dict[str, Any]], None],
) -> train.FitResult:
    """Trains a task on arrays and resumes from its checkpoint if there is one.

    Args:
      task: The task, with the numbers of the run.
      examples: Source of the batches, every leaf ``[n, ...]``.
      measure: Function of the metrics of a report, see :class:`crl_jax.train.ValidationMetrics`.
      config: The configuration, with the sections of :class:`Study`.
      run: The run.
      checkpoints: Folder of the checkpoints.
      on_entry: Called with each entry of the history.
    """
    options, output = config.training, config.output
    return train.fit(
        task,
        optimizer_of(options, run.numbers),
        train.ArrayBatches(examples),
        train.TrainConfig(options.batch_size, mesh=mesh_of(output.mesh)),
        epochs=options.epochs,
        seeds=run.seed,
        eval_every=options.eval_every,
        hooks=[
            train.ValidationMetrics(measure),
            train.Checkpoint(
                checkpoints / f"{run.phase}-{run.index}.npz", output.checkpoint_seconds
            ),
            train.Progress(on_entry),
        ],
    )


class Trained(Protocol):
    """What a training comes to, such as :class:`crl_jax.train.FitResult`."""

    @property
    def history(self) -> list[dict[str, Any]]:
        """The entries of its reports."""
        ...


class Judged(NamedTuple):
    """What one seed's training comes to.

    Attributes:
      metrics: Test metrics, in the order that a person reads them.
      cases: How well each test case is solved, by which two trainings can be compared.
      shown: What pictures take besides.
    """

    metrics: dict[str, float]
    cases: np.ndarray
    shown: Any = None


@dataclass(frozen=True)
class Outcome:
    """What a configuration comes to.

    Attributes:
      points: The numbers tried, one dictionary per grid point.
      choice: The choice among them.
      per_seed: Test metrics of every seed.
    """

    points: list[dict[str, float]]
    choice: train.Selection
    per_seed: list[dict[str, float]]


class Study(ABC, Generic[C, P]):
    """A command that trains with each seed and judges what was learned.

    Its configurations have sections ``training``, ``protocol`` and ``output`` with the fields of
    :mod:`experiments._study_options`.

    Attributes:
      schema: Its name, and its flags.
      flags: The flag by the name of the argument that it sets.
      recipes: Configurations by name.
      description: The help; ``{program}`` and ``{recipes}`` are filled in.
      unit: What an epoch goes through, such as ``"images"``.
      scores: What reports measure. The first decides a search, unless :meth:`decided_by` says else.
      score: What that is, in a word.
      names: The test metrics in words.
      curves: What is drawn of the history, in words.
      stages: Parts of a training, one after the other. Where there are several, entries of the
        history name theirs under ``stage``, and their epochs count from 1 in each.
    """

    schema: ClassVar[Schema[Any]]
    flags: ClassVar[Mapping[str, str]]
    recipes: ClassVar[Mapping[str, Any]] = {}
    description: ClassVar[str]
    unit: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    score: ClassVar[str]
    names: ClassVar[Mapping[str, str]]
    curves: ClassVar[Mapping[str, str]]
    stages: ClassVar[tuple[str, ...]] = ("",)

    @abstractmethod
    def title(self, config: C) -> str:
        """What the name of a run directory says of the configuration."""

    @abstractmethod
    def settle(self, config: C) -> None:
        """Raises ``ValueError`` for what can be told to be wrong before the data are read."""

    @abstractmethod
    def load(self, config: C, on_stage: OnStage) -> P:
        """Reads the data."""

    @abstractmethod
    def complete(self, config: C, problem: P) -> C:
        """The configuration with all defaults, those that depend on the data too.

        Raises:
          ValueError: If flags do not suit the data.
        """

    @abstractmethod
    def count(self, config: C, problem: P, phase: str, stage: str) -> int:
        """How many an epoch of a phase goes through, in one of the stages."""

    def epochs(self, config: Any, stage: str) -> int:
        """The length of a stage."""
        del stage
        return config.training.epochs

    def decided_by(self, config: C) -> str:
        """Which of the scores decides a search."""
        del config
        return self.scores[0]

    @abstractmethod
    def in_words(self, config: C) -> str:
        """What is trained."""

    @abstractmethod
    def describe(self, config: C, problem: P) -> Iterable[str]:
        """What it is trained on, in lines."""

    @abstractmethod
    def fit(
        self, config: C, problem: P, run: Run, checkpoints: Path,
        on_entry: Callable[[dict[str, Any]], None],
    ) -> Trained:  # fmt: skip
        """One training, which goes on from its checkpoints if there are some."""

    @abstractmethod
    def learned(self, config: C, problem: P, run: Run, fitted: Any) -> Any:
        """What is judged, kept and drawn of a final training."""

    @abstractmethod
    def judge(self, config: C, problem: P, learned: Any, seed: int, on_stage: OnStage) -> Judged:
        """Judges what one seed learned, by the test part."""

    def draw_first(self, config: C, problem: P, point: dict[str, float], folder: Path) -> None:
        """Draws what is to be seen before the training, with numbers of a sweep."""

    @abstractmethod
    def keep(self, learned: Any, folder: Path) -> None:
        """Writes what the first seed learned, for use."""

    def draw(
        self, config: C, problem: P, learned: Any, judged: Judged, title: str, folder: Path
    ) -> None:  # fmt: skip
        """Draws what the first seed learned."""


def search(
    study: Study[Any, P], config: Any, problem: P, checkpoints: Path, on_entry: OnEntry
) -> tuple[list[dict[str, float]], train.Selection]:
    """Tries the points of the sweep, and chooses by the validation part.

    The score of a run is the mean of its last three reports; that of a point, the mean over seeds.
    """
    protocol = config.protocol
    # The last stage decides.
    *_, epochs = (n for stage in study.stages if (n := study.epochs(config, stage)))
    axes = study.schema.sweep(protocol.sweep, config)
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
    """What the final training with one of the seeds learns, at a point of the sweep."""
    protocol = config.protocol
    run = Run("final", index, protocol.seeds, protocol.seed + index, point)
    fitted = study.fit(config, problem, run, checkpoints, partial(on_entry, run))
    return study.learned(config, problem, run, fitted)


def summary(
    study: Study[Any, Any], config: Any, outcome: Outcome, history: list[dict[str, Any]]
) -> dict[str, Any]:
    """What ``metrics.json`` holds.

    Returns:
      By name, the mean of each metric over the seeds, and, of several, the standard deviation as
      ``NAME_std``; under ``chosen`` the ``point`` of the sweep by name and, of a sweep, the score
      that decided; and the ``seconds`` that training took.
    """
    choice = outcome.choice
    found: dict[str, Any] = over_seeds(outcome.per_seed)
    chosen: dict[str, Any] = {"point": outcome.points[choice.point]}
    if not np.isnan(choice.score):
        chosen[study.decided_by(config)] = choice.score
    found["chosen"] = chosen
    last = {(e["phase"], e["run"], e.get("stage")): e["seconds"] for e in history}
    return found | {"seconds": round(sum(last.values()), 3)}
