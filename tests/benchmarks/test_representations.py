"""Tests of the representation benchmark: results per loss, with tests against the first."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from _helpers.commands import call
from _helpers.refusals import raises
from scipy import stats

from benchmarks import _comparison, representations
from benchmarks._report import read_csv
from experiments._study_command import configure
from experiments.graphs._study import GraphStudy
from experiments.pairs._study import Pairs
from experiments.text._study import TextStudy

SEEDS = 3
GAIN = {"decoupled": 0.0, "info_nce": 0.1, "debiased": 0.01, "hard": 0.0, "bayesian": -0.01}


def seed_scores(loss: str) -> np.ndarray:
    """Returns the synthetic scores of all seeds with a loss."""
    noise = np.random.default_rng(len(loss)).normal(scale=0.01, size=SEEDS)
    return 0.8 + np.arange(SEEDS) / 100 + GAIN[loss] + noise


@pytest.fixture
def runs(monkeypatch) -> list[tuple[str, ...]]:
    """Replaces the run of a command by synthetic metrics; records the flags."""
    done = []

    def run(command: str, flags: list[str], folder: Path) -> None:
        done.append((command, *flags))
        scores = seed_scores(flags[flags.index("--loss") + 1])[: int(flags[-1])]
        per_seed = [{"svm": score, "knn": 0.5} for score in scores]
        folder.mkdir(parents=True)
        found = {"svm": scores.mean(), "svm_std": scores.std(ddof=1), "knn": 0.5, "knn_std": 0.0}
        (folder / "metrics.json").write_text(json.dumps({**found, "chosen": {"point": {}}}))
        (folder / "metrics_by_seed.json").write_text(json.dumps(per_seed))

    monkeypatch.setattr(_comparison, "run", run)
    return done


def measure(monkeypatch, tmp_path, *flags) -> list[dict]:
    folders = "--runs", tmp_path / "runs", "--out", tmp_path / "representations"
    call(representations, monkeypatch, "graphs", "--data", "sets", *folders, *flags)
    return read_csv(tmp_path / "representations/graphs.csv")


def test_losses_are_compared_with_the_first_over_seeds(runs, monkeypatch, tmp_path):
    first, *others = measure(monkeypatch, tmp_path, "--datasets", "MUTAG", "--seeds", SEEDS)
    assert [flags[:3] for flags in runs] == [("graphs", "--data", "sets/graphs/MUTAG")] * 5
    assert (first["way"], first["gain"], first["svm_published"]) == ("decoupled", "", "0.868")
    assert first["flags"] == "--data DATASETS/graphs/MUTAG --loss decoupled --seeds 3"
    raw = [
        stats.ttest_rel(seed_scores(row["way"]), seed_scores("decoupled")).pvalue for row in others
    ]
    # Holm: the smallest p-value is multiplied by 4, the next by 3, …, then made non-decreasing.
    by_hand, worst = {}, 0.0
    for rank, i in enumerate(np.argsort(raw)):
        worst = by_hand[int(i)] = max(worst, min(1.0, raw[i] * (4 - rank)))
    for i, row in enumerate(others):
        assert float(row["p"]) == pytest.approx(by_hand[i])
        gain = np.mean(seed_scores(row["way"]) - seed_scores("decoupled"))
        assert float(row["gain"]) == pytest.approx(gain)
    assert float(others[0]["p"]) < 0.05 < float(others[2]["p"])
    seeds = read_csv(tmp_path / "representations/graphs-per_seed.csv")
    scores = [float(row["svm"]) for row in seeds if row["way"] == "hard"]
    np.testing.assert_allclose(scores, seed_scores("hard"), rtol=1e-6)


def test_update_keeps_rows_of_other_datasets(runs, monkeypatch, tmp_path):
    measure(monkeypatch, tmp_path, "--datasets", "NCI1", "--seeds", SEEDS)
    measure(monkeypatch, tmp_path, "--datasets", "MUTAG", "--seeds", SEEDS)
    shutil.rmtree(tmp_path / "runs")
    found = measure(monkeypatch, tmp_path, "--datasets", "MUTAG", "--seeds", 2)
    shown = [(row["dataset"], row["seeds"]) for row in found]
    assert shown == 5 * [("NCI1", "3")] + 5 * [("MUTAG", "2")]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--datasets", "PTC_MR"], "takes some of MUTAG, PROTEINS, IMDBBINARY, NCI1, got PTC_MR"),
        (["--seeds", "1"], "--seeds must be at least 2"),
    ],
)
def test_rejects_invalid_flags_before_run(flags, message, runs, monkeypatch, capsys):
    with raises(SystemExit):
        call(representations, monkeypatch, "graphs", "--data", "sets", *flags)
    assert message in capsys.readouterr().err
    assert not runs


STUDIES = {"graphs": GraphStudy, "text": TextStudy, "pairs": Pairs}
# A run combines the flags of a dataset and of a way; each of them occurs in some run.
RUNS = [
    (kind, datasets[i % len(datasets)], ways[i % len(ways)])
    for kind, comparison in representations.COMPARISONS.items()
    for datasets, ways in [([*comparison.datasets], [*comparison.ways])]
    for i in range(max(len(datasets), len(ways)))
]


@pytest.mark.parametrize(("kind", "dataset", "way"), RUNS, ids=" ".join)
def test_run_flags_are_accepted(kind, dataset, way):
    comparison = representations.COMPARISONS[kind]
    study = STUDIES[comparison.command]()
    config, _, _ = configure(study, comparison.flags(dataset, way, Path("sets")))
    study.check(config)
    assert config.source.data.startswith("sets/")
    assert comparison.metric in study.names
