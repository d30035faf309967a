"""What tests of the commands that train with seeds have in common."""

import json
import re
import shlex
from contextlib import contextmanager
from pathlib import Path

import jax

from _helpers.refusals import raises
from crl_jax import train
from experiments._study_command import configure

RUN = "## The run directory"


def page_of(module):
    """The page of a command."""
    return (Path(module.__file__).parent / "README.md").read_text()


def commands_of(text, name):
    """The arguments of each call of a command on a page."""
    return [
        shlex.split(command)
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        for command in re.findall(rf"python -m experiments\.{name} ?(.*)", block)
    ]


def refused(main, arguments, capsys):
    """What a command says, in one line, when it refuses its arguments."""
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def flags_of(text):
    """All flags that a page names."""
    return set(re.findall(r"--[a-z][a-z0-9-]*", text))


def said_of_runs(text):
    """What a page says that a run directory holds."""
    named = re.findall(r"^\| (`.*?) \|", text.split(RUN)[1], re.MULTILINE)
    return {name for cell in named for name in re.findall(r"`([\w.]+\.\w+|checkpoint/)`", cell)}


def files_of(folder):
    """What a run directory holds."""
    return {f"{p.name}/" if p.is_dir() else p.name for p in folder.iterdir()} - {".lock"}


def read(folder, name):
    """A file of a run directory."""
    return json.loads((folder / name).read_text())


def history(folder):
    """What the reports measured, without the clock."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def finish(main, folder, flags):
    """Runs a command to its end and returns the run directory."""
    with jax.numpy_dtype_promotion("standard"):
        assert main([*flags, "--out", str(folder)]) == 0
    return folder


def prepare(study, flags):
    """The configuration with all defaults, and the data."""
    config, _, _ = configure(study, flags)
    study.check(config)
    problem = study.load(config, lambda _: None)
    return study.prepare(config, problem), problem


def task_of(study, config, problem, numbers=None, phase="final"):
    """The task that a study trains, with numbers of a sweep."""
    return study.task(config, problem, phase, numbers or {})


class _Killed(BaseException):
    """The end of the process."""


@contextmanager
def _reporting(monkeypatch, on_report):
    """Calls ``on_report(checkpoint, loop)`` after each checkpoint that is written."""
    report = train.Checkpoint.on_report

    def both(self, loop):
        report(self, loop)
        on_report(self, loop)

    with monkeypatch.context() as patch:
        patch.setattr(train.Checkpoint, "on_report", both)
        yield


def kill(main, arguments, monkeypatch, when):
    """Runs a command until ``when(checkpoint, loop)``, right after a checkpoint."""

    def end(checkpoint, loop):
        if when(checkpoint, loop):
            raise _Killed

    with _reporting(monkeypatch, end), raises(_Killed):
        main(arguments)


def resume(main, folder, monkeypatch):
    """Goes on with a run, and returns the epochs that it reports."""
    epochs = []
    with _reporting(monkeypatch, lambda _, loop: epochs.append(loop.epoch)):
        assert main(["--resume", str(folder)]) == 0
    return epochs
