"""Tests that the list of source items names existing code, commands and results."""

import importlib
import importlib.util
import io
import re
import shlex
import sys
from pathlib import Path

import pytest
from _helpers.modalities import MODALITIES
from _helpers.refusals import raises

from experiments._study_command import configure
from experiments.numerical import _options as numerical_options
from experiments.recommend._study import Recommend
from experiments.reproduce import command, main, sources
from experiments.reproduce.command import TARGETS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
ITEMS = sources.read()
COMMANDS = sorted({item.command for item in ITEMS if item.command})


def exists(name):
    """Whether a public name, a module of the commands or benchmarks, or a file of tests exists."""
    if name.startswith("tests/"):
        return (ROOT / name).is_file()
    if name.startswith(("experiments.", "benchmarks.")):
        return importlib.util.find_spec(name) is not None
    found = importlib.import_module("crl_jax")
    for part in name.split("."):
        if part.startswith("_") or not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def test_exists_rejects_unknown_names():
    assert exists("losses.bpr")
    assert exists("experiments.reproduce.sources")
    assert not any(map(exists, ("losses.none", "losses._pairwise", "experiments.x", "tests/x.py")))


@pytest.mark.parametrize("source", sources.SOURCES)
def test_code_and_results_exist(source):
    (own, *_) = items = sources.select([source])
    assert own.source == source
    for item in items:
        assert item.state in sources.STATES
        assert item.place
        assert item.item
        missing = [name for name in item.code if not exists(name)]
        assert not missing, item
        for path in sources.files(item, RESULTS):
            assert path.suffix == ".csv"


def test_items_have_fields_required_by_state():
    for item in ITEMS:
        if item.state == "not implemented":
            assert not item.command, item
            assert not item.results, item
        elif item.state == "not run":
            assert item.command, item
            assert not item.results, item
        else:
            assert item.code or item.command, item
        assert item.note or item.state != "differs", item


@pytest.mark.parametrize("text", COMMANDS)
def test_commands_are_accepted(text):
    name, *arguments = shlex.split(text)
    match name:
        case "reproduce":
            assert command.parse(arguments).target == arguments[0]
        case "numerical":
            numerical_options.parse(arguments)
        case "recommend":
            study = Recommend()
            study.check(configure(study, arguments)[0])
        case _ if name in MODALITIES:
            study = MODALITIES[name].new_study
            study.check(configure(study, arguments)[0])
        case _:
            assert name.startswith("benchmarks.")
            source = (ROOT / f"{name.replace('.', '/')}.py").read_text()
            flags = [argument for argument in arguments if argument.startswith("--")]
            assert all(flag in source or flag == "--data" for flag in flags)


def test_each_target_belongs_to_an_item():
    named = {word for item in ITEMS for word in item.command.split()}
    assert set(TARGETS) <= named


def test_items_are_selected_by_source_and_state():
    assert sources.select([]) == list(ITEMS)
    entries = sources.select(["5", "not", "run", "differs"])
    assert {(item.source, item.state) for item in entries} == {
        ("5", "differs"),
        ("5", "not run"),
    }
    sizes = [len(sources.select([*state.split()])) for state in sources.STATES]
    assert sum(sizes) == len(ITEMS)
    assert sources.count(entries) == f"{len(entries)} items: {len(entries) - 1} differs, 1 not run"
    with raises(ValueError, match=r"targets, or some of 2, 3.*reproduced.*got '7'"):
        sources.select(["7"])


def test_missing_result_file_is_reported():
    item = ITEMS[0]._replace(results=("none/*.csv",))
    with raises(ValueError, match=r"none/\*\.csv"):
        sources.files(item, RESULTS)


@pytest.mark.parametrize(("width", "columns"), [(60, 3), (80, 3), (160, 4)])
def test_list_fits_terminal_without_unicode(monkeypatch, width, columns):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    for name, value in (("COLUMNS", str(width)), ("TTY_COMPATIBLE", "1"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert main(["--list", "5", "6"]) == 0
    lines = written.getvalue().decode("cp1252").splitlines()
    assert max(map(len, lines)) <= width
    assert not any("\x1b" in line or "?" in line for line in lines)
    text = re.sub(r"\s+", " ", " ".join(lines))
    assert "prior tau+ of BCL" in text or columns == 3
    (line,) = (line for line in lines if line.startswith("  table 5.2"))
    assert ("$ reproduce table-5.2 --data datasets" in line) == (columns == 4)
    assert any(line.startswith("Total: ") for line in lines)


def test_list_flag_must_be_first_argument(capsys):
    assert main(["table-4.2", "--list"]) == 2
    assert "--list must be the first argument, got table-4.2." in capsys.readouterr().err
    assert main(["--list", "chapter"]) == 2
    assert "got 'chapter'" in " ".join(capsys.readouterr().err.split())
