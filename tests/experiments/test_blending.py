"""Tests of the choice of the models of a blend."""

import numpy as np
import pytest

from experiments.recommend._blending import choose

pytestmark = pytest.mark.usefixtures("unchecked")


def scores_of(values, n_users=400, noise=0.1, seed=0):
    """Returns a function of the scores of users: of each choice the mean, and independent noise."""
    rng = np.random.default_rng(seed)
    noises = {}

    def score(chosen):
        key = tuple(np.flatnonzero(chosen).tolist())
        if key not in noises:
            noises[key] = rng.normal(size=n_users)
            noises[key] -= noises[key].mean()
        return values.get(key, 0.0) + noise * noises[key]

    return score


def test_the_best_change_comes_first():
    """The standard error of a difference is 0.1 · √2 / 20 = 0.007."""
    values = {(0, 1): 0.3, (0, 1, 2): 0.32, (0, 1, 3): 0.35, (1, 3): 0.4, (1, 2, 3): 0.38}
    chosen, scores = choose(scores_of(values), [True, True, False, False], [True] * 4, 3)
    assert chosen.tolist() == [False, True, False, True]
    assert scores.mean() == pytest.approx(0.4)


def test_a_gain_within_the_standard_error_is_none():
    values = {(0,): 0.3, (0, 1): 0.305}
    assert choose(scores_of(values), [True, False], [True, True], 2)[0].tolist() == [True, False]
    more_users = scores_of(values, n_users=40_000)
    assert choose(more_users, [True, False], [True, True], 2)[0].tolist() == [True, True]


def test_the_number_of_models_is_limited():
    values = {(0,): 0.3, (0, 1): 0.5, (0, 1, 2): 0.9}
    start, is_own = [True, False, False], [True] * 3
    assert choose(scores_of(values), start, is_own, 2)[0].tolist() == [True, True, False]
    assert choose(scores_of(values), start, is_own, 3)[0].tolist() == [True, True, True]


def test_one_model_remains():
    values = {(0,): -1.0, (): 1.0}
    assert choose(scores_of(values), [True], [True], 1)[0].tolist() == [True]


def test_an_own_model_remains():
    values = {(0,): 0.3, (0, 1): 0.4, (1,): 0.5}
    assert choose(scores_of(values), [True, False], [True, True], 2)[0].tolist() == [False, True]
    assert choose(scores_of(values), [True, False], [True, False], 2)[0].tolist() == [True, True]


def test_one_user_changes_nothing():
    values = {(0,): 0.3, (0, 1): 0.4}
    chosen, _ = choose(scores_of(values, n_users=1), [True, False], [True, True], 2)
    assert chosen.tolist() == [True, False]
