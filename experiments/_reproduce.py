"""What ``python -m experiments.reproduce`` does, see :mod:`experiments.reproduce`."""

import dataclasses
from typing import Annotated, Any

import tyro
from rich.console import Console

from ._command import run
from ._locks import hold
from ._options import RANGES
from ._program import flag, program
from ._ranges import COUNT, POSITIVE, Range, check_flags
from ._registry import name_of
from ._screen import output
from ._signals import advise
from .studies import OWN_FLAGS, TARGETS, Job, Options, Target
from .studies.methods import by_folder

_DESCRIPTION = """Make tables and figures of the dissertation anew.

Each target is one command on a dataset folder: it trains what the table or figure compares, prints
our numbers beside the published ones, and writes Markdown, CSV and PNG.
"""
_RANGES = {
    "seeds": RANGES["seeds"],
    "epochs": RANGES["epochs"],
    "test_rating": Range(),
    "splits": COUNT,
    "law_scale": POSITIVE,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""

    def command() -> None:
        options = parse(arguments)
        advise(lambda: "The same command goes on from here.")
        _reproduce(options, output())

    return run(command)


def parse(arguments: list[str] | None) -> Options:
    """Turns flags into options.

    Raises:
      ValueError: If a number is out of range, or a flag is not one of the target.
    """
    listed = "; ".join(target.title for target in TARGETS.values())
    kind = Annotated[name_of(TARGETS, listed), tyro.conf.Positional]
    made: Any = dataclasses.make_dataclass(
        Options.__name__, [("target", kind)], bases=(Options,), frozen=True
    )
    options = tyro.cli(made, prog=program("reproduce"), args=arguments, description=_DESCRIPTION)
    check_flags(options, _RANGES)
    target = TARGETS[options.target]
    options = dataclasses.replace(options, setting=options.setting or target.settings[0])
    _check_target(options, target)
    return options


def _check_target(options: Options, target: Target) -> None:
    for field in dataclasses.fields(Options):
        is_given = getattr(options, field.name) != field.default
        if field.name in OWN_FLAGS and is_given and field.name not in target.flags:
            takers = ", ".join(name for name, of in TARGETS.items() if field.name in of.flags)
            raise ValueError(
                f"{flag(field.name)} is for {takers}: leave it out of {options.target}."
            )
    if options.setting not in target.settings:
        (known,) = target.settings
        raise ValueError(
            f"{options.target} is of the {known} setting: leave out --setting {options.setting}."
        )
    target.check(options)


def _reproduce(options: Options, console: Console) -> None:
    target = TARGETS[options.target]
    worlds = target.load(options, console)
    options.out.mkdir(parents=True, exist_ok=True)
    busy = f"another process is making {options.target} in {options.out}; let it end first."
    # Trainings that several targets share are held one by one, where they are trained.
    with hold(options.out / f".{options.target}.lock", busy=busy):
        for folder, (world, *_) in by_folder(worlds).items():
            train, test = world.train, world.test
            console.print(
                f"{target.title}: {folder}, {train.n_users:,} users, {train.n_items:,} items, "
                f"{len(train):,} + {len(test):,} interactions"
            )
        target.make(Job(target.title, options, worlds, console))
