"""Tables of methods: our results and the published ones, with paired tests."""

import csv
import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from .._plots import save_figure
from .._progress import display
from .._rundir import write_csv, write_text
from .outcomes import Outcome, ReportedMetrics, holm, paired_p_value
from .targets import Job

T = TypeVar("T")
_PUBLISHED = Path(__file__).with_name("published.csv")


@dataclass(frozen=True)
class Row:
    """A method in a table.

    Attributes:
      outcome: Its outcome.
      published: The dissertation's results, as far as available.
      gain: Difference of the main metric to that of the table's first method.
      p_units: Two-sided p-value of a paired t-test over seeds, or over splits if there are
        several; NaN for the first method, and for fewer than two units.
      p_cases: The same over the cases, each averaged over trainings.
    """

    outcome: Outcome
    published: dict[str, float]
    gain: float
    p_units: float
    p_cases: float

    def mean(self, name: str) -> float:
        """Returns the mean of a metric over trainings."""
        return float(self.outcome.units(name).mean())

    def std(self, name: str) -> float:
        """Returns the standard deviation over seeds or splits; NaN for one."""
        values = self.outcome.units(name)
        return float(values.std(ddof=1)) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Group:
    """Rows of one dataset and encoder, which are compared with the first of them.

    Attributes:
      dataset: Name of the dataset.
      encoder: Name of the encoder.
      title: Title in the terminal.
      published: Published results of each row.
      times: Labels of the rows, each with a function that estimates its training time in seconds.
      train: Returns the outcome of each row.
      note: Describes the training; empty if the notes of the table do.
      rows: The rows; empty before training.
    """

    dataset: str
    encoder: str
    title: str
    published: Sequence[dict[str, float]]
    times: Sequence[tuple[str, Callable[[], float]]]
    train: Callable[[], Sequence[Outcome]]
    note: str = ""
    rows: Sequence[Row] = ()


def make_table(
    parts: Iterable[Sequence[Group]],
    job: Job,
    *,
    path: Path,
    title: Callable[[Sequence[Group]], str],
    notes: Callable[[Sequence[Group]], Sequence[str]],
    reported: ReportedMetrics,
    estimate: str = "",
) -> None:
    """Estimates times, trains the methods, prints the table and writes it after each group.

    Args:
      parts: Groups whose times are estimated together, before they are trained.
      job: The target. With ``--estimate``, nothing is trained.
      path: Path of the output files, without extension.
      title: Returns the title of the trained groups.
      notes: Returns the notes on the trained groups.
      reported: Reported metrics.
      estimate: Bound that the estimated time is, ``"least"`` or ``"most"``; empty to train without
        an estimate.
    """
    done: list[Group] = []
    for part in parts:
        if estimate:
            announce(job.console, f"{job.title}: time at {estimate}", part)
        if job.options.estimate:
            continue
        for group in part:
            rows = compare(group.train(), group.published, reported)
            done.append(replace(group, rows=rows))
            job.console.print(rich_table(rows, group.title, reported))
            write_table(done, path, title(done), notes(done), reported)
    if not job.options.estimate:
        job.console.print(f"results in {path}.md, .csv, .png")


def note_on_seeds(n_seeds: int) -> str:
    """Describes the numbers of a table of ``n_seeds`` trainings per row."""
    if n_seeds == 1:
        return "One seed (published)."
    return f"{n_seeds} seeds: mean ± standard deviation (published)."


def choose(rows: Mapping[str, T], names: Sequence[str]) -> list[T]:
    """Returns the rows of these names, each once and in the given order; all if none are given.

    Raises:
      ValueError: If a name is unknown.
    """
    for name in names:
        if name not in rows:
            known = ", ".join(f'"{label}"' for label in rows)
            raise ValueError(f'--methods takes some of {known}, got "{name}".')
    return [rows[name] for name in dict.fromkeys(names or rows)]


def announce(console: Console, title: str, groups: Sequence[Group]) -> None:
    """Prints the estimated time of each training and of all."""
    table = Table(title=title, title_justify="left")
    for name in ("dataset", "encoder", "method"):
        table.add_column(name)
    table.add_column("time", justify="right")
    total = 0.0
    with display(console) as screen:
        for group in groups:
            for label, estimate in group.times:
                screen.stage(f"timing {group.dataset} {group.encoder} {label}")
                seconds = estimate()
                total += seconds
                table.add_row(group.dataset, group.encoder, label, _clock(seconds))
    table.add_section()
    table.add_row("sum", "", "", _clock(total))
    console.print(table)


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def compare(
    outcomes: Sequence[Outcome], published: Sequence[dict[str, float]], reported: ReportedMetrics
) -> list[Row]:
    """Creates the rows, with p-values Holm-adjusted over all comparisons of these outcomes."""
    first, main = outcomes[0], reported.main
    per_unit = [paired_p_value(first, o, "units", main) for o in outcomes]
    by_case = reported.cases is not None
    per_case = [paired_p_value(first, o, "cases", main) if by_case else math.nan for o in outcomes]
    base = float(first.units(main).mean())
    gains = [float(outcome.units(main).mean()) - base for outcome in outcomes]
    cells = zip(outcomes, published, gains, holm(per_unit), holm(per_case), strict=True)
    return [Row(*each) for each in cells]


def rich_table(rows: Sequence[Row], title: str, reported: ReportedMetrics) -> Table:
    """Returns the table for the terminal: main metric, its published value, and the tests."""
    main = reported.main
    p_names = f"p ({_units(rows)})", f"p ({reported.cases or 'users'})"
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    for name in (main.upper(), "published", "gain", *p_names):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.outcome.label, _mean_std(row, main), _or_blank(row.published, main), *_tests(row)
        )
    return table


