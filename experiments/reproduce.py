"""Tables and figures of the dissertation, made anew: ``python -m experiments.reproduce TARGET``.

Each target is one command on a dataset folder: it trains what the table or figure compares, prints
our numbers beside the published ones, and writes Markdown, CSV and PNG.
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from crl_jax import data, stats, train

from . import _study as study
from ._plots import save_figure
from ._published import published
from ._report import MAIN, compare, rich_table, write_table
from ._rundir import write_csv
from ._screen import plain, show_warning

Target = Literal[
    "table-4.2", "table-4.3", "table-4.4", "table-4.5", "table-5.3",
    "figure-4.2", "figure-4.4", "figure-4.5",
]  # fmt: skip
_TITLES = {
    "table-4.2": "Table 4.2: negative samplers",
    "table-4.3": "Table 4.3: variants of BNS",
    "table-4.4": "Table 4.4: BNS with other losses",
    "table-4.5": "Table 4.5: BNS with an oracle prior",
    "table-5.3": "Table 5.3: DPL and negative samplers",
    "figure-4.2": "Figure 4.2: scores of true and false negatives",
    "figure-4.4": "Figure 4.4: quality of the negatives",
    "figure-4.5": "Figure 4.5: the gain λ and the number of candidates |M|",
}
_DKW_SAMPLES = 64


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
    Table 5.3 knows the second only, figures the first."""
    epochs: int | None = None
    """Length of the training; by default 100, or 200 for minibatch."""
    methods: tuple[str, ...] = ()
    """Rows of the table to make, by name; all by default. The first is what the others are
    compared with."""
    dataset: str | None = None
    """Whose published numbers to show, such as ml-1m; by default the folder's name."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, or 2 for an error."""
    warnings.showwarning = show_warning
    options = tyro.cli(
        Options, prog="python -m experiments.reproduce", args=arguments, description=__doc__
    )
    try:
        _reproduce(options, Console())
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted; the same command goes on from here.")
        return 130
    except (ValueError, OSError, train.TrainingDiverged) as error:
        Console(stderr=True).print(f"[red]error:[/] {plain(error)}", highlight=False)
        return 2
    return 0


