"""What a run shows in the terminal."""

from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from crl_jax.train import Choice

from ._flags import in_flags
from ._pipeline import VALIDATION_K, Outcome, Problem, named


def describe(console: Console, problem: Problem, objective: str) -> None:
    """Prints what is about to be trained, and on what."""
    device = jax.devices()[0]
    console.print(f"[bold]{objective}[/] on {device.platform} ({device.device_kind})")
    train, valid, test = (len(part) for part in (problem.train, problem.valid, problem.test))
    console.print(
        f"{problem.known.n_users:,} users × {problem.known.n_items:,} items; interactions: "
        f"{train:,} train, {valid:,} validation, {test:,} test"
    )
    if problem.tau_plus is not None:
        console.print(f"simulated data: the true τ⁺ is {problem.tau_plus:.4f}")


class ProgressScreen:
    """A bar for each phase with loss, validation NDCG and triplets per second.

    Of several runs it shows the mean loss and the best NDCG.
    """

    def __init__(self, console: Console, interactions: dict[str, int]):
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),  # the whole line fits 80 columns
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._interactions = interactions
        self._tasks: dict[str, TaskID] = {}
        self._first: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> "ProgressScreen":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, phase: str, last_epoch: int, entry: dict[str, Any]) -> None:
        """Shows one entry of the history."""
        if phase not in self._tasks:
            runs = len(entry["loss"])
            self._tasks[phase] = self._progress.add_task(
                f"{phase:6} ×{runs}" if runs > 1 else f"{phase:6}", total=last_epoch, status=""
            )
            self._first[phase] = entry
        self._progress.update(
            self._tasks[phase], completed=entry["epoch"], status=self._status(phase, entry)
        )

    def _status(self, phase: str, entry: dict[str, Any]) -> str:
        parts = [f"loss {np.nanmean(entry['loss']):.4f}"]
        if scores := entry.get(f"ndcg@{VALIDATION_K}"):
            parts.append(f"NDCG@{VALIDATION_K} {np.nanmax(scores):.4f}")
        first = self._first[phase]
        seconds = entry["seconds"] - first["seconds"]
        if seconds > 0:  # from the second entry on: the first holds the compilation
            epochs = entry["epoch"] - first["epoch"]
            triplets = epochs * self._interactions[phase] * len(entry["loss"])
            parts.append(f"{_short(triplets / seconds)} triplets/s")
        return "  ".join(parts)


def report(console: Console, outcome: Outcome, swept: bool) -> None:
    """Prints the grid, if any, the choice and the test metrics."""
    choice = outcome.choice
    if swept:
        console.print(_grid_table(outcome.points, choice))
    console.print(
        f"chosen on validation data: {choice.epochs} epochs, NDCG@{VALIDATION_K} {choice.score:.4f}"
    )
    console.print(_metrics_table(outcome.per_seed))
    console.print(f"scored: a model trained on {named(outcome.scored_on)}")
    if outcome.saved_on != outcome.scored_on:
        console.print(f"saved for use: a model trained on {named(outcome.saved_on)}")


def _grid_table(points: list[dict[str, float]], choice: Choice) -> Table:
    table = Table(title="Grid, decided on validation data")
    for name in points[0]:
        table.add_column(name, justify="right")
    for name in (f"valid NDCG@{VALIDATION_K}", "best epoch"):
        table.add_column(name, justify="right")
    for i, point in enumerate(points):
        table.add_row(
            *(f"{value:g}" for value in point.values()),
            f"{choice.scores[i]:.4f}",
            str(choice.best_epochs[i]),
            style="bold" if i == choice.point else None,
        )
    return table


def _metrics_table(per_seed: list[dict[str, float]]) -> Table:
    """Metrics by rows, cut-offs by columns; those without a cut-off in the first column."""
    seeds = f", mean ± standard deviation of {len(per_seed)} seeds" if len(per_seed) > 1 else ""
    table = Table(title=f"Test set{seeds}")
    ks = sorted({int(name.partition("@")[2]) for name in per_seed[0] if "@" in name})
    table.add_column("metric")
    for k in ks:
        table.add_column(f"@{k}", justify="right")
    for name in dict.fromkeys(name.partition("@")[0] for name in per_seed[0]):
        keys = [name] if name in per_seed[0] else [f"{name}@{k}" for k in ks]
        table.add_row(name, *(_cell([metrics[key] for metrics in per_seed]) for key in keys))
    return table


def _cell(values: list[float]) -> str:
    mean = f"{np.mean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.4f}"


def _short(number: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{suffix}"
    return f"{number:.0f}"


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Shows a warning as one line, in place of Python's own way."""
    Console(stderr=True).print(f"[yellow]warning:[/] {plain(in_flags(message))}", highlight=False)


def show_error(error: Exception) -> None:
    """Shows an error as one line."""
    Console(stderr=True).print(f"[red]error:[/] {plain(in_flags(error))}", highlight=False)


def plain(message: object) -> str:
    """Text in which nothing is markup."""
    return str(message).replace("[", r"\[")
