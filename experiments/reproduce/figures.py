"""Figures: panels, their axes and output files."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._plots import save_figure
from .._rundir import write_csv
from .methods import SAMPLING, Method
from .targets import Job, train_all


def draw_values(
    axes: Axes, x: Sequence[float], scores: np.ndarray, capsize: int, **kwargs: Any
) -> None:
    """Plots means and deviations of ``scores [values, seeds]`` over the values of a parameter."""
    deviation = scores.std(axis=1, ddof=1) if scores.shape[1] > 1 else None
    axes.errorbar(x, scores.mean(axis=1), deviation, fmt="o-", capsize=capsize, **kwargs)


class Panel(NamedTuple):
    """Panel of a figure that shows the main metric over the values of a hyper-parameter.

    Attributes:
      cells: Leading cells of its rows in the CSV.
      label: Label of the x-axis.
      methods: A method for each value.
    """

    cells: tuple[str, ...]
    label: str
    methods: Mapping[Any, Method]


def draw_panels(
    job: Job, panels: Sequence[Sequence[Panel]], header: list[str], **subplot_kwargs: Any
) -> None:
    """Trains the methods of panels in rows and columns, draws them and writes their data."""
    main = SAMPLING.main
    figure, rows = Figure(layout="constrained", figsize=subplot_kwargs.pop("figsize")), []
    grid = figure.subplots(len(panels), len(panels[0]), squeeze=False, **subplot_kwargs)
    for axes_row, panel_row in zip(grid, panels, strict=True):
        for axes, (cells, label, methods) in zip(axes_row, panel_row, strict=True):
            outcomes = train_all(tuple(methods.values()), job)
            scores = np.array([outcome.by_seed(main) for outcome in outcomes])
            draw_values(axes, range(len(scores)), scores, capsize=4)
            ticks = [x if isinstance(x, str) else f"{x:g}" for x in methods]
            axes.set_xticks(range(len(ticks)), ticks)
            axes.set_xlabel(label)
            rows += [
                [*cells, value, seed, score]
                for value, seed_scores in zip(methods, scores, strict=True)
                for seed, score in enumerate(seed_scores)
            ]
        axes_row[0].set_ylabel(main.upper())
    finish(job, figure, [*header, "value", "seed", main], rows)


def finish(
    job: Job,
    figure: Figure,
    header: list[str],
    rows: list[list[Any]],
    *,
    about: str = "",
    grid: Literal["both", "y"] = "both",
) -> None:
    """Writes the figure, titled with the job's title and ``about``, as PNG and its data as CSV."""
    for axes in figure.axes:
        axes.grid(axis=grid, alpha=0.3)
    figure.suptitle(job.title + about, wrap=True)
    path = job.options.out / f"{job.options.target}.png"
    save_figure(figure, path)
    write_csv(path.with_suffix(".csv"), header, rows)
    job.console.print(f"results in {path.with_suffix('')}.png, .csv")
