"""The comparison of all losses: what is searched, and its tests."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import losses
from benchmarks._significance import compare_with
from experiments._study_command import configure
from experiments.recommend._study import Recommend


@pytest.mark.parametrize("loss", losses.LOSSES)
def test_each_loss_takes_its_eight_points(loss):
    name = losses.searched(loss)
    assert len(losses.POINTS[name]) == 8
    values = ",".join(map(str, losses.POINTS[name]))
    config, _, _ = configure(Recommend(), ["--loss", loss, "--sweep", f"{name}={values}"])
    Recommend().check(config)


def test_p_values_are_adjusted_over_all_losses():
    rng = np.random.default_rng(0)
    names = ["bpr", "info_nce", "dpl"]
    seeds = [rng.normal(mean, 0.01, 5) for mean in (0.4, 0.42, 0.45)]
    users = [rng.normal(mean, 0.1, 50) for mean in (0.4, 0.42, 0.45)]
    rows = [
        {"loss": name, "ndcg@20": float(of.mean())} for name, of in zip(names, seeds, strict=True)
    ]
    compare_with(1, rows, seeds, users)
    assert "gain" not in rows[1]
    assert rows[2]["gain"] == pytest.approx(seeds[2].mean() - seeds[1].mean())
    low, high = sorted(
        (stats.ttest_rel(users[i], users[1]).pvalue, i) for i in (0, 2)
    )  # Holm: twice the smaller one, and the larger one, but at least as much
    assert rows[low[1]]["p_users"] == pytest.approx(2 * low[0])
    assert rows[high[1]]["p_users"] == pytest.approx(max(2 * low[0], high[0]))
    want = stats.ttest_ind(seeds[0], seeds[1], equal_var=False).pvalue
    assert rows[0]["p_seeds"] >= want
