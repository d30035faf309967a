"""Benchmarks whose data are missing end with one line and the exit status 2."""

import importlib

import pytest
from _helpers.commands import call
from _helpers.refusals import raises

DATA = (
    "batch_size", "blends", "cold_items", "debias", "defaults", "filters", "fold_in", "samplers",
)  # fmt: skip


def error_of(name, flags, monkeypatch, capsys) -> str:
    """Runs a benchmark, which ends with the status 2, and returns its standard error."""
    module = importlib.import_module(f"benchmarks.{name}")
    with raises(SystemExit) as exit_info:
        call(module, monkeypatch, *flags)
    assert exit_info.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", DATA)
def test_missing_data_give_one_line_error(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)  # default run directories are relative
    error = error_of(name, ["--data", tmp_path / "nowhere"], monkeypatch, capsys)
    assert error.startswith("error: ")
    assert "nowhere" in error
    assert error.count("\n") == 1


def test_missing_sequence_runs_are_reported(monkeypatch, tmp_path, capsys):
    error = error_of("sequences", ["--runs", tmp_path / "nowhere"], monkeypatch, capsys)
    assert error.startswith("error: ")
    assert "holds no run" in error


def test_missing_dataset_folder_is_reported(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CRL_DATA", str(tmp_path / "nowhere"))
    error = error_of("baselines", ["--data", "gowalla"], monkeypatch, capsys)
    assert error.startswith("error: ")
    assert "nowhere" in error
