"""Loss comparison: search points and significance tests."""

import json

import numpy as np
import pytest
from _helpers.commands import call
from scipy import stats

from benchmarks import losses
from benchmarks._report import read_csv, write_csv
from benchmarks._significance import compare_with
from experiments._study_command import configure
from experiments.recommend._study import Recommend


@pytest.mark.parametrize("loss", losses.LOSSES)
def test_each_loss_accepts_its_eight_points(loss):
    name = losses.searched_hyperparameter(loss)
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


def test_update_keeps_rows_of_other_losses(monkeypatch, tmp_path):
    def run(command, flags, folder):
        folder.mkdir(parents=True)
        loss = flags[flags.index("--loss") + 1]
        score = {"info_nce": 0.4, "dpl": 0.5}[loss]
        chosen = {"point": {losses.searched_hyperparameter(loss): 0.1}}
        found = {"ndcg@20": score, "seconds": 1.0, "chosen": chosen}
        (folder / "metrics.json").write_text(json.dumps(found))
        seeds = [{"ndcg@20": score + x} for x in (-0.01, 0.01)]
        (folder / "metrics_by_seed.json").write_text(json.dumps(seeds))

    rng = np.random.default_rng(0)
    monkeypatch.setattr(losses, "run", run)
    monkeypatch.setattr(losses, "per_user", lambda _: rng.normal(size=9))
    path = tmp_path / "losses.csv"
    names = "bayesian", "info_nce", "bpr"
    scores = 0.45, 0.4, 0.3
    write_csv(path, [
        {"loss": name, "ndcg@20": score, "numpy": "1"}
        for name, score in zip(names, scores, strict=True)
    ])  # fmt: skip
    flags = "--losses", "dpl", "--seeds", 2, "--runs", tmp_path / "runs", "--out", path
    call(losses, monkeypatch, "--data", "sets", *flags)
    rows = read_csv(path)
    assert [row["loss"] for row in rows] == ["dpl", "bayesian", "info_nce", "bpr"]
    assert [row["numpy"] == "1" for row in rows] == [False, True, False, True]
