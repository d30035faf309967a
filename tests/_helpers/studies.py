"""Shared helpers for tests of the study commands, which train with several seeds."""

import json
import re
import shlex
from contextlib import contextmanager
from pathlib import Path

import jax

from _helpers.pages import DOCS
from _helpers.refusals import raises
from crl_jax import train
from experiments._study_command import configure

RUN = "## The run directory"


def page_of(module):
    """Returns the documentation of a command."""
    return (DOCS / "modalities" / f"{Path(module.__file__).parent.name}.md").read_text()


def commands_of(text, name):
    """Returns the arguments of each call of a command in a page."""
    return [
        shlex.split(command)
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        for command in re.findall(rf"python -m experiments\.{name} ?(.*)", block)
    ]


def refused(main, arguments, capsys):
    """Returns the one-line error of a command that rejects its arguments."""
    assert main(arguments) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    return output


def flags_of(text):
    """Returns the set of flags mentioned in a page."""
    return set(re.findall(r"--[a-z][a-z0-9-]*", text))


def said_of_runs(text):
    """Returns the files of a run directory as documented in a page."""
    named = re.findall(r"^\| (`.*?) \|", text.split(RUN)[1], re.MULTILINE)
    return {name for cell in named for name in re.findall(r"`([\w.]+\.\w+|checkpoint/)`", cell)}


def files_of(folder):
    """Returns the names of the files in a run directory."""
    return {f"{p.name}/" if p.is_dir() else p.name for p in folder.iterdir()} - {".lock"}


def read(folder, name):
    """Loads a JSON file of a run directory."""
    return json.loads((folder / name).read_text())


def history(folder):
    """Returns the entries of history.jsonl without wall-clock times."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def finish(main, folder, flags):
    """Runs a command to its end and returns the run directory."""
    with jax.numpy_dtype_promotion("standard"):
        assert main([*flags, "--out", str(folder)]) == 0
    return folder


def prepare(study, flags):
    """Returns the configuration with all defaults resolved, and the data."""
    config, _, _ = configure(study, flags)
    study.check(config)
    problem = study.load(config, lambda _: None)
    return study.prepare(config, problem), problem


def task_of(study, config, problem, numbers=None, phase="final"):
    """Returns the task of a study, with the swept values in ``numbers``."""
    return study.task(config, problem, phase, numbers or {})


class _Killed(BaseException):
    """Simulates the termination of the process."""


@contextmanager
def _reporting(monkeypatch, on_report):
    """Calls ``on_report(checkpoint, loop)`` after each checkpoint is written."""
    report = train.Checkpoint.on_report

    def both(self, loop):
        report(self, loop)
        on_report(self, loop)

    with monkeypatch.context() as patch:
        patch.setattr(train.Checkpoint, "on_report", both)
        yield


def kill(main, arguments, monkeypatch, when):
    """Runs a command and stops it after the first checkpoint where ``when(checkpoint, loop)``."""

    def end(checkpoint, loop):
        if when(checkpoint, loop):
            raise _Killed

    with _reporting(monkeypatch, end), raises(_Killed):
        main(arguments)


def resume(main, folder, monkeypatch):
    """Resumes a run, and returns the epochs that it reports."""
    epochs = []
    with _reporting(monkeypatch, lambda _, loop: epochs.append(loop.epoch)):
        assert main(["--resume", str(folder)]) == 0
    return epochs
