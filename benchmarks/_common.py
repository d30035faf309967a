"""Shared reporting for benchmarks: environment metadata, tables and JSON output.

A benchmark validates its flags, data and packages (whose versions it reports) before it measures.
It writes its figures as soon as they are available and checks them last, so that a failed check
loses none of them.
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
    """Sets the compiler options of the experiments, so that timings match those of the commands."""
    from experiments._compiler import tune_compiler

    tune_compiler()


def machine() -> dict[str, Any]:
    """Returns processor, number of cores and load: timings on a busy machine are unreliable."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": cpu, "cores": usable, "load_before": [round(x, 2) for x in os.getloadavg()]}


def versions(*packages: str) -> dict[str, str]:
    """Returns the versions of Python and of installed packages.

    Raises:
      SystemExit: If a package is not installed.
    """
    try:
        return {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        }
    except importlib.metadata.PackageNotFoundError as error:
        raise SystemExit(f"needs the package {error.name}: pip install -e '.[bench]'") from None


def count(text: str) -> int:
    """Parses a positive integer from a command-line flag."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Prints rows with equal keys as a table; floats have four significant digits."""
    cells = [list(rows[0])]
    for row in rows:
        cells.append([f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        first, *rest = (cell.ljust if i == 0 else cell.rjust for i, cell in enumerate(line))
        print("  ".join([first(widths[0]), *(f(w) for f, w in zip(rest, widths[1:]))]))


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Writes the figures as JSON and creates the folder if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {path}")
