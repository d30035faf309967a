"""End-to-end tests of the recommend command: complete, killed and resumed runs, and outputs."""

import contextlib
import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import polars
import pytest
from _helpers.commands import QUICK, SHORT, one_line
from _helpers.studies import history, kill, prepare, resume

from crl_jax import baselines, metrics, tasks
from crl_jax.models import InteractionGraph
from crl_jax.serving import Recommender
from crl_jax.train import load_checkpoint
from experiments._rundir import lock_file
from experiments._task_study import trace_step
from experiments.recommend import main
from experiments.recommend._config import Config, LossOptions
from experiments.recommend._options import ProtocolOptions
from experiments.recommend._ranking import train_runs
from experiments.recommend._study import Recommend
from experiments.recommend.contrasts import CONTRASTS

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


@pytest.fixture(scope="module")
def first_run(ratings, tmp_path_factory, quick_compiles) -> Path:
    """Run directory of a finished run, with its output in screen.txt; tests must not modify it."""
    out = tmp_path_factory.mktemp("first") / "run"
    with (
        contextlib.redirect_stdout(io.StringIO()) as screen,
        jax.numpy_dtype_promotion("standard"),
    ):
        assert main(["--data", str(ratings), *QUICK, "--out", str(out)]) == 0
    (out / "screen.txt").write_text(screen.getvalue())
    return out


@pytest.fixture
def finished(first_run, tmp_path) -> Path:
    """A writable copy of `first_run`."""
    return shutil.copytree(first_run, tmp_path / "run")


