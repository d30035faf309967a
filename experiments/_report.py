"""What a recommendation run shows in the terminal."""

from pathlib import Path

import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from ._pipeline import VALIDATION_K, Outcome
from ._problem import Problem, named
from ._screen import cell, grid_table, machine, of_seeds, plain


def describe(
    console: Console, problem: Problem, objective: str, update: str, mesh: Mesh | None
) -> None:
    """Prints what is about to be trained, on what, and what a step changes."""
    console.print(f"[bold]{plain(objective)}[/] on {machine(mesh)}")
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


def conclude(console: Console, outcome: Outcome, n_searched: int) -> None:
    """Prints the grid, if it was searched with some seeds, the choice and the test metrics."""
    choice = outcome.choice
    metric = f"NDCG@{VALIDATION_K}"
    if n_searched:
        console.print(grid_table(outcome.points, choice, n_searched, metric))
    if np.isnan(choice.score):
        console.print(f"trained for {choice.epochs} epochs, as told, without validation data")
    else:
        console.print(
            f"chosen on validation data: {choice.epochs} epochs, {metric} "
            f"{choice.score:.4f} (mean with the validations just before and after)",
        )
    console.print(_metrics_table(outcome.per_seed))
    console.print(f"scored: a model trained on {named(outcome.scored_on)}")
    if outcome.saved_on != outcome.scored_on:
        console.print(f"saved for use: a model trained on {named(outcome.saved_on)}")


def _metrics_table(per_seed: list[dict[str, float]]) -> Table:
    """Metrics by rows, cut-offs by columns; those without a cut-off in the first column."""
    table = Table(title=f"Test set{of_seeds(len(per_seed))}")
    ks = sorted({int(name.partition("@")[2]) for name in per_seed[0] if "@" in name})
    table.add_column("metric")
    for k in ks:
        table.add_column(f"@{k}", justify="right")
    for name in dict.fromkeys(name.partition("@")[0] for name in per_seed[0]):
        keys = [name] if name in per_seed[0] else [f"{name}@{k}" for k in ks]
        table.add_row(name, *(cell([metrics[key] for metrics in per_seed]) for key in keys))
    return table
