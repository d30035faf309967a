"""Studies of published findings: flags of their settings, results and figures."""

import json
from pathlib import Path

import numpy as np
import pytest
from _helpers.commands import call
from _helpers.refusals import raises

from benchmarks import _comparison, findings
from benchmarks._report import read_csv
from experiments._study_command import configure
from experiments.graphs._study import GraphStudy
from experiments.images._study import Images
from experiments.pairs._study import Pairs

COMMANDS = {"images": Images, "graphs": GraphStudy, "pairs": Pairs}


@pytest.mark.parametrize("name", findings.STUDIES)
def test_commands_accept_study_flags(name):
    """The first and the last setting, on the first and the last dataset."""
    study = findings.STUDIES[name]
    datasets, ways, scale = [*study.datasets], [*study.ways], next(iter(study.scales))
    for dataset, way in ((datasets[0], ways[0]), (datasets[-1], ways[-1])):
        flags = findings.build_flags(study, dataset, scale, way, Path("sets"))
        config, _, _ = configure(COMMANDS[study.command](), flags)
        assert config.source.data.endswith(dataset)


def test_views_contain_only_chosen_steps():
    config, _, _ = configure(Images(), findings._view_flags("crop", "noise"))
    views = config.views
    assert (views.crop, views.noise_p) == (0.08, 1)
    assert (views.flip, views.jitter_p, views.grey_p, views.blur_p) == (0, 0, 0, 0)
    assert (views.cutout_p, views.rotation_p) == (0, 0)


def test_batch_sizes_train_for_equal_number_of_steps():
    for scale, flags in findings.STUDIES["image-batches"].scales.items():
        n, steps = int(flags[flags.index("--train-images") + 1]), set()
        for own in findings.STUDIES["image-batches"].ways.values():
            size, epochs = (int(own[own.index(name) + 1]) for name in ("--batch-size", "--epochs"))
            assert n % size == 0, scale
            steps.add(n // size * epochs)
        assert len(steps) == 1


@pytest.mark.parametrize(
    ("name", "dataset", "metric"),
    [
        ("graph-kinds", "MUTAG", "svm"),
        ("graph-ratios", "MUTAG", "svm"),
        ("image-heads", "cifar10", "linear"),
    ],
)
def test_study_writes_results_and_figure(name, dataset, metric, monkeypatch, tmp_path):
    """Synthetic scores: each setting is better than the one before by 0.01."""
    study, done = findings.STUDIES[name], []

    def run(command, flags, folder):
        assert flags[-2:] == ["--seeds", "2"]
        half = 0.01 + 0.0007 * len(done)  # so that the differences are not constant
        scores = 0.5 + 0.01 * len(done) + np.array([-half, half])
        done.append(command)
        folder.mkdir(parents=True)
        found = {metric: scores.mean(), f"{metric}_std": scores.std(ddof=1)}
        (folder / "metrics.json").write_text(json.dumps(found))
        by_seed = [{metric: score} for score in scores]
        (folder / "metrics_by_seed.json").write_text(json.dumps(by_seed))

    monkeypatch.setattr(_comparison, "run", run)
    out = tmp_path / "findings"
    flags = "--datasets", dataset, "--seeds", "2", "--runs", tmp_path / "runs", "--out", out
    call(findings, monkeypatch, name, "--data", "sets", *flags)
    rows = read_csv(out / f"{name}.csv")
    assert [row["way"] for row in rows] == [*study.ways]
    assert done == [study.command] * len(rows)
    np.testing.assert_allclose([float(row["gain"]) for row in rows[1:]],
                               0.01 * np.arange(1, len(rows)), atol=1e-6)  # fmt: skip
    assert all(" --data DATASETS/" in row["flags"] for row in rows)
    assert len(read_csv(out / f"{name}-per_seed.csv")) == 2 * len(rows)
    assert (out / f"{name}.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--datasets", "mutag"], "--datasets takes some of MUTAG, IMDBBINARY"),
        (["--scale", "large"], "--scale takes some of small, tiny, got large"),
        (["--seeds", "1"], "--seeds must be at least 2"),
    ],
)
def test_rejects_invalid_flags(flags, message, monkeypatch, tmp_path, capsys):
    with raises(SystemExit):
        call(findings, monkeypatch, "graph-kinds", "--data", "sets", "--out", tmp_path, *flags)
    assert message in capsys.readouterr().err