def test_results_are_compared_with_baselines(finished, ratings):
    """The printed table and the file hold the metrics of lists computed here."""
    with (finished / "baselines.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["popularity", "item-kNN", "EASE"]
    _, problem = prepare(Recommend(), ["--data", str(ratings), *QUICK])
    scores = json.loads((finished / "metrics.json").read_text())
    fitted = baselines.Popularity().fit(problem.known)
    lists, _ = fitted.recommend(problem.layout.users, 20)
    values = metrics.evaluate_lists(lists, problem.layout, ks=20)["ndcg@20"]
    row = {name: float(value) for name, value in rows["popularity"].items() if name != "model"}
    assert row["ndcg@20"] == pytest.approx(float(values.mean()))
    assert row["difference"] == pytest.approx(scores["ndcg@20"] - row["ndcg@20"], abs=1e-6)
    assert row["low"] < row["difference"] < row["high"]
    assert (row["p"] < 0.05) == (not row["low"] < 0 < row["high"])
    screen = (finished / "screen.txt").read_text()
    assert f"{row['ndcg@20']:.4f}" in screen
    assert f"{row['difference']:+.4f}" in screen


def test_run_writes_documented_outputs(finished, ratings):
    config = json.loads((finished / "config.json").read_text())
    assert config["source"]["data"] == str(ratings)
    assert config["training"]["lr"] == 0.003
    assert config["output"]["out"].endswith("/run")
    used = {name for name, value in config["objective"].items() if value is not None}
    assert used == {"loss", "n_neg", "temperature"}
    assert (config["objective"]["n_neg"], config["objective"]["temperature"]) == (128, 0.3)
    lines = [json.loads(line) for line in (finished / "history.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["phase"] == "search"] == [1, 2, 3]
    assert all(np.isfinite(line["loss"][0]) for line in lines)
    metrics = json.loads((finished / "metrics.json").read_text())
    for name in ("ndcg", "recall", "precision", "f1", "map", "mrr", "hit_rate", "coverage"):
        for k in (5, 10, 20):
            assert 0 <= metrics[f"{name}@{k}"] <= 1
    assert 0 <= metrics["auc"] <= 1
    chosen = metrics["chosen"]
    assert chosen["point"] == {}
    assert chosen["epochs"] == [line["phase"] for line in lines].count("final")
    assert 0 < chosen["valid_ndcg@20"] <= 1
    last = {line["phase"]: line["seconds"] for line in lines}
    assert metrics["seconds"] == pytest.approx(last["search"] + last["final"])
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (finished / "checkpoint").is_dir()
    assert not list(finished.rglob("*.partial"))
    screen = (finished / "screen.txt").read_text()
    assert f"{metrics['ndcg@20']:.4f}" in screen
    chosen = f"{chosen['epochs']} epochs, NDCG@20 {chosen['valid_ndcg@20']:.4f} (mean with the val"
    assert f"chosen on validation data: {chosen}" in screen
    stages = [f"reading {ratings.parent.name}/log.csv", "splitting",
              "search: compiling", "search 1/3  loss",
              "search 3/3  loss", "final: compiling", "evaluating seed 0", "baseline: popularity",
              "drawing"]  # fmt: skip
    places = [screen.index(f"\n{stage}") if stage != stages[0] else 0 for stage in stages]
    assert places == sorted(places)
    assert screen.startswith(stages[0])
    assert "\x1b" not in screen


TOGETHER = {
    "confidence": ["--loss", "bprac", "--confidence-every", "2", "--seeds", "2"],
    "group": ["--loss", "gbpr", "--sampler", "bns", "--ecdf-samples", "32", "--rns-epochs", "1"],
    "schedule": ["--loss", "truncated_bpr", "--sampler", "srns", "--candidates", "4",
                 "--sweep", "variance_weight=0,5"],
    "own negatives": ["--loss", "mpr"],
    "contrast": ["--loss", "bpr", "--encoder", "lightgcn", "--layers", "2", "--contrast",
                 "xsimgcl", "--contrast-loss", "bayesian", "--sweep", "contrast_weight=0.1,0.3",
                 "--sweep", "contrast_beta=0.6"],
    "positives alone": ["--loss", "directau", "--sweep", "gamma=0.5,1"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The distribution of")
@pytest.mark.parametrize("name", TOGETHER)
def test_training_options_work_together(name, ratings, tmp_path):
    out = tmp_path / "run"
    arguments = ["--data", str(ratings), *QUICK, "--final-training", "train", "--out", str(out)]
    assert main([*arguments, *TOGETHER[name]]) == 0
    assert np.isfinite(json.loads((out / "metrics.json").read_text())["ndcg@20"])
    entries = history(out)
    assert {entry["phase"] for entry in entries} == {"search"}
    for entry in entries:  # shares of true and of informative negatives
        assert all(0 <= rate <= 1 for rate in entry["tnr"])
        assert all(-1 <= rate <= 1 for rate in entry["inf"])


def test_trains_given_number_of_epochs_without_validation(ratings, tmp_path, capsys):
    out = tmp_path / "run"
    flags = ["--valid-fraction", "0", "--seeds", "2", "--final-training", "all"]
    assert main(["--data", str(ratings), *QUICK, *flags, "--out", str(out)]) == 0
    screen = capsys.readouterr().out
    assert "mean ± standard deviation of 2 seeds" in screen
    assert "validation, " not in screen
    assert "trained for 3 epochs, without validation data" in screen
    assert "scored: a model trained on training data" in screen
    assert "saved for use: a model trained on training + test data" in screen
    assert [(line["phase"], line["epoch"]) for line in history(out)] == [
        (phase, epoch) for phase in ("final", "use") for epoch in (1, 2, 3)
    ]
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["chosen"] == {"epochs": 3, "point": {}}
    per_seed = json.loads((out / "metrics_by_seed.json").read_text())
    values = [one["recall@10"] for one in per_seed]
    assert values[0] != values[1]
    assert metrics["recall@10"] == pytest.approx(np.mean(values))
    assert metrics["recall@10_std"] == pytest.approx(np.std(values, ddof=1))
    assert metrics["trained_on"] == {"scored_model": ["train"], "saved_model": ["train", "test"]}
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert main(["topk", "--run", str(out), "--user", "u7"]) == 0


def test_description_omits_brackets_without_hyperparams():
    config = Config(protocol=ProtocolOptions(sweep=("temperature=1",)))
    assert Recommend().describe_training(config) == "bpr, rns, mf"
    config = Config(objective=LossOptions(loss="gbpr", n_neg=2))
    assert Recommend().describe_training(config).startswith("gbpr (rho=")


def test_sweep_selects_by_validation_and_writes_all_points(ratings, tmp_path, capsys):
    out = tmp_path / "run"
    sweep = ["--sweep", "lr=1e-6,1e-2", "--sweep", "tau_plus=0.0,0.1,0.2"]
    arguments = ["--data", str(ratings), "--loss", "dpl", *SHORT, *sweep, "--seeds", "2"]
    assert main([*arguments, "--out", str(out)]) == 0
    with (out / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert {(float(r["lr"]), float(r["tau_plus"])) for r in rows} == {
        (lr, tau) for lr in (1e-6, 1e-2) for tau in (0.0, 0.1, 0.2)
    }
    chosen = [r for r in rows if r["chosen"] == "1"]
    assert len(chosen) == 1
    assert float(chosen[0]["valid_ndcg@20"]) == max(float(r["valid_ndcg@20"]) for r in rows)
    found = json.loads((out / "metrics.json").read_text())["chosen"]
    assert found["point"] == {name: float(chosen[0][name]) for name in ("lr", "tau_plus")}
    assert (found["epochs"], found["valid_ndcg@20"]) == (
        int(chosen[0]["best_epoch"]), float(chosen[0]["valid_ndcg@20"])
    )  # fmt: skip
    objective = json.loads((out / "config.json").read_text())["objective"]
    assert (objective["tau_plus"], objective["floor"]) == (None, 0.01)  # the sweep sets tau_plus
    final = [line for line in history(out) if line["phase"] == "final"]
    assert len(final) == int(chosen[0]["best_epoch"])
    assert len(final[0]["loss"]) == 2
    assert "Grid, decided on validation data" in capsys.readouterr().out


def test_topk_uses_original_ids(finished, ratings, tmp_path, capsys):
    capsys.readouterr()
    assert main(["topk", "--run", str(finished), "--user", "u7", "--k", "5"]) == 0
    screen = capsys.readouterr().out
    with ratings.open() as file:
        rows = list(csv.DictReader(file))
    printed = re.findall(r"\bi\d+\b", screen)
    assert len(printed) == 5
    assert {*printed} <= {row["item"] for row in rows}
    assert printed == Recommender.load(finished).recommend("u7", k=5).items[0].tolist()

    out = tmp_path / "recs.parquet"
    assert main(["topk", "--run", str(finished), "--all", "--k", "5", "--out", str(out)]) == 0
    table = polars.read_parquet(out)
    assert table.columns == ["user", "rank", "item", "score"]
    assert set(table["user"]) == {row["user"] for row in rows}
    mine = table.filter(polars.col("user") == "u7")
    assert mine["item"].to_list() == printed
    assert mine["rank"].to_list() == [1, 2, 3, 4, 5]
    assert mine["score"].is_sorted(descending=True)
    assert main(["topk", "--run", str(finished), "--all", "--k", "5", "--out",
                 str(tmp_path / "recs.csv")]) == 0  # fmt: skip
    with (tmp_path / "recs.csv").open() as file:
        as_csv = [(r["user"], r["item"]) for r in csv.DictReader(file)]
    assert as_csv == list(zip(table["user"], table["item"], strict=True))


def test_log_flag_sends_history_to_tensorboard(ratings, tmp_path, monkeypatch):
    out, logged = tmp_path / "run", []

    @contextlib.contextmanager
    def board(folder):
        assert folder == out / "tensorboard"
        yield logged.append
        logged.append("closed")

    monkeypatch.setitem(sys.modules, "tensorboardX", object())
    monkeypatch.setattr("experiments._loggers.TensorBoard", board)
    arguments = ["--data", str(ratings), *QUICK, "--log", "tensorboard", "--out", str(out)]
    assert main(arguments) == 0
    assert [e if e == "closed" else {**e, "seconds": 0} for e in logged] == [
        *({**line, "seconds": 0} for line in history(out)), "closed",
    ]  # fmt: skip


def test_model_is_saved_when_evaluation_fails(finished, monkeypatch):
    (finished / "metrics.json").unlink()
    (finished / "checkpoint" / "model.npz").unlink()

    def fail(*_):
        raise ValueError("no scores today")

    with monkeypatch.context() as patch:
        patch.setattr(Recommend, "evaluate", fail)
        assert main(["--resume", str(finished)]) == 2
    assert main(["topk", "--run", str(finished), "--user", "u7"]) == 0
    assert main(["--resume", str(finished)]) == 0
    assert (finished / "metrics.json").exists()


INVALID_TOPK_FLAGS = {
    "unknown user": (["--user", "nobody"], "nobody"),
    "user and all": (["--user", "u1", "--all"], "one of --user ID and --all"),
    "neither": ([], "one of --user ID and --all"),
    "all without a file": (["--all"], "--all needs --out"),
    "no such format": (["--all", "--out", "recs.xlsx"], "must end in .parquet or .csv"),
    "no items": (["--user", "u1", "--k", "0"], "--k must be at least 1"),
    "no such seed": (["--user", "u1", "--seed-index", "1"], "--seed-index must lie in"),
}


@pytest.mark.parametrize("name", INVALID_TOPK_FLAGS)
def test_topk_rejects_invalid_flags(name, first_run, capsys):
    arguments, message = INVALID_TOPK_FLAGS[name]
    assert main(["topk", "--run", str(first_run), *arguments]) == 2
    assert message in one_line(capsys.readouterr().err)


def test_topk_rejects_folder_without_model(tmp_path, capsys):
    assert main(["topk", "--run", str(tmp_path), "--user", "u1"]) == 2
    assert "has no trained model" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sampler", "pns", "--candidates", "3"], "--sampler pns has no --candidates"),
        (["--loss", "mpr", "--sampler", "dns"], "this loss draws its own negatives"),
        (["--layers", "2"], "--encoder mf has no --layers"),
        (["--batches", "host", "--loss", "bprac"], "--batches host: --loss bprac weighs each"),
        (["--out", "{run}"], "{run} holds a run already: go on with it by --resume {run}"),
    ],
)
def test_rejects_invalid_flags_before_reading_data(
    flags, message, ratings, first_run, monkeypatch, capsys
):
    monkeypatch.setattr("experiments.recommend._base.load_problem", lambda *_: pytest.fail("read"))
    flags = [flag.format(run=first_run) for flag in flags]
    assert main(["--data", str(ratings), *flags]) == 2
    assert message.format(run=first_run) in one_line(capsys.readouterr().err)


def test_run_is_not_overwritten_or_evaluated_again(finished, ratings, capsys, monkeypatch):
    before = (finished / "metrics.json").read_bytes()
    assert main(["--data", str(ratings), *QUICK, "--out", str(finished)]) == 2
    assert "holds a run already" in one_line(capsys.readouterr().err)
    monkeypatch.setattr("experiments.recommend._base.load_problem", lambda *_: pytest.fail("read"))
    assert main(["--resume", str(finished)]) == 0
    assert "is finished" in one_line(capsys.readouterr().out)
    assert (finished / "metrics.json").read_bytes() == before
    for flags in (["--lr", "1"], ["--seed=0"]):  # the second is the default
        assert main(["--resume", str(finished), *flags]) == 2
        assert "omit other flags" in one_line(capsys.readouterr().err)


def test_run_directory_is_locked_by_one_process(finished, ratings, capsys):
    (finished / "metrics.json").unlink()
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with lock_file(finished / ".lock", busy="free"):
        assert main(["--resume", str(finished)]) == 2
        assert main(["--data", str(ratings), *QUICK, "--out", str(finished)]) == 2
    output = one_line(capsys.readouterr().err)
    assert output.count("another process is at work in") == 2
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert main(["--resume", str(finished)]) == 0


@pytest.mark.parametrize(
    ("section", "changed", "message"),
    [
        ("training", {"dim": 0}, "training.dim: expected a whole number in [1, 65536], got 0"),
        (
            "protocol",
            {"final_training": None},
            "protocol.final_training: expected one of train, train+valid, all, got null",
        ),
        ("protocol", {"sweep": ["lr=-1"]}, "--sweep lr must be a number above 0"),
        ("objective", {"alpha": 0.9}, "--loss info_nce has no --alpha"),
    ],
)
def test_edited_config_is_validated_like_flags(section, changed, message, finished, capsys):
    (finished / "metrics.json").unlink()
    path = finished / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {section: config[section] | changed}))
    assert main(["--resume", str(finished)]) == 2
    error = "".join(capsys.readouterr().err.split())
    assert error.startswith(f"error:{path}:")
    assert "".join(message.split()) in error


def test_rejects_resume_with_changed_data(finished, ratings, capsys):
    (finished / "metrics.json").unlink()
    original = ratings.read_text()
    try:
        ratings.write_text("\n".join(original.splitlines()[:-3]) + "\n")
        assert main(["--resume", str(finished)]) == 2
    finally:
        ratings.write_text(original)
    assert "belongs to another training" in one_line(capsys.readouterr().err)


def test_killed_run_resumes_to_same_result(first_run, ratings, tmp_path, monkeypatch):
    """Killed in the search and in the final training, at the first epoch of each."""
    out = tmp_path / "killed"
    flags = ["--data", str(ratings), *QUICK, "--checkpoint-seconds", "0", "--out", str(out)]

    def at_first(checkpoint, loop):
        return loop.epoch == 1

    kill(main, flags, monkeypatch, at_first)
    assert [line["phase"] for line in history(out)] == []  # the checkpoint precedes the report
    kill(main, ["--resume", str(out)], monkeypatch, at_first)
    assert not (out / "metrics.json").exists()
    n_epochs = sum(line["phase"] == "final" for line in history(first_run))
    assert resume(main, out, monkeypatch) == [*range(2, n_epochs + 1)]
    want, _ = load_checkpoint(first_run / "checkpoint" / "model.npz")
    got, _ = load_checkpoint(out / "checkpoint" / "model.npz")
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])
    scores = [json.loads((folder / "metrics.json").read_text()) for folder in (out, first_run)]
    assert scores[0] | {"seconds": 0} == scores[1] | {"seconds": 0}
    assert history(out) == history(first_run)


