"""Test of model selection by a sweep over several seeds."""

import numpy as np
import pytest

from crl_jax import data, losses, models, tasks, train
from experiments.recommend._config import Config
from experiments.recommend._options import ProtocolOptions, TrainOptions
from experiments.recommend._problem import Problem
from experiments.recommend._study import Recommend

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


@pytest.mark.slow
def test_sweep_averages_over_search_seeds(tmp_path):
    log = data.simulate(n_users=50, n_items=60, n_exposed=40, seed=3).interactions
    split = data.split_by_ratio(log, test=0.2)
    cut = data.with_validation(split.train, valid=0.2)
    problem = Problem(cut.train, cut.valid, split.test, split.train)
    config = Config(
        training=TrainOptions(dim=4, epochs=3, batch_size=64, lr=0.05),
        protocol=ProtocolOptions(
            sweep=("lr=0.01,0.1",), search_seeds=3, seeds=2, seed=5, final_training="train"
        ),
    )
    history = []
    outcome = Recommend().search(
        config, problem, tmp_path, lambda runs, entry: history.append(entry), lambda _: None
    )
    scores = np.array([entry["valid_ndcg@20"] for entry in history])  # [epochs, points x seeds]
    assert scores.shape == (3, 6)
    means = np.stack([scores[:, :3].mean(1), scores[:, 3:].mean(1)], axis=1)
    padded = np.concatenate([means[:1], means, means[-1:]])
    near = np.stack([padded[i : i + 3].mean(0) for i in range(3)])
    np.testing.assert_allclose(outcome.choice.scores, near.max(0), rtol=1e-6)
    best = int(near.max(0).argmax())
    assert outcome.choice.point == best
    # The two runs kept are those of the best point with the first two seeds, 5 and 6.
    again = tasks.fit_ranking(
        cut.train, cut.valid, loss=losses.bpr, encoder=models.MatrixFactorization(50, 60, 4),
        hyperparams={"temperature": 1.0}, config=train.TrainConfig(64), epochs=3,
        optimizer=train.Optimizer([0.01, 0.1][best], 1e-5, schedule=train.step_decay),
        seeds=np.array([5, 6]),
    )  # fmt: skip
    for run, tables in enumerate(outcome.models):
        for got, want in zip(tables, again.tables(run), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
