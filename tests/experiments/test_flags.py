"""Tests of library error messages as reported by the command line."""

import pytest
from _helpers.refusals import raises

from crl_jax.data import DATASETS
from experiments._program import in_flags, rename_arguments, suggest
from experiments.recommend import main
from experiments.recommend._config import SCHEMA


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`learning_rate` must be positive.", "--lr must be positive."),
        ("`weight_decay` and `tau_plus`", "--weight-decay and --tau-plus"),
        ("choose with `user_col=`.", "choose with --user-col."),
        ("`held_out` and `read` are nobody's flags", "`held_out` and `read` are nobody's flags"),
        ("dim alone is a word", "dim alone is a word"),
    ],
)
def test_error_messages_name_flags_of_arguments(message, expected):
    assert in_flags(message, SCHEMA.flags) == expected


@pytest.mark.parametrize(
    ("message", "near"),
    [
        ("--recipe takes one of bpr, dpl, got 'BPRR'.", " Did you mean bpr?"),
        ('training.rule: expected one of adam, adamw, got "adamm".', " Did you mean adam?"),
        ("--recipe takes one of bpr, dpl, got 'magic'.", ""),
        ("--lr must be a number, got 'bpr'.", ""),
    ],
)
def test_suggests_nearest_name(message, near):
    assert suggest(message) == message + near


def test_help_lists_every_flag(capsys):
    with raises(SystemExit):
        main(["--help"])
    shown = set(capsys.readouterr().out.replace(",", " ").split())
    assert set(SCHEMA.flags.values()) <= shown
    assert {*DATASETS, "simulated"} <= shown


def test_rename_arguments_replaces_argument_names():
    with (
        raises(ValueError, match=r"^the test part must differ from `other`$"),
        rename_arguments(test="the test part"),
    ):
        raise ValueError("`test` must differ from `other`")


@pytest.mark.parametrize("arguments", [["--out", ""], ["--out="], ["--resume", ""], ["--data", ""]])
def test_rejects_empty_path(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--epochs", "1"]) == 2
    name = arguments[0].rstrip("=")
    assert f"error: {name} must not be an empty text." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
