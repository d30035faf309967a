"""Training runs of the commands, and the CSV files that collect their metrics."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import jax

from ._report import Row, print_table, read_csv, write_csv


def run(command: str, flags: Sequence[str], folder: Path) -> None:
    """Runs a command of the experiments, resumes it, or does nothing if it is complete."""
    if (folder / "config.json").exists():
        flags = ["--resume", str(folder)]
    else:
        flags = [*flags, "--out", str(folder)]
    if status := importlib.import_module(f"experiments.{command}").main(flags):
        raise SystemExit(status)
    # The programs of one run do not fit the data of the next, and Linux limits the number of memory
    # regions of a process, of which each program takes some.
    jax.clear_caches()


def read_json(path: Path) -> Row:
    """Returns the content of a JSON file."""
    return json.loads(path.read_text())


def scores(folder: Path) -> Row:
    """Returns the metrics of a run: means and standard deviations over its seeds."""
    metrics = read_json(folder / "metrics.json")
    return {name: value for name, value in metrics.items() if isinstance(value, float)}


def per_seed(folder: Path) -> list[Row]:
    """Returns the metrics of each seed of a run."""
    found = json.loads((folder / "metrics_by_seed.json").read_text())
    return [{"seed": seed, **metrics} for seed, metrics in enumerate(found)]


def record(path: Path, rows: Sequence[Row], keys: Sequence[str], about: Row) -> None:
    """Adds rows to a CSV file in place of those with equal keys."""
    new = {tuple(row[key] for key in keys) for row in rows}
    kept = [row for row in read_csv(path) if tuple(row[key] for key in keys) not in new]
    write_csv(path, [*kept, *({**row, **about} for row in rows)])


def show(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Prints some columns of rows."""
    print_table([{name: row.get(name, "") for name in columns} for row in rows])
