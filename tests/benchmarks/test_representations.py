"""Tests of the representation benchmark: results per loss, with tests against the first."""

import json
from pathlib import Path

import numpy as np
import pytest
from _helpers.commands import call
from _helpers.refusals import raises
from scipy import stats

from benchmarks import _results_representations, representations, results_page
from experiments._study_command import configure
from experiments.graphs._study import GraphStudy
from experiments.pairs._study import Pairs
from experiments.text._study import TextStudy

SEEDS = 3
GAIN = {"decoupled": 0.0, "info_nce": 0.1, "debiased": 0.01, "hard": 0.0, "bayesian": -0.01}


def of_seeds(loss: str) -> np.ndarray:
    """Returns the synthetic scores of all seeds with a loss."""
    noise = np.random.default_rng(len(loss)).normal(scale=0.01, size=SEEDS)
    return 0.8 + np.arange(SEEDS) / 100 + GAIN[loss] + noise


@pytest.fixture
def runs(monkeypatch) -> list[tuple[str, ...]]:
    """Replaces the run of a command by synthetic metrics; records the flags."""
    done = []

    def run(command: str, flags: list[str], folder: Path) -> None:
        done.append((command, *flags))
        scores = of_seeds(flags[flags.index("--loss") + 1])[: int(flags[-1])]
        per_seed = [{"svm": score, "knn": 0.5} for score in scores]
        folder.mkdir(parents=True)
        found = {"svm": scores.mean(), "svm_std": scores.std(ddof=1), "knn": 0.5, "knn_std": 0.0}
        (folder / "metrics.json").write_text(json.dumps({**found, "chosen": {"point": {}}}))
        (folder / "metrics_by_seed.json").write_text(json.dumps(per_seed))

    monkeypatch.setattr(representations, "run", run)
    return done


def measure(monkeypatch, tmp_path, *flags) -> dict:
    folders = "--runs", tmp_path / "runs", "--out", tmp_path / "representations"
    call(representations, monkeypatch, "graphs", "--data", "sets", *folders, *flags)
    return json.loads((tmp_path / "representations/graphs.json").read_text())["datasets"]


def test_losses_are_compared_with_the_first_over_seeds(runs, monkeypatch, tmp_path):
    found = measure(monkeypatch, tmp_path, "--datasets", "MUTAG", "--seeds", SEEDS)["MUTAG"]
    assert [flags[:3] for flags in runs] == [("graphs", "--data", "sets/graphs/MUTAG")] * 5
    first, *others = found["rows"]
    assert (first["way"], "gain" in first, first["flags"]) == (
        "decoupled", False, "--data DATASETS/graphs/MUTAG --loss decoupled --seeds 3"
    )  # fmt: skip
    raw = [stats.ttest_rel(of_seeds(row["way"]), of_seeds("decoupled")).pvalue for row in others]
    # Holm: the smallest p-value is multiplied by 4, the next by 3, …, then made non-decreasing.
    by_hand, worst = {}, 0.0
    for rank, i in enumerate(np.argsort(raw)):
        worst = by_hand[int(i)] = max(worst, min(1.0, raw[i] * (4 - rank)))
    for i, row in enumerate(others):
        assert row["p"] == pytest.approx(by_hand[i])
        gain = np.mean(of_seeds(row["way"]) - of_seeds("decoupled"))
        assert row["gain"] == pytest.approx(gain)
    assert others[0]["p"] < 0.05 < others[2]["p"]


def test_datasets_that_were_measured_before_stay(runs, monkeypatch, tmp_path):
    measure(monkeypatch, tmp_path, "--datasets", "NCI1", "--seeds", SEEDS)
    found = measure(monkeypatch, tmp_path, "--datasets", "MUTAG", "--seeds", 2)
    assert list(found) == ["NCI1", "MUTAG"]
    page = results_page.page(tmp_path)
    assert "| NCI1 | decoupled | 0.8" in page
    assert "| MUTAG, 2 seeds | decoupled | 0.8" in page
    assert "0.7787 ± 0.0041" in page
    (told,) = (line for line in page.splitlines() if line.startswith("Told from the first row"))
    ways = {"InfoNCE": "info_nce", "debiased (DCL)": "debiased", "hard (HCL)": "hard",
            "Bayesian (BCL)": "bayesian"}  # fmt: skip
    want = [
        f"{word} on {said} ({'more' if row['gain'] > 0 else 'less'})"
        for name, said in (("NCI1", "NCI1"), ("MUTAG", "MUTAG, 2 seeds"))
        for word, way in ways.items() for row in found[name]["rows"]
        if row["way"] == way and row["p"] < 0.05
    ]  # fmt: skip
    assert want
    assert told == f"Told from the first row at 5%: {', '.join(want)}."


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--datasets", "PTC_MR"], "takes some of MUTAG, PROTEINS, IMDBBINARY, NCI1, got PTC_MR"),
        (["--seeds", "1"], "--seeds must be at least 2"),
    ],
)
def test_what_does_not_go_is_refused_before_a_run(flags, message, runs, monkeypatch, capsys):
    with raises(SystemExit):
        call(representations, monkeypatch, "graphs", "--data", "sets", *flags)
    assert message in capsys.readouterr().err
    assert not runs


STUDIES = {"graphs": GraphStudy, "text": TextStudy, "pairs": Pairs}
RUNS = [
    (kind, dataset, way)
    for kind, comparison in representations.COMPARISONS.items()
    for dataset in comparison.datasets
    for way in comparison.ways
]


@pytest.mark.parametrize(("kind", "dataset", "way"), RUNS, ids=" ".join)
def test_the_flags_of_a_run_are_taken(kind, dataset, way):
    comparison = representations.COMPARISONS[kind]
    study = STUDIES[comparison.command]()
    config, _, _ = configure(study, comparison.flags(dataset, way, Path("sets")))
    study.check(config)
    assert config.source.data.startswith("sets/")
    assert comparison.metric in study.names


def test_the_page_shows_what_is_compared_first():
    shown = {kind: next(iter(s.metrics)) for kind, s in _results_representations.SECTIONS.items()}
    assert shown == {kind: c.metric for kind, c in representations.COMPARISONS.items()}


def test_a_finished_run_is_not_run_again(monkeypatch, tmp_path):
    given = []
    module = type("Command", (), {"main": staticmethod(lambda flags: given.append(flags) or 0)})
    monkeypatch.setattr(representations.importlib, "import_module", lambda _: module)
    representations.run("graphs", ["--loss", "hard"], tmp_path)
    (tmp_path / "config.json").write_text("{}")
    representations.run("graphs", ["--loss", "hard"], tmp_path)
    assert given == [["--loss", "hard", "--out", str(tmp_path)], ["--resume", str(tmp_path)]]
