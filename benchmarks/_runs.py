"""Training runs of the commands, and the CSV files that collect their metrics."""

import importlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from experiments import _rundir as rundir
from experiments._program import flag
from experiments._schema import to_json
from experiments._study import Study
from experiments._study_command import configure

from ._report import Row, print_table, read_csv, write_csv

STUDIES = {
    "graphs": "GraphStudy", "images": "Images", "pairs": "Pairs", "recommend": "Recommend",
    "text": "TextStudy",
}  # fmt: skip
"""Class of the study of each command that benchmarks run."""


def load_study(command: str) -> Study[Any, Any]:
    """Returns the study of a command of the experiments."""
    return getattr(importlib.import_module(f"experiments.{command}._study"), STUDIES[command])()


def run(command: str, flags: Sequence[str], folder: Path) -> None:
    """Runs a command of the experiments, resumes it, or does nothing if it is complete.

    Raises:
      ValueError: If the folder contains a run with another configuration, see :func:`check_run`.
    """
    if (folder / rundir.CONFIG).exists():
        check_run(load_study(command), flags, folder)
        flags = ["--resume", str(folder)]
    else:
        flags = [*flags, "--out", str(folder)]
    if status := importlib.import_module(f"experiments.{command}").main(flags):
        raise SystemExit(status)
    # The programs of one run do not fit the data of the next, and Linux limits the number of memory
    # regions of a process, of which each program takes some.
    jax.clear_caches()


def check_run(study: Study[Any, Any], flags: Sequence[str], folder: Path) -> None:
    """Raises ``ValueError`` unless the flags give the configuration of the run in a folder.

    Options of the output and the devices may differ, and the place of files and folders, but not
    their names. Defaults that depend on the data are not compared.
    """
    stored = to_json(rundir.open_run(folder, study.schema))
    config, *_ = configure(study, [*flags])
    requested = to_json(config)
    depends_on_data = {"lr_scale"} if requested["training"]["batch_size"] == "auto" else set()
    defaults: dict[str, Any] = {}
    for values in study.schema.resolve_flags(config).values():
        defaults |= values
    for section, options in requested.items():
        for name, value in options.items() if section != "output" else ():
            saved = stored[section][name]
            if value is None and saved is not None:
                value = defaults.get(name)
            if value in (None, "auto") or name in depends_on_data or _is_same(value, saved):
                continue
            raise ValueError(
                f"{folder} holds a run with {flag(name)} {_format(saved)}, got {_format(value)}; "
                f"name another folder of runs, or remove this one."
            )


def _is_same(value: Any, saved: Any) -> bool:
    """Whether two values are equal, or paths that may differ only in their place."""
    if isinstance(value, str) and isinstance(saved, str) and os.path.isabs(saved):
        return Path(os.path.abspath(value)).name == Path(saved).name
    return value == saved


def _format(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def read_json(path: Path) -> Row:
    """Returns the content of a JSON file."""
    return json.loads(path.read_text())


def scores(folder: Path) -> Row:
    """Returns the metrics of a run: means and standard deviations over its seeds."""
    metrics = read_json(folder / "metrics.json")
    return {name: value for name, value in metrics.items() if isinstance(value, float)}


def per_seed(folder: Path) -> list[Row]:
    """Returns the metrics of each seed of a run."""
    metrics_by_seed = json.loads((folder / "metrics_by_seed.json").read_text())
    return [{"seed": seed, **metrics} for seed, metrics in enumerate(metrics_by_seed)]


def drop_replaced_rows(
    before: Sequence[Row], rows: Sequence[Row], keys: Sequence[str]
) -> list[Row]:
    """Returns the earlier rows that no new row with equal keys replaces."""
    new_keys = {tuple(row[key] for key in keys) for row in rows}
    return [row for row in before if tuple(row[key] for key in keys) not in new_keys]


def record(
    path: Path, rows: Sequence[Row], keys: Sequence[str], about: Row,
    order: Callable[[Row], Any] | None = None,
) -> None:  # fmt: skip
    """Adds rows to a CSV file in place of those with equal keys.

    Args:
      path: CSV file.
      rows: New rows.
      keys: Names of the columns that identify rows.
      about: Further columns of the new rows.
      order: Sort key of all rows; by default, the new ones are the last.
    """
    merged = [*drop_replaced_rows(read_csv(path), rows, keys), *({**row, **about} for row in rows)]
    write_csv(path, merged if order is None else sorted(merged, key=order))


def show(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Prints some columns of rows."""
    print_table([{name: row.get(name, "") for name in columns} for row in rows])
