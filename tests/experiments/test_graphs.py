"""Representations of graphs by the command line, from flags to features."""

import shlex
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tyro
from _helpers.studies import (
    commands_of,
    files_of,
    finish,
    flags_of,
    kill,
    page_of,
    prepare,
    read,
    resume,
    said_of_runs,
    task_of,
)

import experiments.graphs
from crl_jax import metrics
from crl_jax.data import load_graphs
from experiments._encoder_file import save_encoder
from experiments._schema import to_json
from experiments._study import Run
from experiments._study_command import configure
from experiments.graphs import main
from experiments.graphs._config import SCHEMA
from experiments.graphs._embed import EmbedOptions
from experiments.graphs._study import GraphStudy, load_problem
from experiments.view_losses import LOSSES

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

SMALL = shlex.split("--kinds drop_nodes --width 4 --n-layers 2 --head 8 --epochs 2 --folds 3")
README = page_of(experiments.graphs)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with a sweep and two seeds."""
    folder = tmp_path_factory.mktemp("graphs") / "run"
    flags = [*SMALL, "--loss", "bayesian", "--alpha-from", "labels", "--sweep", "ratio=0.1,0.3"]
    return finish(main, folder, [*flags, "--seeds", "2"])


def test_a_run_leaves_what_the_page_says(finished, capsys):
    assert files_of(finished) == said_of_runs(README)
    found, per_seed = read(finished, "metrics.json"), read(finished, "metrics_by_seed.json")
    assert found["svm"] == pytest.approx(np.mean([m["svm"] for m in per_seed]))
    assert found["chosen"]["point"]["ratio"] in (0.1, 0.3)
    assert {"posterior_auc", "false_negatives", "alignment"} <= found.keys()
    assert main(["--resume", str(finished)]) == 0
    assert "is finished" in capsys.readouterr().out


def test_features_are_those_that_were_judged(finished):
    with np.load(finished / "features.npz") as stored:
        features = stored["features"]
    config = SCHEMA.from_json(read(finished, "config.json"), finished / "config.json")
    problem = load_problem(config.source, lambda _: None)
    assert features.shape == (400, 8)
    # After a sweep, the graphs that decided it are left out.
    left = problem.learn
    assert len(left) == 360
    want = metrics.cross_validated_svm(features[left], problem.labels(left), folds=3, seed=0)
    assert read(finished, "metrics_by_seed.json")[0]["svm"] == pytest.approx(want.accuracy)


def test_a_run_embeds_as_it_was_judged(finished, tmp_path, capsys):
    out = tmp_path / "features.npz"
    assert main(["embed", "--run", str(finished), "--out", str(out)]) == 0
    with np.load(finished / "features.npz") as kept, np.load(out) as stored:
        np.testing.assert_allclose(stored["features"], kept["features"], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(stored["labels"], load_graphs("simulated").labels)
        assert len(stored["classes"]) == 3
    gin = tmp_path / "few"
    gin.mkdir()
    (gin / "few.txt").write_text("2\n2 0\n0 1 1\n1 1 0\n2 1\n0 1 1\n0 1 0\n")
    assert main(["embed", "--run", str(finished), "--data", str(gin), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"--data {gin} has nodes of 2 features" in said
    assert f"of {finished} takes 4" in said
    shutil.copy(finished / "config.json", tmp_path)
    save_encoder(tmp_path, {}, {})
    assert main(["embed", "--run", str(tmp_path)]) == 2
    assert "expected the number of features of a node, got None" in capsys.readouterr().err


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags = [*SMALL, "--checkpoint-seconds", "0"]
    assert main([*flags, "--out", str(whole)]) == 0
    arguments = [*flags, "--out", str(killed)]
    kill(main, arguments, monkeypatch, lambda checkpoint, loop: loop.epoch == 1)
    assert resume(main, killed, monkeypatch) == [2]
    with np.load(whole / "features.npz") as a, np.load(killed / "features.npz") as b:
        np.testing.assert_array_equal(a["features"], b["features"])
    assert read(killed, "metrics_by_seed.json") == read(whole, "metrics_by_seed.json")


settled = partial(prepare, GraphStudy())


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_gets_its_numbers(loss):
    config, problem = settled([*SMALL, "--loss", loss])
    task = task_of(GraphStudy(), config, problem)
    assert task.loss_fn is LOSSES[loss].loss
    assert {*task.hyperparams} == {"temperature", *LOSSES[loss].hyperparams}
    assert task.hyperparams.get("tau_plus", 1 / 3) == pytest.approx(1 / 3)  # of three classes
    assert SCHEMA.from_json(to_json(config), Path("config.json")) == config


def test_a_further_seed_compiles_nothing(compiled, tmp_path):
    config, problem = settled([*SMALL, "--width", "5"])  # which no other test trains
    for seed in (0, 1):
        compiled.clear()
        run = Run("final", seed, 2, seed, {})
        GraphStudy().fit(config, problem, run, tmp_path, lambda entry: None)
        assert bool(compiled) == (seed == 0)


def test_flags_reach_the_views():
    config, problem = settled([*SMALL, "--kinds", "perturb_edges", "--add", "True"])
    views = task_of(GraphStudy(), config, problem, {"ratio": 0.4}).augment
    assert (views.kinds, views.ratio, views.add) == (("perturb_edges",), 0.4, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tau-plus", "0.1"], "--loss decoupled has no --tau-plus"),
        (["--add", "True"], "--add is for --kinds with perturb_edges"),
        (["--batch-size", "4000"], "--batch-size must be at most the 400 graphs to learn"),
        (["--given-folds", "True"], "--given-folds: simulated brings no folds"),
        (["--valid", "0.0001"], "leaves nothing to learn from, or to decide on"),
        (["--data", "nowhere"], "nowhere"),
        (["--features", "degrees"], "--features of simulated graphs must be tags, got 'degrees'"),
        (["--resume", "runs", "--lr", "1"], "--resume goes on with the run's own configuration"),
        (["embed", "--run", "nowhere"], "nowhere holds no run"),
    ],
)  # fmt: skip
def test_what_does_not_go_is_said(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", commands_of(README, "graphs"), ids=" ".join)
def test_commands_of_the_page_are_taken(command):
    if command[:1] == ["embed"]:
        assert tyro.cli(EmbedOptions, args=command[1:]).run == Path("runs/mutag")
    elif command[:1] != ["--resume"]:
        configure(GraphStudy(), command)


def test_flags_of_the_page_are_all_of_them():
    own = {f"--{name}" for name in EmbedOptions.__dataclass_fields__}
    assert flags_of(README) == {*SCHEMA.flags.values(), "--config", "--help"} | own
