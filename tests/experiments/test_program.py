"""Dispatch of commands by ``python -m experiments`` and the installed script."""

import sys

import pytest
from _helpers.refusals import raises

from experiments.__main__ import main
from experiments._program import NAMES


def test_usage_lists_commands(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["crl-jax", "--help"])
    assert main() == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("recommend", "numerical", "reproduce"))
    monkeypatch.setattr(sys, "argv", ["crl-jax", "cook"])
    assert main() == 2
    assert capsys.readouterr().err == shown


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("started", "shown"),
    [("/bin/crl-jax", "crl-jax {}"), ("__main__.py", "python -m experiments.{}")],
)
def test_help_shows_invoked_command_name(name, started, shown, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [started, name, "--help"])
    monkeypatch.setattr("experiments.__main__.run_with_signals", lambda command: command())
    with raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 0
    assert f"usage: {shown.format(name)} " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", NAMES)
def test_help_has_no_line_break_within_sentence(name, monkeypatch, capsys):
    """Tyro joins the lines of a paragraph, except one that begins with another character."""
    monkeypatch.setattr(sys, "argv", ["crl-jax", name, "--help"])
    monkeypatch.setattr("experiments.__main__.run_with_signals", lambda command: command())
    with raises(SystemExit):
        main()
    description = capsys.readouterr().out.partition("╭")[0].splitlines()[1:]
    assert [line for line in description if line and not line[0].isalpha() and line[0] != " "] == []


def test_reports_missing_package(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["crl-jax", "recommend"])
    monkeypatch.setattr("experiments.__main__.run_with_signals", lambda command: command())
    monkeypatch.delitem(sys.modules, "experiments.recommend._study", raising=False)
    monkeypatch.setitem(sys.modules, "tyro", None)
    for name in ("experiments.recommend._config", "experiments._schema"):  # they import it
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert main() == 2
    error = capsys.readouterr().err
    assert "tyro" in error
    assert "pip install 'crl_jax[experiments]'" in error
