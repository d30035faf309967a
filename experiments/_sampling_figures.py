"""The figures of chapter 4: scores, quality of the negatives, and two numbers of BNS."""

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from . import _sampling_study as sampling
from . import _study as study
from ._progress import display
from ._targets import TITLES, Options, finish, shown, train_all


def score_distributions(options: Options, world: study.World, console: Console) -> None:
    """Figure 4.2."""
    epochs = options.epochs or 100
    edges = np.linspace(-4, 6, 101)
    probe = sampling.score_histogram(world, edges)
    with display(console) as screen:
        outcome = study.train_published(
            sampling.RNS, world, (0,), epochs, probe=probe, on_epoch=shown(screen, "rns", epochs)
        )
    entries = [outcome.history[i] for i in _spread(len(outcome.history), 6)]
    figure = Figure(figsize=(12, 6), layout="constrained")
    for axes, entry in zip(figure.subplots(2, 3, sharex=True).flat, entries, strict=False):
        for name, colour in (("true_negatives", "#1f77b4"), ("false_negatives", "#d95f02")):
            counts = np.array(entry[name][0], float)
            density = counts / counts.sum() / np.diff(edges)
            axes.stairs(
                density, edges, fill=True, alpha=0.45, color=colour, label=name.replace("_", " ")
            )
        axes.set_title(f"epoch {entry['epoch']}", fontsize=10)
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    figure.supxlabel("score")
    figure.supylabel("density")
    figure.suptitle(f"{TITLES[options.target]}, RNS")
    finish(
        figure, options, console,
        ["epoch", "from", "to", "true_negatives", "false_negatives"],
        [
            [entry["epoch"], low, high, *counts]
            for entry in entries
            for low, high, *counts in zip(
                edges[:-1], edges[1:], entry["true_negatives"][0], entry["false_negatives"][0],
                strict=True,
            )
        ],
    )  # fmt: skip


def _spread(n: int, k: int) -> list[int]:
    """Up to ``k`` places from a tenth of ``n`` to its end; more early on, when more happens."""
    return sorted({round(i) for i in np.geomspace(max(1, n / 10), n, k) - 1})


def quality(options: Options, world: study.World, console: Console) -> None:
    """Figure 4.4."""
    outcomes = train_all(sampling.QUALITY, options, [world], console)
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
    panels[1].legend()
    figure.suptitle(TITLES[options.target])
    finish(
        figure, options, console, ["method", "epoch", "tnr", "inf"],
        [
            [o.label, entry["epoch"], np.mean(entry["tnr"]), np.mean(entry["inf"])]
            for o in outcomes
            for entry in o.history
        ],
    )  # fmt: skip


def gain_and_size(options: Options, world: study.World, console: Console) -> None:
    """Figure 4.5."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    rows, main = [], sampling.BNS.recipe.main
    for axes, (name, values, label) in zip(
        figure.subplots(1, 2, sharey=True),
        (("gain", sampling.GAINS, "gain λ"), ("size", sampling.SIZES, "candidates |M|")),
        strict=True,
    ):
        outcomes = train_all(sampling.GAIN_OR_SIZE[name], options, [world], console)
        scores = np.array([[m[main] for m in outcome.per_seed] for outcome in outcomes])
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
    figure.axes[0].set_ylabel(main.upper())
    figure.suptitle(TITLES[options.target])
    finish(figure, options, console, ["parameter", "value", "seed", main], rows)
