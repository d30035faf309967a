"""Tests of the advice on a finished search."""

import numpy as np
import pytest

from crl_jax.train import Selection
from experiments.recommend._advice import advise_on_search

LR = {"lr": [1e-3, 1e-2, 3e-3]}


def advice(values, chosen, *, axes=LR, epochs=50, scores=None, n_users=1000):
    """Returns the advice on a search over these values, whose best point took ``epochs`` epochs."""
    points = [dict.fromkeys(axes, value) for value in values]
    scores = np.linspace(0.1, 0.2, len(points)) if scores is None else np.array(scores)
    best_epochs = np.full(len(points), epochs)
    choice = Selection(chosen, epochs, 0.2, scores, best_epochs)
    return [*advise_on_search(axes, points, choice, 100, n_users)]


def test_gives_no_advice_within_search_limits():
    assert advice([1e-3, 1e-2, 3e-3], chosen=2) == []
    assert advice([0.0], chosen=0, axes={}) == []
    assert advice([5.0], chosen=0, axes={"lr": [5.0]}) == []


@pytest.mark.parametrize(
    ("chosen", "end"), [(0, "0.001, is the smallest"), (1, "0.01, is the lar")]
)
def test_reports_optimum_at_edge_of_sweep(chosen, end):
    (line,) = advice([1e-3, 1e-2, 3e-3], chosen)
    assert line.startswith(f"The best --lr, {end}")


def test_reports_best_epoch_near_epoch_limit():
    (line,) = advice([1e-3, 1e-2, 3e-3], chosen=2, epochs=97)
    assert "after 97 of at most 100 epochs" in line
    assert advice([1e-3, 1e-2, 3e-3], chosen=2, epochs=94) == []


def test_reports_small_validation_set():
    (line,) = advice([1e-3, 1e-2, 3e-3], chosen=2, n_users=99)
    assert "only 99 users, too few to compare 3 points" in line
    diverged = [np.nan, np.nan, 0.2]
    assert advice([1e-3, 1e-2, 3e-3], chosen=2, n_users=99, scores=diverged) == []
