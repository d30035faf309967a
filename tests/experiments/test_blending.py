"""Tests of model selection for blends."""

import numpy as np
import pytest

from experiments.recommend._blending import choose

pytestmark = pytest.mark.usefixtures("unchecked")


def make_score(values, n_users=400, noise=0.1, seed=0):
    """Returns a function from a selection to user scores: its mean plus independent noise."""
    rng = np.random.default_rng(seed)
    noises = {}

    def score(chosen):
        key = tuple(np.flatnonzero(chosen).tolist())
        if key not in noises:
            noises[key] = rng.normal(size=n_users)
            noises[key] -= noises[key].mean()
        return values.get(key, 0.0) + noise * noises[key]

    return score


def test_applies_best_change_first():
    """The standard error of a difference is 0.1 · √2 / 20 = 0.007."""
    values = {(0, 1): 0.3, (0, 1, 2): 0.32, (0, 1, 3): 0.35, (1, 3): 0.4, (1, 2, 3): 0.38}
    chosen, scores = choose(make_score(values), [True, True, False, False], [True] * 4, 3)
    assert chosen.tolist() == [False, True, False, True]
    assert scores.mean() == pytest.approx(0.4)


def test_ignores_gain_within_standard_error():
    values = {(0,): 0.3, (0, 1): 0.305}
    assert choose(make_score(values), [True, False], [True, True], 2)[0].tolist() == [True, False]
    more_users = make_score(values, n_users=40_000)
    assert choose(more_users, [True, False], [True, True], 2)[0].tolist() == [True, True]


def test_limits_number_of_models():
    values = {(0,): 0.3, (0, 1): 0.5, (0, 1, 2): 0.9}
    start, is_own = [True, False, False], [True] * 3
    assert choose(make_score(values), start, is_own, 2)[0].tolist() == [True, True, False]
    assert choose(make_score(values), start, is_own, 3)[0].tolist() == [True, True, True]


def test_keeps_at_least_one_model():
    values = {(0,): -1.0, (): 1.0}
    assert choose(make_score(values), [True], [True], 1)[0].tolist() == [True]


def test_keeps_at_least_one_own_model():
    values = {(0,): 0.3, (0, 1): 0.4, (1,): 0.5}
    assert choose(make_score(values), [True, False], [True, True], 2)[0].tolist() == [False, True]
    assert choose(make_score(values), [True, False], [True, False], 2)[0].tolist() == [True, True]


def test_single_user_changes_nothing():
    values = {(0,): 0.3, (0, 1): 0.4}
    chosen, _ = choose(make_score(values, n_users=1), [True, False], [True, True], 2)
    assert chosen.tolist() == [True, False]
