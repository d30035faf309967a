"""Grids of runs, and the choice among them on validation data."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ._fit import FitResult

VALID = "valid_"
"""What the name of a validation score in a history begins with."""


@dataclass(frozen=True)
class Selection:
    """The best point of a grid and when to stop there.

    Attributes:
      point: Index of the point.
      epochs: Epochs after which the mean validation score over the seeds was best.
      score: That score.
      scores: Best mean score of every point, ``[points]``; NaN for one that diverged.
      best_epochs: Epochs it was reached after, ``[points]``; 0 for one that diverged.
    """

    point: int
    epochs: int
    score: float
    scores: np.ndarray
    best_epochs: np.ndarray


def grid(axes: Mapping[str, Sequence[float]], seeds: Sequence[int] = (0,)) -> dict[str, np.ndarray]:
    """All combinations of the values, each with every seed, as arrays over runs for :func:`fit`.

    Args:
      axes: Values to try by name.
      seeds: Seeds; they vary fastest.

    Returns:
      Arrays of length ``points * len(seeds)`` by name, ``seeds`` among them.

    >>> {name: runs.tolist() for name, runs in grid({"lr": [0.1, 0.2]}, seeds=[0, 1]).items()}
    {'lr': [0.1, 0.1, 0.2, 0.2], 'seeds': [0, 1, 0, 1]}
    """
    for name, values in {**axes, "seeds": seeds}.items():
        if not len(values):
            raise ValueError(f"`{name}` must have at least one value to try, got none.")
    points = list(itertools.product(*axes.values(), seeds))
    columns = zip(*points, strict=True)
    return {name: np.asarray(c) for name, c in zip((*axes, "seeds"), columns, strict=True)}


def select_best(fitted: FitResult, n_seeds: int = 1, *, window: int = 3) -> Selection:
    """The point and stopping epoch with the best validation score.

    The score is averaged over seeds and over ``window`` neighbouring evaluations. The best of
    many noisy numbers is mostly lucky, and favours the points that are noisiest: those with a
    learning rate too high. An average over neighbours takes the luck out. The first and the last
    evaluation of a run stand in for the neighbours that they lack, so that neither end is
    preferred.

    Args:
      fitted: Runs in the order of :func:`grid`, trained with validation data.
      n_seeds: Seeds per point.
      window: Evaluations to average, odd.

    Returns:
      The :class:`Selection`; ties go to the earlier point and epoch.

    Raises:
      ValueError: If the runs were trained without validation data, or are not a whole number of
        points, or ``window`` is not odd.
    """
    metric = next((name for name in fitted.history[0] if name.startswith(VALID)), None)
    if metric is None:
        raise ValueError("`fitted` must have been trained with validation data, got none.")
    if window < 1 or window % 2 == 0:
        raise ValueError(f"`window` must be odd and positive, got {window}.")
    if fitted.n_runs % n_seeds:
        raise ValueError(f"`n_seeds` must divide {fitted.n_runs} runs, got {n_seeds}.")
    epochs = np.array([entry["epoch"] for entry in fitted.history])
    curves = np.array([entry[metric] for entry in fitted.history], float)
    # What a run did past its own length, while longer runs went on, is not one of its results.
    own = epochs[:, None] <= fitted.numbers["epochs"]
    lengths = own.sum(axis=0)[::n_seeds]
    means = _smooth(curves.reshape(len(epochs), -1, n_seeds).mean(axis=-1), lengths, window)
    ranked = np.where(np.isnan(means), -np.inf, means)
    rows = ranked.argmax(axis=0)
    scores = means[rows, np.arange(means.shape[1])]
    best_epochs = np.where(np.isnan(scores), 0, epochs[rows])
    point = int(ranked.max(axis=0).argmax())
    return Selection(point, int(best_epochs[point]), float(scores[point]), scores, best_epochs)


def _smooth(curves: np.ndarray, lengths: np.ndarray, window: int) -> np.ndarray:
    """Mean of each row with its neighbours; NaN in the rows past the length of a column."""
    rows = np.arange(len(curves))[:, None]
    reach = range(-(window // 2), window // 2 + 1)
    near = [np.take_along_axis(curves, np.clip(rows + i, 0, lengths - 1), axis=0) for i in reach]
    return np.where(rows < lengths, np.mean(near, axis=0), np.nan)
