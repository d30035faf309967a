"""Run directories of benchmarks: finished runs are reused only with the flags that made them."""

import json
from pathlib import Path

import pytest
from _helpers.commands import call
from _helpers.refusals import raises

from benchmarks import _runs, findings
from benchmarks._report import read_csv
from experiments import _rundir as rundir
from experiments._study_command import configure

COMMANDS = {
    "graphs": ("graphs", "--ratio", "0.3"),
    "images": ("images", "--data", "digits", "--method", "memory-bank", "--n-neg", "64"),
    "pairs": ("pairs", "--data", "digits", "--loss", "bayesian", "--alpha-from", "labels"),
    "text": ("text", "--method", "none"),
    "recommend": ("recommend", "--loss", "debiased", "--sweep", "temperature=0.1,0.2"),
    "LightGCN": ("recommend", "--encoder", "lightgcn", "--blend", "1"),
    "search": ("recommend", "--tune", "2"),
    "recipe": ("recommend", "--recipe", "ml-100k-hard", "--data", "simulated"),
}


def finish(command, flags, folder: Path) -> None:
    """Writes the configuration of a run, as its command does, and marks the run as complete."""
    study = _runs.load_study(command)
    config, *_ = configure(study, [*flags])
    study = study.for_config(config)
    config = study.prepare(config, study.load(config, lambda _: None))
    folder.mkdir(parents=True)
    rundir.create(folder, config, command)
    (folder / "metrics.json").write_text(json.dumps({"svm": 0.8}))
    (folder / "metrics_by_seed.json").write_text(json.dumps([{"svm": 0.75}, {"svm": 0.85}]))


@pytest.mark.parametrize("name", COMMANDS)
def test_finished_run_is_reused_only_with_same_flags(name, tmp_path, capsys):
    (command, *flags), folder = COMMANDS[name], tmp_path / "run"
    finish(command, flags, folder)
    _runs.run(command, flags, folder)
    assert "is finished" in " ".join(capsys.readouterr().out.split())
    with raises(ValueError, match=r"run holds a run with --seed 0, got 7; name another folder"):
        _runs.run(command, [*flags, "--seed", "7"], folder)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--kinds", "subgraph"], "--kinds drop_nodes mask_attributes, got subgraph"),
        (["--kinds", "drop_nodes", "mask_attributes", "--width", "8"], "--width 16, got 8"),
        (["--kinds", "drop_nodes", "mask_attributes", "--width", "16", "--n-layers", "2"],
         "--n-layers 3, got 2"),
        (["--kinds", "drop_nodes", "mask_attributes"], "--width 16, got 32"),
    ],
)  # fmt: skip
def test_error_names_differing_flag(flags, message, tmp_path):
    """The last case: a flag that is not given has its default."""
    original_flags = ["--kinds", "drop_nodes", "mask_attributes", "--width", "16"]
    finish("graphs", original_flags, tmp_path / "run")
    with raises(ValueError, match=message):
        _runs.run("graphs", flags, tmp_path / "run")


@pytest.mark.parametrize(("data", "is_same"), [("moved/MUTAG", True), ("moved/NCI1", False)])
def test_accepts_moved_dataset_and_rejects_other(data, is_same, tmp_path, capsys):
    folder = tmp_path / "run"
    finish("graphs", [], folder)
    config = json.loads((folder / "config.json").read_text())
    config["source"]["data"] = "/sets/MUTAG"
    (folder / "config.json").write_text(json.dumps(config))
    if is_same:
        _runs.run("graphs", ["--data", data], folder)
    else:
        with raises(ValueError, match="--data /sets/MUTAG, got moved/NCI1"):
            _runs.run("graphs", ["--data", data], folder)


def test_interrupted_run_is_resumed_only_with_same_flags(monkeypatch, tmp_path):
    finish("graphs", [], tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    calls = []
    module = type("Command", (), {"main": staticmethod(lambda flags: calls.append(flags) or 0)})
    study = _runs.load_study("graphs")
    monkeypatch.setattr(_runs, "load_study", lambda _: study)
    monkeypatch.setattr(_runs.importlib, "import_module", lambda _: module)
    _runs.run("graphs", [], tmp_path / "run")
    _runs.run("graphs", ["--seed", "1"], tmp_path / "new")
    with raises(ValueError, match="--seed"):
        _runs.run("graphs", ["--seed", "1"], tmp_path / "run")
    assert calls == [
        ["--resume", str(tmp_path / "run")], ["--seed", "1", "--out", str(tmp_path / "new")],
    ]  # fmt: skip


def test_study_rejects_runs_with_other_seeds(monkeypatch, tmp_path, capsys):
    study = findings.STUDIES["graph-ratios"]
    sets = {"MUTAG": ("--data", "simulated")}
    monkeypatch.setattr(findings, "STUDIES", {"graph-ratios": study._replace(datasets=sets)})
    for way in study.ways:
        flags = [*study.scales["tiny"], *sets["MUTAG"], *study.ways[way], "--seeds", "2"]
        name = f"MUTAG-tiny-{way.replace(' ', '-')}"
        finish("graphs", flags, tmp_path / "runs" / "graph-ratios" / name)
    flags = "graph-ratios", "--data", "sets", "--scale", "tiny"
    flags = *flags, "--runs", tmp_path / "runs", "--out", tmp_path / "out"
    with raises(SystemExit) as exit_info:
        call(findings, monkeypatch, *flags, "--seeds", "7")
    assert exit_info.value.code == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "MUTAG-tiny-drop_nodes-0.05 holds a run with --seeds 2, got 7" in error
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(findings, "draw", lambda *_: None)
    monkeypatch.setattr("benchmarks._comparison.compare", lambda *_: None)
    call(findings, monkeypatch, *flags, "--seeds", "2")
    rows = read_csv(tmp_path / "out" / "graph-ratios.csv")
    assert [row["seeds"] for row in rows] == ["2"] * len(study.ways)
    assert all(row["flags"].endswith("--seeds 2") for row in rows)
