"""Benchmarks check correctness first, write partial results, and evaluate their limits last."""

import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from _helpers.commands import call
from _helpers.refusals import raises

from benchmarks import _common as common
from benchmarks import (
    confidence,
    evaluation,
    in_batch,
    quality,
    results_page,
    rows,
    scale,
    training,
)
from experiments.recipes import RECIPES


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """Replaces the run of a recipe and records the recipes; the third run fails."""
    done = []

    def run(recipe: str, data: Path, folder: Path, seed: int = 0) -> None:
        done.append(recipe)
        if len(done) == 3:
            raise SystemExit(2)
        folder.mkdir(parents=True)
        config = {"objective": {}, "encoding": {}, "training": {}, "source": {"valid": 0.2}}
        (folder / "config.json").write_text(json.dumps(config))
        scores = {"ndcg@20": len(done) / 10, "ndcg@20_std": 0.0}
        (folder / "metrics.json").write_text(json.dumps(scores))
        (folder / "metrics_by_seed.json").write_text("[]")
        (folder / "history.jsonl").write_text('{"epoch": 7}\n')
        (folder / "curves.png").write_bytes(b"")

    monkeypatch.setattr(quality, "run", run)
    return done


def test_quality_refuses_a_loss_without_a_recipe_before_it_trains_any(
    runs, monkeypatch, tmp_path, capsys
):
    with raises(SystemExit) as left:
        call(quality, monkeypatch, "--data", tmp_path, "--losses", "bpr", "mpr")
    assert left.value.code == 2
    assert "bpr, bce" in capsys.readouterr().err
    assert not runs


def test_quality_takes_the_losses_that_have_recipes_and_keeps_what_it_has(
    runs, monkeypatch, tmp_path
):
    out = tmp_path / "out"
    with raises(SystemExit):
        call(quality, monkeypatch, "--data", tmp_path, "--runs", tmp_path / "runs", "--out", out)
    rows = json.loads((out / "quality.json").read_text())["rows"]
    assert [row["ndcg@20"] for row in rows] == [0.1, 0.2]
    assert set(runs) <= set(RECIPES)
    assert len(set(runs)) == 3


def test_quality_of_another_encoder_has_its_own_recipes_and_file(runs, monkeypatch, tmp_path):
    flags = "--encoder", "lightgcn", "--losses", "bayesian", "--out", tmp_path / "out"
    call(quality, monkeypatch, "--data", tmp_path, "--runs", tmp_path / "runs", *flags)
    assert runs == ["ml-100k-lightgcn-bayesian"]
    (row,) = json.loads((tmp_path / "out/lightgcn.json").read_text())["rows"]
    assert row["published"] == 0.4347


class Log:
    """Stub of an interaction log, with its sizes only."""

    n_users, n_items = 2, 3

    def __len__(self) -> int:
        return 4


def contestant(name: str, warm: int, loss_of) -> training.Contestant:
    """Returns a contestant that has trained ``warm`` epochs after the first."""
    epochs = itertools.count(2)
    made = training.Contestant(name, lambda: loss_of(next(epochs)), 0.1)
    for _ in range(warm):
        made.epoch()
    return made


@pytest.fixture
def contest(monkeypatch):
    monkeypatch.setattr(training, "TASKS", training.TASKS[:1])
    monkeypatch.setattr(training, "load_interactions", lambda: ("none", Log()))
    monkeypatch.setattr(training.common, "versions", lambda *_: {})

    def set_references(loss_of):
        ours = contestant("ours", 3, lambda epoch: 1 / epoch)
        monkeypatch.setattr(training, "run_jax", lambda task: (ours, []))
        monkeypatch.setattr(
            training, "run_torch", lambda task, _: ([contestant("theirs", 0, loss_of)], [])
        )

    return set_references


def test_training_compares_losses_after_equally_many_epochs(contest, monkeypatch, tmp_path):
    contest(lambda epoch: 1 / epoch)
    call(training, monkeypatch, "--repeats", 1, "--out", tmp_path / "training.json")
    (task,) = json.loads((tmp_path / "training.json").read_text())["tasks"]
    assert [row["epochs"] for row in task["rows"]] == [4 + training.TURN] * 2
    assert [row["loss_after"] for row in task["rows"]] == [1 / (4 + training.TURN)] * 2


@pytest.mark.parametrize("other", [1.2, 0.85, float("nan")])
def test_training_keeps_the_figures_that_it_does_not_trust(contest, other, monkeypatch, tmp_path):
    contest(lambda epoch: other / epoch)
    with raises(SystemExit, match="the loss of theirs is"):
        call(training, monkeypatch, "--repeats", 1, "--out", tmp_path / "training.json")
    assert len(json.loads((tmp_path / "training.json").read_text())["tasks"]) == 1


