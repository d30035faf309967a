"""What every table and figure is given, and what all of them do."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from matplotlib.figure import Figure
from rich.console import Console

from . import _study as study
from ._plots import save_figure
from ._progress import Display, display
from ._rundir import write_csv

Target = Literal[
    "table-3.2", "table-3.3", "table-4.2", "table-4.3", "table-4.4", "table-4.5", "table-5.3",
    "figure-3.2", "figure-3.3", "figure-3.4", "figure-3.5", "figure-3.6",
    "figure-4.2", "figure-4.4", "figure-4.5",
]  # fmt: skip
TITLES = {
    "table-3.2": "Table 3.2: quality of the confidence",
    "table-3.3": "Table 3.3: learning from noisy positives",
    "figure-3.2": "Figure 3.2: laws of scores",
    "figure-3.3": "Figure 3.3: laws of scores of credible interactions",
    "figure-3.4": "Figure 3.4: ROC of the confidence",
    "figure-3.5": "Figure 3.5: positives injected at random",
    "figure-3.6": "Figure 3.6: convergence",
    "table-4.2": "Table 4.2: negative samplers",
    "table-4.3": "Table 4.3: variants of BNS",
    "table-4.4": "Table 4.4: BNS with other losses",
    "table-4.5": "Table 4.5: BNS with an oracle prior",
    "table-5.3": "Table 5.3: DPL and negative samplers",
    "figure-4.2": "Figure 4.2: scores of true and false negatives",
    "figure-4.4": "Figure 4.4: quality of the negatives",
    "figure-4.5": "Figure 4.5: the gain λ and the number of candidates |M|",
}


@dataclass(frozen=True)
class Options:
    """What to reproduce and how."""

    target: Annotated[Target, tyro.conf.Positional]
    """The table or figure."""
    data: Path
    """A dataset folder with a training and a test part."""
    out: Path = Path("runs/reproduce")
    """Where results go. Trainings that several targets share are done once per folder."""
    seeds: int = 5
    """Number of seeds, from 0."""
    setting: Literal["published", "minibatch"] = "published"
    """One triplet a step as published, or Adam on minibatches with a search for each method.
    Table 5.3 knows the second only, figures of chapter 4 and figure 3.6 the first."""
    test_rating: float | None = None
    """Chapter 3: test on the folder's test part, where it is rated at least this, such as a
    random-exposure set, in place of half of the interactions with the top rating."""
    splits: int = 1
    """Tables 3.x: number of cuts of the data, each with all seeds; tests are then paired over
    splits."""
    law_scale: float = 0.6
    """Chapter 3: variance of the initial values and of the law of scores (lambda), 0.6 for
    MovieLens and 0.2 for Yahoo!-R3 as published."""
    ablation: bool = False
    """Table 3.3: what the published numbers are made of, in place of its rows."""
    epochs: int | None = None
    """Length of the training; by default that of the published setting (in chapter 3 by the
    published number of triplets), or 200 for minibatch."""
    methods: tuple[str, ...] = ()
    """Rows of the table to make, by name; all by default. The first is what the others are
    compared with."""
    dataset: str | None = None
    """Whose published numbers to show, such as ml-1m; by default the folder's name."""


def train_all(
    methods: tuple[study.Method, ...],
    options: Options,
    worlds: Sequence[study.World],
    console: Console,
) -> list[study.Outcome]:
    """Trains and scores the methods on each world, or finds what an earlier command made of them.

    The worlds are splits of the same data; the outcomes of a method on all of them are pooled.
    """
    seeds = tuple(range(options.seeds))
    outcomes = []
    with display(console) as screen:
        for method in methods:
            main, of_splits = method.recipe.main, []
            for number, world in enumerate(worlds, 1):
                epochs = length(method, options, world)
                of = f" {number}/{len(worlds)}" if len(worlds) > 1 else ""
                of_splits.append(
                    study.run_once(
                        method, world, options.setting, seeds, epochs, options.out / "runs",
                        shown(screen, method.label + of, epochs),
                    )
                )  # fmt: skip
                last = np.mean([m[main] for m in of_splits[-1].per_seed])
                screen.advance(method.label + of, epochs, epochs, f"{main.upper()} {last:.4f}")
            outcomes.append(study.pool(of_splits))
    return outcomes


def length(method: study.Method, options: Options, world: study.World) -> int:
    """Epochs of a training."""
    return options.epochs or (method.epochs(world) if options.setting == "published" else 200)


def shown(screen: Display, label: str, epochs: int) -> study.OnEpoch:
    """Names the training, and shows how far it is with every entry of its history."""
    screen.stage(f"{label}: compiling and first epoch")

    def on_epoch(entry: dict[str, Any]) -> None:
        loss = f"loss {np.nanmean(entry['loss']):.4f}"
        screen.advance(label, entry["epoch"], epochs, loss)

    return on_epoch


def finish(
    figure: Figure, options: Options, console: Console, header: list[str], rows: list[list[Any]]
) -> None:
    """Writes the figure as PNG and its numbers as CSV."""
    path = options.out / f"{options.target}.png"
    save_figure(figure, path)
    write_csv(path.with_suffix(".csv"), header, rows)
    console.print(f"results in {path.with_suffix('')}.png, .csv")
