"""Flags and execution of ``python -m experiments.reproduce``."""

import dataclasses
import sys
from typing import Annotated, Any

import tyro

from .._command import run
from .._config import SCHEMA
from .._program import flag, program
from .._ranges import check_flags
from .._registry import name_of
from .._screen import output
from .._signals import advise
from .registry import TARGETS, show_list
from .targets import OWN_FLAGS, Options, Target

_DESCRIPTION = """Reproduce tables and figures of the dissertation.

Each target is one command on a dataset folder: it trains the methods of the table or figure, prints
our results next to the published ones, and writes Markdown, CSV and PNG.

{0} --list   prints all targets with their data, times and committed results
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    given = sys.argv[1:] if arguments is None else arguments

    def command() -> None:
        if "--list" in given:
            if len(given) > 1:
                raise ValueError("--list takes no other arguments.")
            show_list()
        else:
            options = parse(given)
            advise(lambda: "The same command resumes.")
            TARGETS[options.target].run(options, output())

    return run(command, SCHEMA.flags)


def parse(arguments: list[str]) -> Options:
    """Parses flags into options.

    Raises:
      ValueError: If a number is out of range, or the target does not accept a flag.
    """
    listed = "; ".join(target.title for target in TARGETS.values())
    kind = Annotated[name_of(TARGETS, listed), tyro.conf.Positional]
    made: Any = dataclasses.make_dataclass(
        Options.__name__, [("target", kind)], bases=(Options,), frozen=True
    )
    name = program("reproduce")
    options = tyro.cli(made, prog=name, args=arguments, description=_DESCRIPTION.format(name))
    check_flags(options)
    target = TARGETS[options.target]
    options = dataclasses.replace(options, setting=options.setting or target.settings[0])
    _check_target(options, target)
    return options


def _check_target(options: Options, target: Target) -> None:
    for field in dataclasses.fields(Options):
        is_given = getattr(options, field.name) != field.default
        if field.name in OWN_FLAGS and is_given and field.name not in target.flags:
            takers = ", ".join(name for name, of in TARGETS.items() if field.name in of.flags)
            raise ValueError(f"{flag(field.name)} is for {takers}, not for {options.target}.")
    if options.setting not in target.settings:
        (known,) = target.settings
        raise ValueError(
            f"{options.target} requires --setting {known}, got --setting {options.setting}."
        )
    target.check(options)