def evaluated(recall: float) -> dict:
    numbers = dict.fromkeys(
        ("users_per_second_median", "users_per_second_best", "users_per_cpu_second_median",
         "peak_rss_mb", "first_call_extra_seconds"), 1.0,
    )  # fmt: skip
    values = {"recall@20": recall, "ndcg@20": 0.1}
    row = {"library": "any", "block_size": 8, "auc": False, "wait_policy": None}
    return {**row, **numbers, "load_average": [1.0], "values": values}


def test_evaluation_keeps_the_figures_that_it_does_not_trust(monkeypatch, tmp_path):
    rows = [evaluated(0.1), evaluated(0.1002)]
    monkeypatch.setattr(evaluation, "measure", lambda args: {"rows": rows})
    with raises(SystemExit, match="not the same ranking"):
        call(evaluation, monkeypatch, "--out", tmp_path / "evaluation.json")
    assert json.loads((tmp_path / "evaluation.json").read_text())["rows"] == rows
    evaluation.judge(rows[:1] * 2)


def test_confidence_keeps_the_figures_that_it_does_not_trust(monkeypatch, tmp_path):
    row = {"what": "formula", "rule": "density", "law": "smoothed", "largest_error": 0.1}
    monkeypatch.setattr(confidence, "measure", lambda *_: [row])
    out = tmp_path / "confidence.json"
    with raises(SystemExit, match=r"formula density smoothed: relative error 0\.1"):
        call(confidence, monkeypatch, "--interactions", 10, "--rounds", 1, "--out", out)
    assert json.loads(out.read_text())["rows"] == [row]
    confidence.judge([{**row, "largest_error": 1e-6}, {**row, "largest_error": None}])


@pytest.mark.parametrize("name", ["crl_jax, training", in_batch.TILED])
def test_in_batch_ways_of_ours_give_the_reference(name, monkeypatch):
    monkeypatch.setattr(in_batch, "ROWS", 5)  # 12 anchors: the last block is partial
    assert in_batch.error_of(in_batch.build(name, 12)(), in_batch.reference(12)) < 1e-5


def test_an_in_batch_process_keeps_its_answer_and_times_a_step_for_each_line(
    monkeypatch, capsys, tmp_path
):
    answer = np.float32(1.5), np.ones((2, 3)), np.zeros((2, 3))
    monkeypatch.setattr(in_batch, "build", lambda name, batch: lambda: answer)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n\n"))
    call(in_batch, monkeypatch, "--worker", "some", 2, tmp_path)
    about, *steps = capsys.readouterr().out.splitlines()
    assert json.loads(about)["grown_mb"] >= 0
    assert [len(step.split()) for step in steps] == [2, 2]
    with np.load(tmp_path / "some.npz") as kept:
        assert [x.tolist() for x in kept.values()] == [x.tolist() for x in answer]


@pytest.fixture
def in_batch_contestants(monkeypatch):
    """Creates in-process contestants; ``wrong_name`` returns ``answer``, others the reference."""

    def make(wrong_name=None, answer=None, steps=None):
        class Contestant:
            def __init__(self, name, batch, folder):
                self.about = {"name": name, "grown_mb": 3.0}
                self.answer = answer if name == wrong_name else in_batch.reference(batch)

            def step(self):
                assert steps is not None, "timed"
                return next(steps)

            def end(self):
                pass

        monkeypatch.setattr(in_batch, "Contestant", Contestant)
        monkeypatch.setattr(in_batch, "names", lambda: ["ours", "theirs"])
        monkeypatch.setattr(in_batch.common, "versions", lambda *_: {"jax": "1.2.3"})

    return make


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_in_batch_times_nothing_if_a_value_or_gradient_is_wrong(
    place, factor, in_batch_contestants, monkeypatch
):
    wrong = [np.asarray(x) for x in in_batch.reference(8)]
    wrong[place] = factor * wrong[place]
    in_batch_contestants("theirs", wrong)
    with raises(SystemExit, match="theirs of 8 is wrong: off by"):
        call(in_batch, monkeypatch, "--batches", 8)


def test_in_batch_figures_are_medians_of_turns_and_stand_on_the_page(
    in_batch_contestants, monkeypatch, tmp_path
):
    ours, theirs = ([s, 2 * s] for s in (0.1, 0.2, 0.9)), ([s, s] for s in (0.4, 0.3, 0.5))
    in_batch_contestants(steps=itertools.chain(ours, theirs))
    call(in_batch, monkeypatch, "--batches", 8, "--repeats", 1, "--out", tmp_path / "in_batch.json")
    (size,) = json.loads((tmp_path / "in_batch.json").read_text())["batches"]
    for row, wall, cores, times in zip(size["rows"], (200, 400), (400, 400), (1, 2), strict=True):
        assert (row["step_ms"], row["step_cpu_ms"]) == pytest.approx((wall, cores))
        assert row["times_training"] == pytest.approx(times)
        assert row["error"] == 0
    assert "| 8 | theirs | 400 | 400 | 3 | 2.00 |" in results_page.page(tmp_path)


