"""Grids of runs, and the choice among them on validation data."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ._fit import Fitted


@dataclass(frozen=True)
class Choice:
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


def choose(fitted: Fitted, n_seeds: int = 1) -> Choice:
    """The point and stopping epoch with the best validation score, averaged over seeds.

    Args:
      fitted: Runs in the order of :func:`grid`, trained with validation data.
      n_seeds: Seeds per point.

    Returns:
      The :class:`Choice`; ties go to the earlier point and epoch.

    Raises:
      ValueError: If the runs were trained without validation data, or are not a whole number of
        points.
    """
    metric = next((name for name in fitted.history[0] if name.startswith("ndcg@")), None)
    if metric is None:
        raise ValueError("`fitted` must have been trained with validation data, got none.")
    if fitted.n_runs % n_seeds:
        raise ValueError(f"`n_seeds` must divide {fitted.n_runs} runs, got {n_seeds}.")
    epochs = np.array([entry["epoch"] for entry in fitted.history])
    curves = np.array([entry[metric] for entry in fitted.history], float)
    # What a run did past its own length, while longer runs went on, is not one of its results.
    curves[epochs[:, None] > fitted.knobs["epochs"]] = np.nan
    means = curves.reshape(len(epochs), -1, n_seeds).mean(axis=-1)
    ranked = np.where(np.isnan(means), -np.inf, means)
    rows = ranked.argmax(axis=0)
    scores = means[rows, np.arange(means.shape[1])]
    best_epochs = np.where(np.isnan(scores), 0, epochs[rows])
    point = int(ranked.max(axis=0).argmax())
    return Choice(point, int(best_epochs[point]), float(scores[point]), scores, best_epochs)
