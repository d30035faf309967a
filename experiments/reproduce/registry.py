"""Registry of tables and figures by command-line name, and their list for ``--list``."""

import sys
import textwrap
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from .._screen import output
from . import chapter_3, chapter_4, chapter_5, images
from .targets import Target

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_WIDTH = 80

TARGETS: Mapping[str, Target] = {
    **chapter_3.TARGETS,
    **chapter_4.TARGETS,
    **chapter_5.TARGETS,
    **images.TARGETS,
}
"""Tables and figures; a new one requires a :class:`Target` in a file of this folder, and an entry
here."""


def show_list(results: Path = _RESULTS) -> None:
    """Prints each target: its title, --data, time and committed results.

    Args:
      results: Folder of the committed results, which an installed package does not have.
    """
    console = output()
    width, encoding = min(console.width, _WIDTH), sys.stdout.encoding or "utf-8"
    for line in _lines(results, width):
        printable = line.encode(encoding, "replace").decode(encoding)
        console.print(printable, markup=False, highlight=False, soft_wrap=True)


def _lines(results: Path, width: int) -> list[str]:
    lines = [
        "Times are for the default flags on two CPU cores.",
        f"Results are in {results}."
        if results.is_dir()
        else "Committed results are in benchmarks/results of the repository, not installed here.",
    ]
    for name, target in TARGETS.items():
        lines += ["", f"{name}  {target.title.partition(': ')[2]}", f"  data: {target.data}"]
        lines += [f"  time: {_time(target)}"]
        if results.is_dir():
            committed = _committed(name, results)
            lines += ["  results:" if committed else "  results: none"]
            lines += [f"    {path}" for path in committed]
    wrap = partial(textwrap.wrap, width=width, break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in wrap(line, subsequent_indent="    ") or [""]]


def _time(target: Target) -> str:
    # Targets with both settings accept --estimate in one of them only.
    if "estimate" in target.flags and len(target.settings) == 1:
        return target.time or "not measured; --estimate prints a bound"
    return target.time or "not measured"


def _committed(name: str, results: Path) -> list[str]:
    paths = results.rglob(f"{name}*.csv")
    found = (path for path in paths if path.stem == name or path.stem.startswith(f"{name}-"))
    return sorted(path.relative_to(results).as_posix() for path in found)