def _reproduce(options: Options, console: Console) -> None:
    if options.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {options.seeds}.")
    if options.epochs is not None and options.epochs < 1:
        raise ValueError(f"--epochs must be at least 1, got {options.epochs}.")
    kind, number = options.target.split("-")
    if kind == "figure" and options.setting != "published":
        raise ValueError(f"--setting {options.setting}: figures are of the published setting.")
    if options.target == "table-5.3" and options.setting != "minibatch":
        raise ValueError("table-5.3 compares losses of minibatches: add --setting minibatch.")
    if kind == "figure" and options.methods:
        raise ValueError("--methods chooses rows of tables; figures have all of theirs.")
    world = _load(options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    console.print(
        f"{_TITLES[options.target]}: {world.train.n_users:,} users, {world.train.n_items:,} items, "
        f"{len(world.train):,} + {len(world.test):,} interactions"
    )
    if kind == "table":
        _table(number, options, world, console)
    else:
        _FIGURES[number](options, world, console)


def _load(folder: Path) -> study.World:
    loaded = data.load(str(folder))
    if not isinstance(loaded, data.Split) or loaded.test is None:
        raise ValueError(f"--data {folder} must hold a training and a test part.")
    if loaded.valid is not None:
        raise ValueError(
            f"--data {folder} has a validation part; these tables are of training and test alone."
        )
    return study.World(loaded.train, loaded.test, str(folder))


def _table(number: str, options: Options, world: study.World, console: Console) -> None:
    methods = _chosen(study.TABLES[number], options.methods)
    outcomes = _train_all(methods, options, world, console)
    dataset = options.dataset or options.data.resolve().name
    known = published(number, dataset, "mf")
    rows = compare(outcomes, [known.get(m.published or m.label, {}) for m in methods])
    title = f"{_TITLES[options.target]}, {dataset}, {options.setting} setting"
    console.print(rich_table(rows, title))
    path = options.out / f"{options.target}-{options.setting}.md"
    write_table(rows, title, _notes(options, methods, bool(known)), path)
    console.print(f"results in {path.with_suffix('')}.md, .csv, .png")


def _notes(options: Options, methods: tuple[study.Method, ...], known: bool) -> list[str]:
    notes = [
        f"Matrix factorisation of width {study.DIM}, {options.seeds} seeds: mean ± standard "
        f"deviation{' (published)' if known else ''}. Gain is NDCG@20 less that of "
        f"{methods[0].label}; p-values are two-sided, of paired t-tests over seeds and over users "
        "(each averaged over seeds), adjusted by Holm's method."
    ]
    epochs = options.epochs or _EPOCHS[options.setting]
    if options.setting == "published":
        draws = " or ".join(f"{n:,}" for n in sorted({m.draw for m in methods}))
        notes.append(
            f"SGD, one triplet a step, learning rate 0.01, L2 0.01, initial values N(0, 0.01²), "
            f"{epochs} epochs; scored after the last. Negatives are drawn for {draws} triplets at "
            "a time, from the parameters before them."
        )
    else:
        notes.append(
            f"Adam, batches of 1,024; for each method a search of 8 points of {epochs} epochs on a "
            "validation part, then all seeds on all training data."
        )
    notes.append(
        "BNS takes the distribution of scores over all that a user has not taken, exactly, but for "
        f"the row that names a sample: of {_DKW_SAMPLES} items its error is at most "
        f"{stats.dkw_error(_DKW_SAMPLES):.2f} with 95 % confidence, and a little more where the "
        "user has taken some of them."
    )
    return notes


_EPOCHS = {"published": 100, "minibatch": 200}


def _chosen(methods: tuple[study.Method, ...], names: tuple[str, ...]) -> tuple[study.Method, ...]:
    labels = [method.label for method in methods]
    for name in names:
        if name not in labels:
            raise ValueError(f"--methods takes some of {', '.join(labels)}, got {name!r}.")
    return tuple(methods[labels.index(name)] for name in names) or methods


def _train_all(
    methods: tuple[study.Method, ...], options: Options, world: study.World, console: Console
) -> list[study.Outcome]:
    seeds = tuple(range(options.seeds))
    epochs = options.epochs or _EPOCHS[options.setting]
    outcomes = []
    with _progress(console) as bar:
        for method in methods:
            outcomes.append(
                study.run_once(
                    method, world, options.setting, seeds, epochs, options.out / "runs",
                    _shown(bar, method.label, epochs),
                )
            )  # fmt: skip
            last = np.mean([m[MAIN] for m in outcomes[-1].per_seed])
            bar.update(bar.task_ids[-1], completed=epochs, status=f"{MAIN.upper()} {last:.4f}")
    return outcomes


def _shown(bar: Progress, label: str, epochs: int) -> study.OnEpoch:
    """Adds a line to the bar, and moves it on with every entry of a history."""
    task = bar.add_task(label, total=epochs, status="")

    def on_epoch(entry: dict[str, Any]) -> None:
        loss = f"loss {np.nanmean(entry['loss']):.4f}"
        bar.update(task, completed=entry["epoch"], status=loss)

    return on_epoch


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>18}"),
        BarColumn(30),
        TextColumn("{task.completed:>3.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        console=console,
    )


