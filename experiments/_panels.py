"""Panels of the figures, and their files: a PNG, and a CSV of its data."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import _rundir as rundir
from ._plots import save_figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00")
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.titlesize": 10,
    "legend.fontsize": 8,
}
"""Matplotlib's settings for all figures."""
Lines = tuple[list[str], list[list[Any]]]
"""Header and lines of a CSV file."""


def make_panels(
    rows: int, columns: int, size: tuple[float, float], ylabel: str = "", **options: Any
) -> tuple[Figure, list[Axes]]:
    """Creates the panels, with a label of the y-axes left of each row."""
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **options)
    for axes in panels[:, 0]:
        axes.set_ylabel(ylabel)
    return figure, list(panels.ravel())


def stack_tables(name: str, groups: Mapping[Any, dict[str, np.ndarray]]) -> Lines:
    """Returns the tables of all values of ``name``, concatenated vertically."""
    header = [name, *next(iter(groups.values()))]
    return header, [
        [key, *line] for key, columns in groups.items() for line in zip(*columns.values())
    ]


def save(
    figure: Figure, path: Path, title: str, header: Sequence[str], lines: Iterable[Iterable[Any]]
) -> None:
    """Writes the titled figure as PNG, and its data as CSV."""
    figure.suptitle(title)
    save_figure(figure, path.with_suffix(".png"))
    write(path.with_suffix(".csv"), header, lines)


def write(path: Path, header: Sequence[str], lines: Iterable[Iterable[Any]]) -> None:
    """Writes a CSV file with seven significant digits."""
    formatted = (
        [f"{cell:.7g}" if isinstance(cell, float | np.floating) else cell for cell in line]
        for line in lines
    )
    rundir.write_csv(path, header, formatted)
