"""Targets, flags and execution of ``python -m experiments.reproduce``."""

import dataclasses
import sys
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from .._command import run
from .._program import flag, program
from .._ranges import flag_names, parse_flags
from .._registry import entry_name_type
from .._screen import output, printable
from .._signals import advise
from . import chapter_3, chapter_4, chapter_5, images, smoothing, sources, statistics, texts
from .tables import published_datasets
from .targets import Options, Target

_DESCRIPTION = """Reproduce tables and figures of the dissertation.

Each target is one command on a dataset folder: it trains the methods of the table or figure, prints
our results next to the published ones, and writes Markdown, CSV and PNG.

  {0} --list             prints all items of the sources: state, code and command
  {0} --list 4 differs   those of chapter 4 with another outcome, scale or fewer rows
  {0} --list targets     prints all targets with their data, times and committed results
"""
_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_WIDTH = 80

TARGETS: Mapping[str, Target] = {
    **chapter_3.TARGETS,
    **chapter_4.TARGETS,
    **chapter_5.TARGETS,
    **images.TARGETS,
    **smoothing.TARGETS,
    **statistics.TARGETS,
    **texts.TARGETS,
}
"""Tables and figures; a new one requires a :class:`Target` in a file of this folder, and an entry
here."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    argv = sys.argv[1:] if arguments is None else arguments

    def command() -> None:
        if "--list" in argv:
            if argv[0] != "--list":
                raise ValueError(f"--list must be the first argument, got {argv[0]}.")
            show_list(argv[1:])
        else:
            options = parse(argv)
            advise(lambda: "The same command resumes.")
            TARGETS[options.target].run(options, output())

    return run(command, flag_names(Options))


def parse(arguments: list[str]) -> Options:
    """Parses flags into options.

    Raises:
      ValueError: If a number is out of range, or the target does not accept a flag.
    """
    listed = "; ".join(target.numbered_title(name) for name, target in TARGETS.items())
    kind = Annotated[entry_name_type(TARGETS, listed), tyro.conf.Positional]
    options_class: Any = dataclasses.make_dataclass(
        Options.__name__, [("target", kind)], bases=(Options,), frozen=True
    )
    name = program("reproduce")
    options = parse_flags(options_class, name, _DESCRIPTION.format(name), arguments)
    target = TARGETS[options.target]
    options = dataclasses.replace(options, setting=options.setting or target.settings[0])
    for field in dataclasses.fields(Options):
        is_given = getattr(options, field.name) != field.default
        targets = [name for name, entry in TARGETS.items() if field.name in entry.flags]
        if is_given and targets and options.target not in targets:
            known = ", ".join(targets)
            raise ValueError(f"{flag(field.name)} is for {known}, not for {options.target}.")
    if options.setting not in target.settings:
        (known,) = target.settings
        raise ValueError(
            f"{options.target} requires --setting {known}, got --setting {options.setting}."
        )
    for name in ("estimate", "sweep"):
        if getattr(options, name) and options.setting != target.settings[-1]:
            raise ValueError(f"--{name} requires --setting {target.settings[-1]}.")
    if options.dataset is not None and options.dataset not in published_datasets():
        known = ", ".join(published_datasets())
        raise ValueError(f"--dataset takes one of {known}, got {options.dataset!r}.")
    target.check(options)
    return options


def show_list(words: Sequence[str]) -> None:
    """Prints the items of the sources that the words select, or with ``targets`` the targets."""
    if "targets" in words:
        if len(words) > 1:
            raise ValueError("--list targets takes no further words.")
        show_targets()
    else:
        sources.show(sources.select(words), output())


def show_targets(results: Path = _RESULTS) -> None:
    """Prints each target: its title, --data, time and committed results.

    Args:
      results: Folder of the committed results, which an installed package does not have.
    """
    console = output()
    for line in _lines(results, min(console.width, _WIDTH)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(results: Path, width: int) -> list[str]:
    lines = [
        "Times are for the default flags on two CPU cores.",
        f"Results are in {results}."
        if results.is_dir()
        else "Committed results are in benchmarks/results of the repository, not installed here.",
    ]
    for name, target in TARGETS.items():
        lines += ["", f"{name}  {target.title}", f"  data: {target.data}"]
        # Targets with both settings accept --estimate in one of them only.
        bound = "estimate" in target.flags and len(target.settings) == 1
        untimed = "not measured" + bound * "; --estimate prints a bound"
        lines += [f"  time: {target.time or untimed}"]
        if results.is_dir():
            committed = _committed(name, results)
            lines += ["  results:" if committed else "  results: none"]
            lines += [f"    {path}" for path in committed]
    wrap = partial(textwrap.wrap, width=width, break_long_words=False, break_on_hyphens=False)
    lines = [printable(line) for line in lines]  # which may be longer, so before it is broken
    return [part for line in lines for part in wrap(line, subsequent_indent="    ") or [""]]


def _committed(name: str, results: Path) -> list[str]:
    paths = results.rglob(f"{name}*.csv")
    matches = (path for path in paths if path.stem == name or path.stem.startswith(f"{name}-"))
    return sorted(path.relative_to(results).as_posix() for path in matches)
