"""What a run shows in the terminal."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from crl_jax.train import Choice

from ._flags import in_flags
from ._pipeline import VALIDATION_K, Outcome
from ._problem import Problem, named
from ._suggest import suggest

_WIDE = 1000


def output(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; a file gets every line and table in one piece."""
    made = Console(stderr=stderr)
    return made if made.is_terminal else Console(stderr=stderr, width=_WIDE)


def describe(
    console: Console, problem: Problem, objective: str, update: str, mesh: Mesh | None
) -> None:
    """Prints what is about to be trained, on what, and what a step changes."""
    device = jax.devices()[0]
    where = f"{device.platform} ({device.device_kind})"
    if mesh is not None:
        axes = ", ".join(f"{axis}={n}" for axis, n in mesh.shape.items())
        where = f"{mesh.size} × {where}, {axes}"
    if jax.process_count() > 1:
        where += f", {jax.process_count()} processes"
    console.print(f"[bold]{plain(objective)}[/] on {where}")
    sizes = [f"{len(problem.train):,} train"]
    if problem.valid is not None:
        sizes.append(f"{len(problem.valid):,} validation")
    console.print(
        f"{problem.known.n_users:,} users × {problem.known.n_items:,} items; interactions: "
        f"{', '.join(sizes)}, {len(problem.test):,} test",
    )
    for columns in problem.columns:
        console.print(f"columns of {Path(columns.origin).name}: {plain(columns)}")
    console.print(update)
    if problem.tau_plus is not None:
        console.print(f"simulated data: the true τ⁺ is {problem.tau_plus:.4f}")


def report(console: Console, outcome: Outcome, n_searched: int) -> None:
    """Prints the grid, if it was searched with some seeds, the choice and the test metrics."""
    choice = outcome.choice
    if n_searched:
        console.print(_grid_table(outcome.points, choice, n_searched))
    if np.isnan(choice.score):
        console.print(f"trained for {choice.epochs} epochs, as told, without validation data")
    else:
        console.print(
            f"chosen on validation data: {choice.epochs} epochs, NDCG@{VALIDATION_K} "
            f"{choice.score:.4f} (mean with the validations just before and after)",
        )
    console.print(_metrics_table(outcome.per_seed))
    console.print(f"scored: a model trained on {named(outcome.scored_on)}")
    if outcome.saved_on != outcome.scored_on:
        console.print(f"saved for use: a model trained on {named(outcome.saved_on)}")


def _grid_table(points: list[dict[str, float]], choice: Choice, n_seeds: int) -> Table:
    seeds = f", mean of {n_seeds} seeds" if n_seeds > 1 else ", one seed"
    table = Table(title=f"Grid, decided on validation data{seeds}")
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


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Shows a warning as one line, in place of Python's own way."""
    output(stderr=True).print(f"[yellow]warning:[/] {plain(in_flags(message))}", highlight=False)


def show_error(error: object) -> None:
    """Shows an error as one line."""
    said = plain(suggest(in_flags(error)))
    output(stderr=True).print(f"[red]error:[/] {said}", highlight=False)


def plain(message: object) -> str:
    """Text in which nothing is markup."""
    return str(message).replace("[", r"\[")
