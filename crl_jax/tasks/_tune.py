"""Search for the hyper-parameters of a ranking task on validation data."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import jax
import numpy as np

from .._hyperparams import Range, check_fields
from ..train import (
    FitResult,
    HalvingResult,
    RungResult,
    TrainingDiverged,
    successive_halving,
    train_candidates,
)


@dataclass(frozen=True)
class Tuning:
    """Search of :func:`fit_ranking`: successive halving over the points of a grid.

    Attributes:
      space: Values by path, as for ``sweep``. The candidates are their Cartesian product.
      minutes: Time to spend, > 0, see :func:`crl_jax.train.successive_halving`; None for no limit.
      rungs: Lengths of the trainings of each rung as fractions of ``epochs``, ascending to 1.
      at_once: Number of candidates that are trained together at most.

    Raises:
      ValueError: If a number is out of range, or the space has no point.
    """

    space: Mapping[str, Sequence[float]]
    minutes: Annotated[float | None, Range(0, low_open=True)] = None
    rungs: tuple[float, ...] = (1 / 3, 1.0)
    at_once: Annotated[int, Range(1)] = 8

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.space or not all(len(values) for values in self.space.values()):
            raise ValueError(f"`space` must have a value for each path, got {dict(self.space)}.")
        ascending = list(self.rungs) == sorted(set(self.rungs))
        if not self.rungs or not ascending or self.rungs[0] <= 0 or self.rungs[-1] != 1:
            raise ValueError(f"`rungs` must ascend from above 0 to 1, got {self.rungs}.")

    @property
    def points(self) -> list[dict[str, float]]:
        """The candidates; the last path varies fastest."""
        return [
            dict(zip(self.space, values, strict=True))
            for values in itertools.product(*self.space.values())
        ]


@dataclass(frozen=True)
class TuningResult:
    """Result of a search.

    Attributes:
      points: The candidates.
      halving: Their trainings, and the best candidate.
      epochs: Number of epochs of each rung.
    """

    points: list[dict[str, float]]
    halving: HalvingResult
    epochs: tuple[int, ...]

    @property
    def point(self) -> dict[str, float]:
        """The best candidate."""
        assert self.halving.best is not None
        return self.points[self.halving.best]


def tune_runs(
    fit: Callable[..., FitResult], tuning: Tuning, epochs: int, seeds: Any
) -> tuple[FitResult, TuningResult]:
    """Returns the complete training of the best candidate, with all seeds, and the search.

    Args:
      fit: ``fit(epochs=…, seeds=…, sweep=…)`` with validation data.
      tuning: The search.
      epochs: Number of epochs of a complete training.
      seeds: Seeds of each candidate.

    Raises:
      TrainingDiverged: If all candidates diverge.
    """
    rung_epochs = tuple(sorted({max(1, round(share * epochs)) for share in tuning.rungs}))
    points, seeds = tuning.points, np.atleast_1d(seeds)
    n, n_seeds = len(points), len(seeds)
    complete: dict[tuple[int, ...], FitResult] = {}  # trainings of the last rung

    def train(rung: int, candidates: tuple[int, ...]) -> RungResult:
        chosen = [points[i] for i in candidates for _ in range(n_seeds)]
        fit_chosen = partial(
            fit,
            epochs=rung_epochs[rung],
            seeds=np.tile(seeds, len(candidates)),
            sweep={path: np.array([point[path] for point in chosen]) for path in tuning.space},
        )
        trained, fitted = train_candidates(fit_chosen, rung, candidates, n_seeds)
        if fitted is not None and rung == len(rung_epochs) - 1:
            complete[candidates] = fitted
        return trained

    groups = [range(i, min(n, i + tuning.at_once)) for i in range(0, n, tuning.at_once)]
    halving = successive_halving(train, groups, rung_epochs, minutes=tuning.minutes)
    if halving.best is None:
        raise TrainingDiverged("No candidate of the search reached a finite validation score.")
    (candidates,) = (group for group in complete if halving.best in group)
    first = candidates.index(halving.best) * n_seeds
    runs = slice(first, first + n_seeds)
    return _select(complete[candidates], runs), TuningResult(points, halving, rung_epochs)


def _select(fitted: FitResult, runs: slice) -> FitResult:
    """Returns the result of some of the runs."""
    arrays = ("params", "state", "hook_states", "run_params", "best_epoch", "best_score")
    selected = {name: jax.tree.map(lambda x: x[runs], getattr(fitted, name)) for name in arrays}
    history = [
        {name: value[runs] if isinstance(value, list) else value for name, value in entry.items()}
        for entry in fitted.history
    ]
    if (confidence := getattr(fitted, "confidence", None)) is not None:
        selected["confidence"] = confidence[runs]
    return replace(fitted, **selected, history=history)