def write_table(
    groups: Sequence[Group], path: Path, title: str, notes: Sequence[str], reported: ReportedMetrics
) -> None:
    """Writes the table as Markdown, CSV and PNG."""
    names, columns = reported.metrics, ["dataset", "encoder", "method"]
    rows = [(group, row) for group in groups for row in group.rows]
    units, cases = _units(groups[0].rows), reported.cases or "users"
    header = [*columns, *map(str.upper, names), "gain", f"p ({units})", f"p ({cases})"]
    lines = [
        f"# {title}", "", *(f"{note}\n" for note in notes),
        _line(header), _line(["---"] * len(header)),
        *(
            _line([group.dataset, group.encoder, row.outcome.label,
                   *(_with_published(row, name) for name in names), *_tests(row)])
            for group, row in rows
        ),
    ]  # fmt: skip
    write_text(path.with_name(f"{path.name}.md"), "\n".join(lines) + "\n")
    fields = [f"{name}{end}" for name in names for end in ("", "_std", "_published")]
    write_csv(
        path.with_name(f"{path.name}.csv"),
        [*columns, *fields, "gain", f"p_{units}", f"p_{cases}", "chosen"],
        ([group.dataset, group.encoder, *_in_csv(row, names)] for group, row in rows),
    )
    _draw(groups, title, path.with_name(f"{path.name}.png"), reported.main)


def _in_csv(row: Row, names: Sequence[str]) -> list[Any]:
    numbers = [(row.mean(name), row.std(name), row.published.get(name, "")) for name in names]
    chosen = " ".join(f"{name}={value:g}" for name, value in row.outcome.chosen.items())
    return [row.outcome.label, *sum(numbers, ()), row.gain, row.p_units, row.p_cases, chosen]


def _draw(groups: Sequence[Group], title: str, path: Path, main: str) -> None:
    """Draws a panel for each group, with those of a dataset side by side."""
    n_columns = len({group.encoder for group in groups})
    n_rows = -(-len(groups) // n_columns)
    width = max(6, (1.3 * max(len(group.rows) for group in groups) + 2) * n_columns)
    figure = Figure(figsize=(width, 3 * n_rows + 1), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for axes in panels[len(groups) :]:
        axes.remove()
    for axes, group in zip(panels, groups):
        _draw_group(axes, group.rows, main)
        if len(groups) > 1:
            axes.set_title(f"{group.dataset}, {group.encoder}")
    # Outside the panels: legend markers among the data would be mistaken for data points.
    shown = [axes.get_legend_handles_labels() for axes in panels[: len(groups)]]
    labels = {label: handle for handles, names in shown for handle, label in zip(handles, names)}
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=2)
    figure.suptitle(title, wrap=True)
    save_figure(figure, path)


def _draw_group(axes: Axes, rows: Sequence[Row], main: str) -> None:
    x = np.arange(len(rows))
    means, stds = [row.mean(main) for row in rows], [row.std(main) for row in rows]
    known = [row.published.get(main, np.nan) for row in rows]
    label = f"ours, mean ± deviation of {_units(rows)}"
    axes.errorbar(x, means, np.nan_to_num(stds), fmt="o", capsize=4, label=label)
    for i, row in enumerate(rows):
        seeds = row.outcome.by_seed(main)
        axes.plot([i] * len(seeds), seeds, ".", color="0.6", markersize=4, zorder=0)
    if np.isfinite(known).any():
        axes.plot(x, known, "D", mfc="none", color="#d95f02", label="published")
    axes.set_xticks(x, [row.outcome.label for row in rows], rotation=20, ha="right")
    axes.set_ylabel(main.upper())
    axes.grid(axis="y", alpha=0.3)


def _units(rows: Sequence[Row]) -> str:
    return "splits" if rows[0].outcome.splits > 1 else "seeds"


def _mean_std(row: Row, name: str) -> str:
    std = row.std(name)
    return f"{row.mean(name):.4f}" + ("" if math.isnan(std) else f" ± {std:.4f}")


def _with_published(row: Row, name: str) -> str:
    known = _or_blank(row.published, name)
    return f"{_mean_std(row, name)} ({known})" if known else _mean_std(row, name)


def _or_blank(numbers: dict[str, float], name: str) -> str:
    return f"{numbers[name]:.4f}" if name in numbers else ""


def _tests(row: Row) -> list[str]:
    if math.isnan(row.p_cases) and math.isnan(row.p_units):
        return ["", "", ""]
    return [f"{row.gain:+.4f}", _p_value(row.p_units), _p_value(row.p_cases)]


def _p_value(p: float) -> str:
    if math.isnan(p):
        return ""
    return "< 0.001" if p < 1e-3 else f"{p:.3f}"


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


@cache
def published_datasets() -> tuple[str, ...]:
    """Returns the names of all datasets with published results."""
    with _PUBLISHED.open(newline="") as file:
        return tuple(sorted({row["dataset"] for row in csv.DictReader(file)}))


@cache
def published(table: str, dataset: str, encoder: str) -> dict[str, dict[str, float]]:
    """Returns metrics by method, ``{"bns": {"ndcg@20": 0.4176, …}, …}``; empty if not published.

    Args:
      table: Number of the table, such as ``"4.2"``.
      dataset: Name of the dataset, such as ``"ml-100k"``.
      encoder: Name of the encoder, such as ``"mf"``.
    """
    results: dict[str, dict[str, float]] = {}
    with _PUBLISHED.open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["table"], row["dataset"], row["encoder"]) == (table, dataset, encoder):
                name = f"{row['metric']}@{row['k']}" if row["k"] else row["metric"]
                results.setdefault(row["method"], {})[name] = float(row["value"])
    return results
