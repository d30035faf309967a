"""Successive halving: surviving candidates, time limit, and resuming."""

import re

import numpy as np
import pytest
from _helpers.refusals import raises
from hypothesis import given
from hypothesis import strategies as st

from crl_jax.train import RungResult, successive_halving


def trainer(quality, epochs, seconds_per_epoch=1.0):
    """Returns a training function that reads its scores from a table, and a list of its calls."""
    calls = []

    def train_fn(rung, candidates):
        calls.append((rung, candidates))
        scores = tuple(quality[rung][i] for i in candidates)
        seconds = seconds_per_epoch * epochs[rung] * len(candidates)
        return RungResult(rung, candidates, scores, (epochs[rung],) * len(candidates), seconds)

    return train_fn, calls


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12, unique=True),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_selects_best_candidate_if_rungs_rank_alike(scores, first, factor):
    epochs = (first, first * (factor + 1))
    train_fn, calls = trainer([scores, scores], epochs)
    half = len(scores) // 2
    groups = [g for g in (range(half), range(half, len(scores))) if len(g)]
    result = successive_halving(train_fn, groups, epochs)
    assert result.best == int(np.argmax(scores))
    assert result.score == max(scores)
    survivors = sorted(i for rung, chosen in calls if rung == 1 for i in chosen)
    n_kept = max(1, round(len(scores) / (factor + 1)))
    assert survivors == sorted(np.argsort(scores)[::-1][:n_kept])


def test_last_rung_selects_best_candidate():
    train_fn, _ = trainer([[0.9, 0.8, 0.1, 0.2], [0.3, 0.6, 1.0, 1.0]], (2, 4))
    result = successive_halving(train_fn, [range(4)], (2, 4))
    assert (result.best, result.best_epoch, result.score) == (1, 4, 0.6)
    assert result.last(0) == (1, 0.3, 4)
    assert result.last(2) == (0, 0.1, 2)
    assert result.last(4) is None
    assert result.seconds == 4 * 2 + 2 * 4


def test_each_label_keeps_its_best_candidate():
    short, long = [0.9, 0.8, 0.7, 0.1, 0.2, 0.6], [0.5] * 4 + [0.9, 0.5]
    train_fn, calls = trainer([short, long], (2, 4))
    labels = ["a", "a", "a", "b", "b", "c"]
    result = successive_halving(train_fn, [range(6)], (2, 4), labels=labels)
    assert [chosen for rung, chosen in calls if rung == 1] == [(0, 4, 5)]
    assert result.best == 4
    train_fn, calls = trainer([short, long], (1, 4))
    successive_halving(train_fn, [range(6)], (1, 4), labels=labels)  # 6 / 4, but three labels
    assert [chosen for rung, chosen in calls if rung == 1] == [(0, 4, 5)]
    train_fn, calls = trainer([short, long], (1, 4))
    successive_halving(train_fn, [range(6)], (1, 4), labels=labels, minutes=13 / 60)
    assert [chosen for rung, chosen in calls if rung == 1] == [(0,)]  # 7 s are left


@pytest.mark.parametrize(("keep", "n_last"), [(None, 3), (1, 1), (5, 5), (9, 6)])
def test_keep_sets_number_of_survivors(keep, n_last):
    train_fn, calls = trainer([[0.1] * 6] * 2, (2, 4))
    successive_halving(train_fn, [range(6)], (2, 4), keep=keep)
    assert [len(chosen) for rung, chosen in calls if rung == 1] == [n_last]
    with raises(ValueError, match="`keep` must be"):
        successive_halving(train_fn, [range(6)], (2, 4), keep=0)


@pytest.mark.parametrize("minutes", [None, 1.0])
def test_accepts_trainings_of_zero_seconds(minutes):
    train_fn, _ = trainer([[0.1, 0.2], [0.3, 0.4]], (2, 4), seconds_per_epoch=0.0)
    assert successive_halving(train_fn, [range(2)], (2, 4), minutes=minutes).score == 0.4


def test_ties_select_first_and_diverged_candidates_lose():
    nan = float("nan")
    train_fn, _ = trainer([[nan, 0.5, 0.5]], (3,))
    assert successive_halving(train_fn, [range(3)], (3,)).best == 1
    train_fn, _ = trainer([[nan, nan]], (3,))
    assert successive_halving(train_fn, [range(2)], (3,)).best is None


@pytest.mark.parametrize(
    ("minutes", "n_first", "n_last"),
    [
        (None, 8, 4),
        (1000 / 60, 8, 4),
        (16 / 60, 4, 2),  # half of 16 s is spent after two groups of two, of 2 s each
        (0.1 / 60, 2, 1),  # one group at least, and one complete training
    ],
)
def test_time_limit_reduces_candidates(minutes, n_first, n_last):
    epochs = (2, 4)
    train_fn, calls = trainer([list(range(8)), list(range(8))], epochs)
    successive_halving(train_fn, [(0, 1), (2, 3), (4, 5), (6, 7)], epochs, minutes=minutes)
    assert sum(len(chosen) for rung, chosen in calls if rung == 0) == n_first
    assert sum(len(chosen) for rung, chosen in calls if rung == 1) == n_last


@pytest.mark.parametrize("n_done", range(5))
def test_interrupted_search_resumes(n_done):
    epochs, groups, new = (2, 4), [(0, 1), (2, 3), (4, 5)], []
    quality = [[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]]
    train_fn, _ = trainer(quality, epochs)
    whole = successive_halving(train_fn, groups, epochs, minutes=0.5)
    done = whole.trained[:n_done]
    again, calls = trainer(quality, epochs, seconds_per_epoch=99)
    after = successive_halving(again, groups, epochs, minutes=0.5, done=done, on_trained=new.append)
    assert len(calls) == len(new) == len(after.trained) - n_done
    assert after.trained[:n_done] == done
    if n_done == len(whole.trained):
        assert after == whole


def test_rejects_results_of_another_search():
    train_fn, _ = trainer([[1, 2]], (3,))
    done = [RungResult(0, (1,), (0.5,), (3,), 1.0)]
    with raises(
        ValueError,
        match=re.escape(
            "`done` must be of a search with equal arguments: expected rung 0 of (0, 1), got"
        ),
    ):
        successive_halving(train_fn, [(0, 1)], (3,), done=done)


@pytest.mark.parametrize(
    ("groups", "epochs", "minutes", "message"),
    [
        ([], (3,), None, "`groups` must hold each index from 0 once, got []."),
        ([(0, 2)], (3,), None, "`groups` must hold each index from 0 once"),
        ([(0,)], (), None, "`epochs` must be ascending, got ()."),
        ([(0,)], (3, 3), None, "`epochs` must be ascending, got (3, 3)."),
        ([(0,)], (0, 3), None, "`epochs` must be at least 1, got 0."),
        ([(0,)], (3,), 0, "`minutes` must"),
    ],
)
def test_rejects_invalid_arguments(groups, epochs, minutes, message):
    with raises(ValueError, match=re.escape(message)):
        successive_halving(lambda *_: None, groups, epochs, minutes=minutes)


def test_rejects_missing_labels():
    with raises(ValueError, match="`labels` must have one for each of 2 candidates, got 1."):
        successive_halving(lambda *_: None, [(0, 1)], (3,), labels=["a"])
