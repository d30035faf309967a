"""Shared reporting for benchmarks: environment, alternating timings, tables and CSV.

A benchmark validates its flags, data and packages before it measures. It writes its results as soon
as they are available and checks them last, so that a failed check loses none of them.
"""

import argparse
import csv
import functools
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from rich.console import Console
from rich.table import Table

from experiments._files import replacing

P = ParamSpec("P")
T = TypeVar("T")

Row = dict[str, Any]
RESULTS = Path(__file__).parent / "results"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREADS = sorted({1, CORES})


def one_line_errors(main: Callable[P, T]) -> Callable[P, T]:
    """Decorator of the main function of a benchmark, which reports invalid input as one line.

    An ``OSError`` or a ``ValueError``, such as that of missing data, is printed to standard error,
    and the exit status is 2, as for the commands of the experiments.
    """

    @functools.wraps(main)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return main(*args, **kwargs)
        except (OSError, ValueError) as error:
            from experiments._screen import show_error  # imports JAX

            show_error({}, error)
            raise SystemExit(2) from error

    return guarded


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the first line of a docstring as description, and ``--out``."""
    argument_parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    argument_parser.add_argument(
        "--out", type=Path, help="CSV file for the results; by default none"
    )
    return argument_parser


def count(text: str) -> int:
    """Parses a positive integer from a command-line flag."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)


def environment(*packages: str) -> Row:
    """Returns processor, cores, load (timings on a busy machine are unreliable) and versions.

    Raises:
      SystemExit: If a package is not installed.
    """
    cpu, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    try:
        versions = {name: importlib.metadata.version(name) for name in packages}
    except importlib.metadata.PackageNotFoundError as error:
        raise SystemExit(f"needs the package {error.name}: pip install -e '.[bench]'") from None
    about = {"cpu": cpu, "cpu_cores": CORES, "load_before": round(os.getloadavg()[0], 2)}
    return {**about, "python": platform.python_version(), **versions}


class Report:
    """Table of results that is printed, and written to CSV with the environment in each row.

    Args:
      out: CSV file, or None.
      *packages: Packages whose versions are recorded.
      **setting: Further columns that are equal in all rows.
    """

    def __init__(self, out: Path | None, *packages: str, **setting: Any):
        self.out, self.about = out, {**setting, **environment(*packages)}
        self.rows: dict[str, list[Row]] = {}

    def add(self, rows: Sequence[Row], part: str = "", hide: Sequence[str] = ()) -> None:
        """Prints rows without the columns in ``hide``, and appends them to the file.

        Rows of another table have a ``part``, which is appended to the name of the file.
        """
        print_table([{k: v for k, v in row.items() if k not in hide} for row in rows])
        part_rows = self.rows.setdefault(part, [])
        part_rows += rows
        if self.out:
            path = self.out.with_stem("-".join(filter(None, (self.out.stem, part))))
            write_csv(path, [{**row, **self.about} for row in part_rows])


def print_table(rows: Sequence[Row]) -> None:
    """Prints rows as a table; floats have four significant digits."""
    columns, table = list(dict.fromkeys(name for row in rows for name in row)), Table()
    for name in columns:
        justify = "left" if isinstance(rows[0].get(name), str) else "right"
        table.add_column(name, justify=justify, overflow="fold")
    for row in rows:
        cells = (row.get(name, "") for name in columns)
        table.add_row(*(f"{x:.4g}" if isinstance(x, float) else str(x) for x in cells))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def read_csv(path: Path) -> list[Row]:
    """Returns the rows of a CSV file, or an empty list if the file does not exist."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Writes rows as CSV, atomically; floats have seven significant digits, None is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = dict.fromkeys(name for row in rows for name in row)
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.7g}" if isinstance(v, float) else v for k, v in row.items()})


class Timing(NamedTuple):
    """Duration of a call, processor time of all threads, and the returned value."""

    seconds: float
    cpu_seconds: float
    value: Any


def timed(call: Callable[..., Any], *args: Any) -> Timing:
    """Times a call."""
    wall_start, cpu_start = time.perf_counter(), time.process_time()
    value = call(*args)
    return Timing(time.perf_counter() - wall_start, time.process_time() - cpu_start, value)


def alternate(
    calls: Mapping[Any, Callable[[], Any]], rounds: int, turn: int = 1
) -> dict[Any, list[Any]]:
    """Calls the entries alternately, so that a busy moment of the machine affects all of them.

    Each round calls every entry ``turn`` times in succession.
    """
    results: dict[Any, list[Any]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            results[name] += [call() for _ in range(turn)]
    return results


def summarize(name: str, values: Sequence[float]) -> Row:
    """Returns the columns of the median and the minimum."""
    return {name: statistics.median(values), f"{name}_min": min(values)}


def add_ratio(rows: Sequence[Row], name: str, column: str, baseline: float | None = None) -> None:
    """Adds the column divided by a baseline, by default its first value."""
    baseline = rows[0][column] if baseline is None else baseline
    for row in rows:
        row[name] = row[column] / baseline
