"""Tests of ``--debias auto``: searched and estimated hyper-parameters, and errors."""

import json

import numpy as np
import pytest
from _helpers.studies import history

from benchmarks import debias
from crl_jax import data, tasks
from experiments._study_command import configure
from experiments.recommend import main
from experiments.recommend._config import SCHEMA
from experiments.recommend._ranking import hyperparam_estimator
from experiments.recommend._study import Recommend

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def make_config(flags):
    config, _, _ = configure(Recommend(), ["--debias", "auto", *flags.split()])
    Recommend().check(config)
    return config


@pytest.mark.parametrize("loss", ["bayesian", "hard", "debiased", "dpl"])
def test_debias_auto_searches_beta_and_estimates_alpha(loss):
    axes = SCHEMA.axes(make_config(f"--loss {loss}"))
    assert ("beta" in axes) == (loss in ("bayesian", "hard"))
    assert not {"tau_plus", "alpha"} & axes.keys()
    estimator = hyperparam_estimator(make_config(f"--loss {loss}"))
    assert estimator is (tasks.alpha_from_batch if loss == "bayesian" else None)


def test_given_hyperparams_are_not_searched():
    assert SCHEMA.axes(make_config("--loss bayesian --beta 0.6")).keys() == {"temperature"}
    assert SCHEMA.axes(make_config("--loss bayesian --temperature 0.3")).keys() == {"beta"}
    config, _, _ = configure(Recommend(), ["--loss", "bayesian"])
    assert SCHEMA.axes(config).keys() == {"temperature"}
    assert hyperparam_estimator(config) is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--loss info_nce", "needs one of the losses"),
        ("--loss auto", "needs one of the losses"),
        ("--loss bayesian --alpha 0.8", "omit --alpha"),
        ("--loss bayesian --sweep alpha=0.7,0.9", "omit --sweep alpha"),
        ("--loss bayesian --tune 1", "omit --tune"),
    ],
)
def test_rejects_incompatible_flags(flags, message):
    with pytest.raises(ValueError, match=message):
        make_config(flags)


def test_run_stores_searched_and_estimated_hyperparams(tmp_path, capsys):
    log = data.simulate(n_users=40, n_items=50, n_exposed=40, seed=1).interactions
    rows = [f"{u},{i}" for u, i in zip(log.users, log.items)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item", *rows]))
    flags = ["--data", str(tmp_path / "log.csv"), "--loss", "bayesian", "--debias", "auto",
             "--temperature", "0.3", "--epochs", "4", "--dim", "8", "--baselines", "none",
             "--out", str(tmp_path / "run")]  # fmt: skip
    assert main(flags) == 0, capsys.readouterr().err
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["protocol"]["debias"] == "auto"
    assert 0 < stored["objective"]["tau_plus"] < 1
    results = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert results["chosen"]["point"]["beta"] in (0.5, 0.7, 0.9)
    assert all(0.5 <= np.min(entry["alpha"]) <= 0.99 for entry in history(tmp_path / "run"))


def test_regret_benchmark_orders_worst_searched_and_best():
    log = data.simulate(n_users=40, n_items=50, n_exposed=40, seed=1).interactions
    split = data.with_validation(data.split_by_ratio(log, test=0.2), valid=0.1)
    (row,) = debias.measure(split, "bayesian", 1, epochs=6)
    assert row["points"] == 12
    assert 0.5 <= row["alpha"] <= 0.99
    assert row["tau_plus"] == pytest.approx(split.train.density)
    assert row["ndcg@20_worst"] <= row["ndcg@20_searched"] <= row["ndcg@20_best"]
    assert row["regret_best"] >= row["regret_searched"]
    assert row["cost"] == pytest.approx(5 / 3)
    (row,) = debias.measure(split, "dpl", 1, epochs=2)
    assert (row["points"], row["cost"]) == (4, 1)
    assert row["best_tau_plus"] in (0, 1, 2, 4)
    assert np.isnan(row["best_beta"])


def test_summary_computes_regret_from_mean_scores():
    scores = {"ndcg@20": 0.2, "ndcg@20_searched": 0.2, "ndcg@20_best": 0.25, "ndcg@20_worst": 0.1}
    first = {
        "dataset": "d", "interactions": 9, "loss": "dpl", "epochs": 3, "points": 4, "cost": 1.0,
        "tau_plus": 0.1, "alpha": np.nan, "beta": np.nan, **scores, "regret_searched": 0.0,
        "regret_best": 0.2, "best_tau_plus": 4.0, "best_beta": np.nan, "searched_tau_plus": 1.0,
    }  # fmt: skip
    second = {**first, "ndcg@20_searched": 0.3, "regret_searched": 1 / 3, "best_tau_plus": 2.0}
    row = debias.summarize([first, second])
    assert row["regret_searched"] == pytest.approx(0.2)
    assert row["regret_searched_std"] == pytest.approx(1 / 6)
    assert (row["seeds"], row["best_tau_plus"], row["best_beta"]) == (2, "2, 4", "")
