"""List of all tables and figures: ``python -m experiments.reproduce --list``."""

import sys
import textwrap
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from .._screen import output
from .targets import Target

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_WIDTH = 80


def show(targets: Mapping[str, Target], results: Path = _RESULTS) -> None:
    """Prints each target: its title, --data, time and committed results.

    Args:
      targets: Tables and figures by name.
      results: Folder of the committed results, which an installed package does not have.
    """
    console = output()
    width, encoding = min(console.width, _WIDTH), sys.stdout.encoding or "utf-8"
    for line in _lines(targets, results, width):
        printable = line.encode(encoding, "replace").decode(encoding)
        console.print(printable, markup=False, highlight=False, soft_wrap=True)


def _lines(targets: Mapping[str, Target], results: Path, width: int) -> list[str]:
    lines = [
        "Times are for the default flags on two CPU cores.",
        f"Results are in {results}."
        if results.is_dir()
        else "Committed results are in benchmarks/results of the repository, not installed here.",
    ]
    for name, target in targets.items():
        lines += ["", f"{name}  {target.title.partition(': ')[2]}", f"  data: {target.data}"]
        lines += [f"  time: {_time(target)}"]
        if results.is_dir():
            committed = _committed(name, results)
            lines += ["  results:" if committed else "  results: none"]
            lines += [f"    {path}" for path in committed]
    wrap = partial(textwrap.wrap, width=width, break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in wrap(line, subsequent_indent="    ") or [""]]


def _time(target: Target) -> str:
    if target.time or "estimate" not in target.flags:
        return target.time or "not measured"
    return "not measured; --estimate prints a bound"


def _committed(name: str, results: Path) -> list[str]:
    paths = results.rglob(f"{name}*.csv")
    found = (path for path in paths if path.stem == name or path.stem.startswith(f"{name}-"))
    return sorted(path.relative_to(results).as_posix() for path in found)
