"""Benchmarks check correctness first, write partial results, and evaluate their limits last."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from _helpers.commands import call
from _helpers.counting import counter
from _helpers.refusals import raises

from benchmarks import (
    _processes,
    _report,
    baselines,
    confidence,
    evaluation,
    in_batch,
    quality,
    rows,
    scale,
    training,
)
from benchmarks._report import read_csv
from crl_jax import data, metrics
from crl_jax.baselines import EASE
from experiments.recommend.recipes import RECIPES


class LocalWorker:
    """Contestant in this process, in place of ``Worker``."""

    def __init__(self, make, *args, **_):
        self.first, self.call = make(*args)

    def __call__(self, *args):
        return self.call(*args)

    def end(self):
        pass


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """Replaces the run of a recipe and records the recipes; the third run fails."""
    done = []

    def run(command: str, flags: list[str], folder: Path) -> None:
        done.append(flags[1])
        if len(done) == 3:
            raise SystemExit(2)
        folder.mkdir(parents=True)
        scores = {"ndcg@20": len(done) / 10, "ndcg@20_std": 0.0}
        contents = {
            "config.json": {"source": {"valid_fraction": 0.2}}, "metrics.json": scores,
            "metrics_by_seed.json": [{"ndcg@20": 0.5}], "history.jsonl": {"epoch": 7},
        }  # fmt: skip
        for name, content in contents.items():
            (folder / name).write_text(json.dumps(content))
        (folder / "curves.png").write_bytes(b"")

    monkeypatch.setattr(quality, "run", run)
    return done


def test_quality_rejects_loss_without_recipe_before_training(runs, monkeypatch, tmp_path, capsys):
    with raises(SystemExit) as exit_info:
        call(quality, monkeypatch, "--data", tmp_path, "--losses", "bpr", "mpr")
    assert exit_info.value.code == 2
    assert "bpr, bce" in capsys.readouterr().err
    assert not runs


def test_quality_keeps_the_results_of_completed_recipes(runs, monkeypatch, tmp_path):
    out = tmp_path / "out"
    flags = "--data", tmp_path, "--runs", tmp_path / "runs", "--out", out
    with raises(SystemExit):
        call(quality, monkeypatch, *flags)
    assert set(runs) <= set(RECIPES)
    assert len(set(runs)) == 3
    call(quality, monkeypatch, *flags, "--encoder", "lightgcn", "--losses", "bayesian")
    found = read_csv(out / "losses.csv")
    assert [(row["encoder"], row["ndcg@20"]) for row in found] == [
        ("mf", "0.1"), ("mf", "0.2"), ("lightgcn", "0.4"),
    ]  # fmt: skip
    assert (found[2]["loss"], found[2]["ndcg@20_published"]) == ("bayesian", "0.4347")
    assert [row["ndcg@20"] for row in read_csv(out / "per_seed.csv")] == ["0.5"] * 3


class Log:
    """Stub of an interaction log, with its sizes only."""

    n_users, n_items = 2, 3

    def __len__(self) -> int:
        return 4


@pytest.fixture
def contest(monkeypatch):
    """Replaces the contestants of the training by losses."""
    monkeypatch.setattr(training, "TASKS", training.TASKS[:1])
    monkeypatch.setattr(training, "load_interactions", lambda: ("none", Log()))
    monkeypatch.setattr(_report.importlib.metadata, "version", lambda _: "1.2.3")

    def contestant(name, warm, loss_of):
        epochs = itertools.count(2)
        made = training.Contestant(name, lambda: loss_of(next(epochs)), 0.1)
        for _ in range(warm):
            made.epoch()
        return made

    def set_references(loss_of):
        ours = contestant("ours", 3, lambda epoch: 1 / epoch)
        theirs = [contestant("theirs", 0, loss_of)]
        monkeypatch.setattr(training, "run_jax", lambda task: (ours, [{"name": "ours"}]))
        monkeypatch.setattr(training, "run_torch", lambda task, _: (theirs, []))

    return set_references


def test_training_compares_losses_after_equal_epochs(contest, monkeypatch, tmp_path):
    contest(lambda epoch: 1 / epoch)
    call(training, monkeypatch, "--repeats", 1, "--out", tmp_path / "training.csv")
    found = read_csv(tmp_path / "training.csv")
    n = 4 + training.EPOCHS_PER_TURN
    assert [(r["name"], int(r["epochs"])) for r in found] == [("ours", n), ("theirs", n)]
    assert [float(row["loss_after"]) for row in found] == [1 / n] * 2
    assert (found[0]["jax"], found[0]["times_ours"]) == ("1.2.3", "1")
    assert read_csv(tmp_path / "training-contest.csv")[0]["name"] == "ours"


@pytest.mark.parametrize("other", [1.2, 0.85, float("nan")])
def test_training_writes_results_if_losses_differ(contest, other, monkeypatch, tmp_path):
    contest(lambda epoch: other / epoch)
    with raises(SystemExit, match="the loss of theirs is"):
        call(training, monkeypatch, "--repeats", 1, "--out", tmp_path / "training.csv")
    assert len(read_csv(tmp_path / "training.csv")) == 2


def test_evaluation_reports_medians_and_rejects_other_rankings():
    run = {
        "speeds": [1.0, 2.0, 9.0], "cpu_speeds": [1.0], "preparation_seconds": 0.1,
        "first_call_extra_seconds": 0.2, "load": 0.3, "peak_mb": 5.0,
    }  # fmt: skip
    ours, theirs = (
        evaluation.summarise(("any", 8, False, ""), [{**run, "values": values}])
        for values in ({"recall@20": 0.1, "ndcg@20": 0.1}, {"recall@20": 0.1002, "ndcg@20": 0.1})
    )
    assert (ours["users_per_second"], ours["users_per_second_max"]) == (2.0, 9.0)
    evaluation.check([ours] * 2)
    with raises(SystemExit, match="not the same ranking"):
        evaluation.check([ours, theirs])


def test_confidence_writes_results_if_error_is_too_large(monkeypatch, tmp_path):
    row = {"what": "formula", "rule": "density", "distribution": "smoothed", "largest_error": 0.1}
    monkeypatch.setattr(confidence, "measure", lambda *_: [row])
    out = tmp_path / "confidence.csv"
    with raises(SystemExit, match=r"formula density smoothed: relative error 0\.1"):
        call(confidence, monkeypatch, "--interactions", 10, "--rounds", 1, "--out", out)
    assert read_csv(out)[0]["largest_error"] == "0.1"
    confidence.check([{**row, "largest_error": 1e-6}, {**row, "largest_error": None}])


@pytest.fixture
def few_contestants(monkeypatch):
    """Runs two contestants of ``in_batch`` here; the second one returns ``answer``."""
    monkeypatch.setattr(in_batch, "Worker", LocalWorker)
    monkeypatch.setattr(in_batch, "THREADS", [])
    monkeypatch.setattr(in_batch, "MASKS", {"crl_jax, training": "seen"})
    monkeypatch.setattr(_report.importlib.metadata, "version", lambda _: "1.2.3")
    monkeypatch.setattr(in_batch, "ROWS", 5)  # 12 anchors: the last block is partial

    def set_answer(answer):
        tiled = in_batch.tiled
        monkeypatch.setattr(in_batch, "tiled", lambda n: (lambda: answer) if answer else tiled(n))

    return set_answer


def test_in_batch_checks_and_times_its_contestants(few_contestants, monkeypatch, tmp_path):
    few_contestants(None)
    call(in_batch, monkeypatch, "--batches", 12, "--repeats", 1, "--out", tmp_path / "x.csv")
    found = read_csv(tmp_path / "x.csv")
    assert [row["name"] for row in found] == ["crl_jax, training", in_batch.TILED]
    assert all(float(row["error"]) < 1e-5 for row in found)
    ours, tiled = (float(row["step_ms"]) for row in found)
    assert float(found[1]["times_training"]) == pytest.approx(tiled / ours, rel=1e-5)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_in_batch_times_nothing_if_a_value_or_gradient_is_wrong(
    place, factor, few_contestants, monkeypatch
):
    wrong = [np.asarray(x) for x in in_batch.reference(12)]
    wrong[place] = factor * wrong[place]
    few_contestants(wrong)
    monkeypatch.setattr(in_batch, "training", lambda *_: lambda: in_batch.reference(12))
    monkeypatch.setattr(in_batch, "alternate", lambda *_: pytest.fail("timed"))
    with raises(SystemExit, match="crl_jax, tiled of 12 is wrong: off by"):
        call(in_batch, monkeypatch, "--batches", 12)


def test_missing_package_is_reported_before_measuring(monkeypatch):
    def missing(name: str) -> str:
        raise _report.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(training, "load_interactions", lambda: pytest.fail("measured"))
    monkeypatch.setattr(_report.importlib.metadata, "version", missing)
    with raises(SystemExit, match="needs the package jax"):
        call(training, monkeypatch)


@pytest.mark.parametrize("repeats", ["0", "-1", "some"])
def test_rejects_invalid_repeats(repeats, monkeypatch, capsys):
    with raises(SystemExit):
        call(training, monkeypatch, "--repeats", repeats)
    assert "at least 1" in capsys.readouterr().err


def test_interrupted_csv_write_keeps_earlier_file(tmp_path):
    path = tmp_path / "rows.csv"
    _report.write_csv(path, [{"a": 1}])

    class Wrong:
        def __str__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _report.write_csv(path, [{"a": 2}, {"a": Wrong()}])
    assert read_csv(path) == [{"a": "1"}]
    assert [*tmp_path.iterdir()] == [path]


def test_contestants_are_called_alternately():
    order = []
    calls = {name: lambda name=name: order.append(name) or len(order) for name in "ab"}
    assert _report.alternate(calls, 2, turn=2) == {"a": [1, 2, 5, 6], "b": [3, 4, 7, 8]}
    assert order == [*"aabbaabb"]


def test_worker_returns_results_and_reports_exit_status():
    worker = _processes.Worker(counter, 5, "SOME", env={"SOME": "value"})
    assert (worker.first, worker(1), worker(10)) == ("value", 5, 60)
    worker.end()
    with raises(SystemExit, match="ended with status 3"):
        _processes.in_process(sys.exit, 3)


@pytest.fixture
def few_rows(monkeypatch):
    """Runs the contestants of :mod:`benchmarks.rows` here, on small tables and batches."""
    for name, value in {"BATCH": 64, "BLOCK": 128, "SAMPLE": 100, "Worker": LocalWorker}.items():
        monkeypatch.setattr(rows, name, value)
    monkeypatch.setattr(rows, "theirs", lambda n: rows.ours(rows.ADAGRAD, n))
    monkeypatch.setattr(_report.importlib.metadata, "version", lambda _: "1.2.3")


@pytest.mark.slow
def test_rows_are_compared_with_the_dense_optimizer(
    few_rows, monkeypatch, tmp_path, standard_promotion
):
    call(rows, monkeypatch, "--sizes", 200, "--repeats", 1, "--out", tmp_path / "rows.csv")
    found = read_csv(tmp_path / "rows.csv")
    assert [row["name"] for row in found] == rows.ORDER
    assert all(float(row["step_ms"]) > 0 for row in found)


@pytest.mark.parametrize("wrong", ["loss", "rows"])
def test_rows_rejects_wrong_losses_and_tables(wrong, few_rows):
    tables = [rows.initial_table(100, side).astype(np.float64) for side in (0, 1)]
    users, items = (table[ids[0]] for table, ids in zip(tables, rows.draw_ids(100, 0), strict=True))
    scores = (users * items).sum(-1)
    loss = float(np.logaddexp(0, scores[1] - scores[0]).mean())
    right = loss, tables
    rows.check(100, {rows.DENSE: right, rows.ADAM: right})
    off = (loss + 1e-3, tables) if wrong == "loss" else (loss, [tables[0], tables[1] + 1e-3])
    with raises(SystemExit, match=r"rows.adam with 200 rows is wrong: off by 0.001"):
        rows.check(100, {rows.DENSE: right, rows.ADAM: off})


@pytest.mark.slow
def test_scale_runs_stages_in_order_and_rejects_wrong_ndcg(
    monkeypatch, tmp_path, standard_promotion
):
    monkeypatch.setattr(scale, "in_process", lambda stage, *args: stage(*args))
    monkeypatch.setattr(_report.importlib.metadata, "version", lambda _: "1.2.3")
    monkeypatch.setattr(scale, "DIM", 4)
    monkeypatch.setattr(scale, "BATCH", 512)
    wrong = {"evaluate": lambda *_: {"ndcg": 0.5, "gigabytes": 1.0, "seconds": 1.0}}
    monkeypatch.setitem(scale.STAGES, "implicit", wrong)
    sizes = "--users", 300, "--items", 200, "--interactions", 5000, "--tested", 100, "--shards", 2
    flags = *sizes, "--only", "crl_jax", "implicit", "--folder", tmp_path / "x"
    with raises(SystemExit, match=r"NDCG@20 of implicit is 0\.5, of crl_jax 0"):
        call(scale, monkeypatch, *flags, "--out", tmp_path / "scale.csv")
    found = read_csv(tmp_path / "scale.csv")
    assert [row["stage"] for row in found if row["name"] == "crl_jax"] == [*scale.STAGES["crl_jax"]]
    assert all(float(row["gigabytes"]) > 0 and float(row["seconds"]) > 0 for row in found)


def test_scale_compares_ndcg_only_with_measured_crl_jax():
    others = [{"name": name, "ndcg": ndcg} for name, ndcg in (("PyTorch", 0.3), ("implicit", 0.4))]
    scale.check(others)
    with pytest.raises(SystemExit, match=r"of implicit is 0\.4, of crl_jax 0\.3"):
        scale.check([{"name": "crl_jax", "ndcg": 0.3}, *others])


def test_baselines_are_measured_on_dataset_and_sample(ratings, monkeypatch, tmp_path):
    monkeypatch.setattr(baselines, "in_process", lambda measure, *args, env: measure(*args))
    monkeypatch.setattr(baselines, "FILES", {"log": ratings.name, baselines.SAMPLE: ratings.name})
    monkeypatch.setenv("CRL_DATA", str(ratings.parent))
    call(baselines, monkeypatch, "--baselines", "EASE", "--out", tmp_path / "x.csv")
    whole, sample = read_csv(tmp_path / "x.csv")
    split = data.split_by_ratio(data.load(ratings), test=0.2)
    layout = metrics.eval_layout(split.train, split.test)
    values = metrics.evaluate(EASE().fit(split.train), None, layout, ks=20)
    want = float(metrics.summarize(values)["ndcg@20"])
    assert float(whole["ndcg@20"]) == pytest.approx(want, rel=1e-5)
    assert int(whole["interactions"]) == len(split.train)
    assert float(whole["arrays_mb"]) == pytest.approx(4e-6 * int(whole["users"]) ** 2)
    # Fewer users than the sample may have, so that it only omits the items without users.
    assert [sample[n] == whole[n] for n in ("users", "interactions")] == [True, True]
    assert int(sample["items"]) == len(np.unique(split.train.items)) < int(whole["items"])
    monkeypatch.setattr(baselines, "MAX_EASE_SIDE", 9)
    call(baselines, monkeypatch, "--baselines", "EASE", "--out", tmp_path / "y.csv")
    assert not (tmp_path / "y.csv").exists()
