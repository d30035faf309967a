"""Benchmarks whose data are missing end with one line and the exit status 2."""

import importlib

import pytest
from _helpers.commands import call
from _helpers.refusals import raises

DATA = (
    "batch_size", "blends", "cold_items", "debias", "defaults", "filters", "fold_in", "samplers",
)  # fmt: skip


def refused(name, flags, monkeypatch, capsys) -> str:
    """Runs a benchmark, which ends with the status 2, and returns its standard error."""
    module = importlib.import_module(f"benchmarks.{name}")
    with raises(SystemExit) as left:
        call(module, monkeypatch, *flags)
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", DATA)
def test_missing_data_are_one_line(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)  # of the default run directories
    error = refused(name, ["--data", tmp_path / "nowhere"], monkeypatch, capsys)
    assert error.startswith("error: ")
    assert "nowhere" in error
    assert error.count("\n") == 1


def test_missing_runs_of_sequences_are_one_line(monkeypatch, tmp_path, capsys):
    error = refused("sequences", ["--runs", tmp_path / "nowhere"], monkeypatch, capsys)
    assert error.startswith("error: ")
    assert "holds no run" in error


def test_a_missing_folder_of_all_datasets_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CRL_DATA", str(tmp_path / "nowhere"))
    error = refused("baselines", ["--data", "gowalla"], monkeypatch, capsys)
    assert error.startswith("error: ")
    assert "nowhere" in error
