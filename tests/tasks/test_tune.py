"""Search of `fit_ranking` by successive halving."""

import re

import numpy as np
import pytest
from _helpers.ranking import split
from _helpers.refusals import raises

from crl_jax import losses, metrics, models, tasks, train

LR = "optimizer.learning_rate"
pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def fit(**given):
    parts = split()
    settings = {
        "loss": losses.bpr, "epochs": 20, "optimizer": train.Optimizer(1e-3, 0.0),
        "config": train.TrainConfig(64), "stopping": tasks.Stopping(patience=20, k=5),
    }  # fmt: skip
    return tasks.fit_ranking(parts.train, parts.valid, **{**settings, **given})


def test_search_returns_full_training_of_best_candidate():
    rates = (1e-6, 3e-2, 1e-3)
    tune = tasks.Tuning({LR: rates}, rungs=(0.5, 1.0), at_once=2)
    fitted = fit(tune=tune, seeds=[3, 4])
    assert fitted.tuning.points == [{LR: rate} for rate in rates]
    assert fitted.tuning.point == {LR: 3e-2}
    assert fitted.tuning.epochs == (10, 20)
    assert fitted.n_runs == 2
    # The same training alone. The runs of the last rung were trained with those of another point.
    alone = fit(seeds=[3, 4], sweep={LR: np.full(2, 3e-2)})
    np.testing.assert_allclose(fitted.best_score, alone.best_score, rtol=1e-4)
    np.testing.assert_array_equal(fitted.best_epoch, alone.best_epoch)
    assert [entry["epoch"] for entry in fitted.history] == [e["epoch"] for e in alone.history]
    assert all(len(entry["loss"]) == 2 for entry in fitted.history)
    chosen = train.select_best(alone, 2)
    np.testing.assert_allclose(fitted.tuning.halving.score, chosen.score, rtol=1e-4)
    layout = metrics.eval_layout(split().train, split().valid)
    values = metrics.evaluate(models.inner_scores, fitted.tables(1), layout, ks=(5,))
    np.testing.assert_allclose(np.mean(values["ndcg@5"]), fitted.best_score[1], rtol=1e-5)


def test_search_does_not_select_diverged_candidate():
    tune = tasks.Tuning({LR: (1e30, 1e-2)}, at_once=1)
    fitted = fit(tune=tune, optimizer=train.Optimizer(1e-3, 0.0, rule=train.sgd_l2))
    assert fitted.tuning.point == {LR: 1e-2}
    assert np.isnan(fitted.tuning.halving.trained[0].scores[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sweep": {LR: [0.1]}}, "`sweep` must be empty with `tune`"),
        ({"epochs": [3, 4]}, "`epochs` must be a whole number"),
        ({"tune": {LR: [0.1]}}, "`tune` must be a tasks.Tuning"),
        ({"hooks": [train.Callback()]}, "`hooks` must be empty with `tune`"),
    ],
)
def test_rejects_arguments_incompatible_with_search(given, message):
    with raises(ValueError, match=re.escape(message)):
        fit(**{"tune": tasks.Tuning({LR: (0.1,)}), **given})


def test_search_requires_validation_data():
    with raises(ValueError, match=re.escape("`valid` must be given with `tune`, got None.")):
        tasks.fit_ranking(split().train, loss=losses.bpr, tune=tasks.Tuning({LR: (0.1,)}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"space": {}}, "`space` must have a value for each path"),
        ({"space": {LR: ()}}, "`space` must have a value for each path"),
        ({"minutes": 0}, "`minutes` must"),
        ({"rungs": (0.5,)}, "`rungs` must ascend from above 0 to 1"),
        ({"rungs": (1.0, 1.0)}, "`rungs` must ascend"),
        ({"at_once": 0}, "`at_once` must"),
    ],
)
def test_tuning_rejects_invalid_arguments(given, message):
    with raises(ValueError, match=re.escape(message)):
        tasks.Tuning(**{"space": {LR: (0.1,)}, **given})