@pytest.mark.parametrize("name", [name for name in CONTRASTS if name not in ("none", "xsimgcl")])
def test_contrast_is_traced_and_builds_graph_once_per_phase(name, ratings, tmp_path, monkeypatch):
    """Validating the flags of a contrast does not build the graph again."""
    graph_sizes, from_log = [], InteractionGraph.from_interactions

    def counting(train, **how):
        graph_sizes.append(len(train))
        return from_log(train, **how)

    def trace(train, valid, *, encoder, loss, hyperparams, options, **_):
        task = tasks.Ranking.from_interactions(
            train, encoder=encoder, loss=loss, hyperparams=hyperparams,
            auxiliary_loss=options.auxiliary_loss,
        )  # fmt: skip
        assert options.auxiliary_loss is not None
        return trace_step(task, jax.tree.map(lambda leaf: leaf[:8], task.seen)).shape

    monkeypatch.setattr(InteractionGraph, "from_interactions", counting)
    monkeypatch.setattr(tasks, "fit_ranking", trace)
    flags = ["--encoder", "lightgcn", "--contrast", name, "--edge-dropout", "0.1"]
    if name == "ncl":
        flags += ["--clusters", "5"]  # its default is for more than these users
    config, problem = prepare(Recommend(), ["--data", str(ratings), *flags])
    n_graphs, seed = len(graph_sizes), {"seeds": np.zeros(1)}
    for phase in ("search", "final"):
        assert train_runs(config, problem, phase, seed, tmp_path / "of.npz", lambda *_: None) == ()
    assert len(graph_sizes) == 2 * n_graphs
    assert graph_sizes[0] < graph_sizes[-1]  # the search, then the final training on more data


def test_approximate_topk_reports_recall(finished, tmp_path, capsys):
    flags = ["topk", "--run", str(finished), "--all", "--k", "4"]
    assert main([*flags, "--out", str(tmp_path / "exact.csv")]) == 0
    assert main([*flags, "--approximate", "0.9", "--out", str(tmp_path / "quick.csv")]) == 0
    output = one_line(capsys.readouterr().out)
    assert "approximate: 100.00% of the best items found, for 50 users" in output
    exact, quick = ((tmp_path / f"{name}.csv").read_text() for name in ("exact", "quick"))
    assert exact == quick
    assert main([*flags, "--approximate", "0", "--out", str(tmp_path / "no.csv")]) == 2
    assert "--approximate must lie in (0, 1], got 0.0" in one_line(capsys.readouterr().err)