def test_a_missing_package_is_told_before_anything_is_measured(monkeypatch, tmp_path):
    def measure(*_):
        raise AssertionError("measured")

    monkeypatch.setattr(training, "measure", measure)
    monkeypatch.setattr(common.importlib.metadata, "version", missing)
    with raises(SystemExit, match="needs the package jax"):
        call(training, monkeypatch, "--out", tmp_path / "training.json")


def missing(name: str) -> str:
    raise common.importlib.metadata.PackageNotFoundError(name)


@pytest.mark.parametrize("repeats", ["0", "-1", "some"])
def test_nothing_is_measured_no_times(repeats, monkeypatch, capsys):
    with raises(SystemExit):
        call(training, monkeypatch, "--repeats", repeats)
    assert "at least 1" in capsys.readouterr().err


@pytest.fixture
def few_rows(monkeypatch):
    """Runs the contestants of :mod:`benchmarks.rows` in-process, on small tables and batches."""
    monkeypatch.setattr(rows, "BATCH", 64)
    monkeypatch.setattr(rows, "BLOCK", 128)
    monkeypatch.setattr(rows, "SAMPLE", 100)

    class Here:
        def __init__(self, name: str, n: int, folder: Path):
            self.name = name
            run, sample = rows.ours(name.replace(rows.SPARSE, rows.ADAGRAD), n)
            self.loss, _ = run(rows.ids_of(n, 0)), run(rows.ids_of(n, 1))
            self.rows, self.times = sample(), []

        def turn(self):
            self.times.append(0.5)

        def end(self):
            pass

    monkeypatch.setattr(rows, "Contestant", Here)
    monkeypatch.setattr(rows.common, "versions", lambda *_: {})
    return Here


def test_rows_are_held_to_the_dense_optimizer(few_rows, monkeypatch, tmp_path, standard_promotion):
    flags = "--sizes", 200, 400, "--repeats", 2, "--out", tmp_path / "rows.json"
    call(rows, monkeypatch, *flags)
    content = json.loads((tmp_path / "rows.json").read_text())
    assert [row["name"] for row in content["rows"]] == 2 * rows.ORDER
    assert {row["step_ms"] for row in content["rows"]} == {500.0}
    assert "| rows.adam | 500.0 | 500.0 | 1.00 |" in results_page.page(tmp_path)


@pytest.fixture
def here(monkeypatch):
    """Runs the stages of :mod:`benchmarks.scale` in-process."""

    def run(name: str, stage: str, args):
        return scale.STAGES[name][stage](args.folder, args)

    monkeypatch.setattr(scale, "run", run)
    monkeypatch.setattr(scale.common, "versions", lambda *_: {})
    monkeypatch.setattr(scale, "DIM", 4)
    monkeypatch.setattr(scale, "BATCH", 512)


FEW = "--users", 300, "--items", 200, "--interactions", 5000, "--tested", 100, "--shards", 2


def test_stages_of_scale_follow_each_other(here, monkeypatch, tmp_path, standard_promotion):
    flags = *FEW, "--only", "crl_jax", "--folder", tmp_path / "x", "--out", tmp_path / "scale.json"
    call(scale, monkeypatch, *flags)
    rows = json.loads((tmp_path / "scale.json").read_text())["rows"]
    assert [row["stage"] for row in rows] == [*scale.STAGES["crl_jax"]]
    assert all(row["gigabytes"] > 0 for row in rows)
    page = results_page.page(tmp_path)
    assert "5,000 simulated interactions of 300 users with 200 items" in page
    assert "| recommend to all users | " in page


def test_scale_does_not_trust_another_ndcg(here, monkeypatch, tmp_path, standard_promotion):
    wrong = {"evaluate": lambda *_: {"ndcg": 0.5, "gigabytes": 1.0, "seconds": 1.0}}
    monkeypatch.setitem(scale.STAGES, "implicit", wrong)
    flags = *FEW, "--only", "crl_jax", "implicit", "--folder", tmp_path
    with raises(SystemExit, match=r"NDCG@20 of implicit is 0\.5, of ours 0"):
        call(scale, monkeypatch, *flags)


@pytest.mark.parametrize("wrong", ["loss", "rows"])
def test_rows_that_are_wrong_are_not_timed(
    few_rows, wrong, monkeypatch, tmp_path, standard_promotion
):
    class Wrong(few_rows):
        def __init__(self, name: str, *about):
            super().__init__(name, *about)
            if name == rows.ADAM and wrong == "loss":
                self.loss += 0.001
            elif name == rows.ADAM:
                self.rows[1] = self.rows[1] + 0.001

    monkeypatch.setattr(rows, "Contestant", Wrong)
    with raises(SystemExit, match=r"rows.adam with 200 rows is wrong: off by 0.001"):
        call(rows, monkeypatch, "--sizes", 200, "--out", tmp_path / "rows.json")
