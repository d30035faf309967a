"""What every benchmark states about itself, and how it shows and stores its figures.

A benchmark checks what it needs before it measures: flags, data and packages, whose versions it
states. It writes figures as soon as it has them, and judges them last: what fails then loses none.
"""

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def tune_compiler() -> None:
    """Sets the compiler options of the experiments, so that timings are those of the commands."""
    from experiments._compiler import tune_compiler

    tune_compiler()


def machine() -> dict[str, Any]:
    """Processor, cores and load: with other work on the machine the figures mean little."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": cpu, "cores": usable, "load_before": [round(x, 2) for x in os.getloadavg()]}


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of installed packages.

    Raises:
      SystemExit: If one of them is not installed.
    """
    try:
        return {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        }
    except importlib.metadata.PackageNotFoundError as error:
        raise SystemExit(f"needs the package {error.name}: pip install -e '.[bench]'") from None


def count(text: str) -> int:
    """A flag's number of rounds or the like, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Prints rows with equal keys; floats with four digits."""
    cells = [list(rows[0])]
    for row in rows:
        cells.append([f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        first, *rest = (cell.ljust if i == 0 else cell.rjust for i, cell in enumerate(line))
        print("  ".join([first(widths[0]), *(f(w) for f, w in zip(rest, widths[1:]))]))


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Writes the figures, making the folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {path}")