def _score_distributions(options: Options, world: study.World, console: Console) -> None:
    """Figure 4.2."""
    epochs = options.epochs or 100
    edges = np.linspace(-4, 6, 101)
    probe = study.score_histogram(world, edges)
    with _progress(console) as bar:
        outcome = study.train_published(
            study.RNS, world, (0,), epochs, probe=probe, on_epoch=_shown(bar, "rns", epochs)
        )
    shown = [outcome.history[i] for i in _spread(len(outcome.history), 6)]
    figure = Figure(figsize=(12, 6), layout="constrained")
    for axes, entry in zip(figure.subplots(2, 3, sharex=True).flat, shown, strict=False):
        for name, colour in (("true_negatives", "#1f77b4"), ("false_negatives", "#d95f02")):
            counts = np.array(entry[name][0], float)
            density = counts / counts.sum() / np.diff(edges)
            axes.stairs(
                density, edges, fill=True, alpha=0.45, color=colour, label=name.replace("_", " ")
            )
        axes.set_title(f"epoch {entry['epoch']}", fontsize=10)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(frameon=False)
    figure.supxlabel("score")
    figure.supylabel("density")
    figure.suptitle(f"{_TITLES[options.target]}, RNS")
    _finish(
        figure, options, console,
        ["epoch", "from", "to", "true_negatives", "false_negatives"],
        [
            [entry["epoch"], low, high, *counts]
            for entry in shown
            for low, high, *counts in zip(
                edges[:-1], edges[1:], entry["true_negatives"][0], entry["false_negatives"][0],
                strict=True,
            )
        ],
    )  # fmt: skip


def _spread(n: int, k: int) -> list[int]:
    """Up to ``k`` places from a tenth of ``n`` to its end; more early on, when more happens."""
    return sorted({round(i) for i in np.geomspace(max(1, n / 10), n, k) - 1})


def _quality(options: Options, world: study.World, console: Console) -> None:
    """Figure 4.4."""
    outcomes = _train_all(study.QUALITY, options, world, console)
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, name, label in (
        (panels[0], "tnr", "share of true negatives (TNR)"),
        (panels[1], "inf", "informativeness less that of false ones (INF)"),
    ):
        for outcome in outcomes:
            epochs = [entry["epoch"] for entry in outcome.history]
            curve = [np.mean(entry[name]) for entry in outcome.history]
            axes.plot(epochs, curve, label=outcome.label)
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[1].legend(frameon=False)
    figure.suptitle(_TITLES[options.target])
    _finish(
        figure, options, console, ["method", "epoch", "tnr", "inf"],
        [
            [o.label, entry["epoch"], np.mean(entry["tnr"]), np.mean(entry["inf"])]
            for o in outcomes
            for entry in o.history
        ],
    )  # fmt: skip


def _gain_and_size(options: Options, world: study.World, console: Console) -> None:
    """Figure 4.5."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    rows = []
    for axes, (name, values, label) in zip(
        figure.subplots(1, 2, sharey=True),
        (("gain", study.GAINS, "gain λ"), ("size", study.SIZES, "candidates |M|")),
        strict=True,
    ):
        outcomes = _train_all(study.GAIN_OR_SIZE[name], options, world, console)
        scores = np.array([[m[MAIN] for m in outcome.per_seed] for outcome in outcomes])
        deviation = scores.std(axis=1, ddof=1) if scores.shape[1] > 1 else None
        axes.errorbar(range(len(values)), scores.mean(axis=1), deviation, fmt="o-", capsize=4)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
        rows += [
            [name, value, seed, score]
            for value, row in zip(values, scores, strict=True)
            for seed, score in enumerate(row)
        ]
    figure.axes[0].set_ylabel(MAIN.upper())
    figure.suptitle(_TITLES[options.target])
    _finish(figure, options, console, ["parameter", "value", "seed", MAIN], rows)


def _finish(
    figure: Figure, options: Options, console: Console, header: list[str], rows: list[list[Any]]
) -> None:
    path = options.out / f"{options.target}.png"
    save_figure(figure, path)
    write_csv(path.with_suffix(".csv"), header, rows)
    console.print(f"results in {path.with_suffix('')}.png, .csv")


_FIGURES: dict[str, Callable[[Options, study.World, Console], None]] = {
    "4.2": _score_distributions,
    "4.4": _quality,
    "4.5": _gain_and_size,
}
assert {name.split("-")[1] for name in get_args(Target)} == {*study.TABLES, *_FIGURES}

if __name__ == "__main__":
    sys.exit(main())
