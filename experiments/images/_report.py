"""What a run on images shows in the terminal."""

import numpy as np
from rich.console import Console
from rich.table import Table

from .._mesh import mesh_of
from .._screen import cell, grid_table, machine, of_seeds, plain
from ._config import Config
from ._pipeline import Outcome
from ._problem import Problem
from ._views import in_words

NAMES = {
    "linear": "accuracy, linear",
    "linear_top5": "accuracy of the five best, linear",
    "linear_published": "accuracy, linear as published",
    "knn": "accuracy, kNN",
    "alignment": "alignment",
    "uniformity": "uniformity",
    "false_negatives": "share of false negatives",
    "false_negative_weight": "their share of the weight",
    "posterior_error": "error of the posterior (ECE)",
    "posterior_auc": "AUC of the posterior",
}
"""The metrics in words."""


def describe(console: Console, config: Config, problem: Problem, objective: str) -> None:
    """Prints what is about to be trained, and on what."""
    console.print(f"[bold]{plain(objective)}[/] on {machine(mesh_of(config.output.mesh))}")
    height, width, channels = problem.train.images.shape[1:]
    unlabelled = int(np.sum(problem.train.labels < 0))
    of_which = f" ({unlabelled:,} without a label)" if unlabelled else ""
    console.print(
        f"{len(problem.train):,} training{of_which} and {len(problem.test):,} test images, "
        f"{height} × {width} × {channels}, {len(problem.train.classes)} classes"
    )
    console.print(in_words(config.views), highlight=False)


def conclude(console: Console, outcome: Outcome, n_searched: int) -> None:
    """Prints the grid, if it was searched with some seeds, and the test metrics."""
    if n_searched:
        console.print(grid_table(outcome.points, outcome.choice, n_searched, "kNN"))
    per_seed = outcome.per_seed
    table = Table(title=f"Test set{of_seeds(len(per_seed))}")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name in per_seed[0]:
        table.add_row(NAMES[name], cell([metrics[name] for metrics in per_seed]))
    console.print(table)
