"""Grid search: grids of runs and model selection on validation data."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .._checks import check_range
from ._fit import FitResult

VALID = "valid_"
"""Prefix of validation metrics in a history."""


@dataclass(frozen=True)
class Selection:
    """Best point of a grid and its number of epochs.

    Attributes:
      point: Index of the best point.
      epochs: Number of epochs with its best mean validation score over the seeds, or a larger one
        within the tolerance of :func:`select_best`.
      score: The score after these epochs.
      scores: Such a score of every point, ``[points]``; NaN for diverged points.
      best_epochs: Epochs of these scores, ``[points]``; 0 for diverged points.
    """

    point: int
    epochs: int
    score: float
    scores: np.ndarray
    best_epochs: np.ndarray


def grid(axes: Mapping[str, Sequence[float]], seeds: Sequence[int] = (0,)) -> dict[str, np.ndarray]:
    """Cartesian product of hyper-parameter values and seeds, as arrays over runs for :func:`fit`.

    Args:
      axes: Values by name.
      seeds: Seeds; they vary fastest.

    Returns:
      Arrays of length ``points * len(seeds)`` by name, including ``seeds``.

    >>> {name: runs.tolist() for name, runs in grid({"lr": [0.1, 0.2]}, seeds=[0, 1]).items()}
    {'lr': [0.1, 0.1, 0.2, 0.2], 'seeds': [0, 1, 0, 1]}
    """
    for name, values in {**axes, "seeds": seeds}.items():
        if not len(values):
            raise ValueError(f"`{name}` must have at least one value, got none.")
    points = list(itertools.product(*axes.values(), seeds))
    columns = zip(*points, strict=True)
    return {name: np.asarray(c) for name, c in zip((*axes, "seeds"), columns, strict=True)}


def select_best(
    fitted: FitResult, n_seeds: int = 1, *, window: int = 3, tolerance: float = 0.0
) -> Selection:
    """Selects the point and the number of epochs with the best validation score.

    Scores are averaged over seeds and over ``window`` neighbouring evaluations. The maximum of
    many noisy scores is biased upwards, most of all for the noisiest points, those with too high a
    learning rate; averaging reduces this bias. The first and last evaluations of a run are repeated
    in place of missing neighbours, so that neither end is favoured.

    Args:
      fitted: Runs in the order of :func:`grid`, trained with validation data.
      n_seeds: Number of seeds per point.
      window: Number of evaluations to average, odd.
      tolerance: Relative difference to the best score of a point, >= 0, within which the largest
        number of epochs is selected. With a learning rate that decays to zero, a complete training
        is a better choice than an earlier maximum that is due to chance.

    Returns:
      The :class:`Selection`; ties are broken in favour of the earlier point and, without a
      tolerance, the earlier epoch.

    Raises:
      ValueError: If the runs have no validation metric, their number is not a multiple of
        ``n_seeds``, ``window`` is not odd, or ``tolerance`` is negative.
    """
    metric = next((name for name in fitted.history[0] if name.startswith(VALID)), None)
    if metric is None:
        raise ValueError("`fitted` must have been trained with validation data, got none.")
    if window < 1 or window % 2 == 0:
        raise ValueError(f"`window` must be odd and positive, got {window}.")
    check_range("tolerance", tolerance, 0.0, np.inf, high_open=True)
    if fitted.n_runs % n_seeds:
        raise ValueError(f"`n_seeds` must divide {fitted.n_runs} runs, got {n_seeds}.")
    epochs = np.array([entry["epoch"] for entry in fitted.history])
    curves = np.array([entry[metric] for entry in fitted.history], float)
    # Reports past a run's own length, while longer runs continued, are not its results.
    is_within = epochs[:, None] <= fitted.run_params["epochs"]
    lengths = is_within.sum(axis=0)[::n_seeds]
    means = _smooth(curves.reshape(len(epochs), -1, n_seeds).mean(axis=-1), lengths, window)
    ranked = np.where(np.isnan(means), -np.inf, means)
    rows = ranked.argmax(axis=0)
    if tolerance:
        best = ranked.max(axis=0)
        is_close = ranked >= best - tolerance * np.abs(best)
        rows = len(ranked) - 1 - is_close[::-1].argmax(axis=0)
    scores = means[rows, np.arange(means.shape[1])]
    best_epochs = np.where(np.isnan(scores), 0, epochs[rows])
    point = int(np.where(np.isnan(scores), -np.inf, scores).argmax())
    return Selection(point, int(best_epochs[point]), float(scores[point]), scores, best_epochs)


def _smooth(curves: np.ndarray, lengths: np.ndarray, window: int) -> np.ndarray:
    """Moving average along axis 0; NaN past the length of a column."""
    rows = np.arange(len(curves))[:, None]
    offsets = range(-(window // 2), window // 2 + 1)
    shifted = [
        np.take_along_axis(curves, np.clip(rows + i, 0, lengths - 1), axis=0) for i in offsets
    ]
    return np.where(rows < lengths, np.mean(shifted, axis=0), np.nan)
