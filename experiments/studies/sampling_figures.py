"""Figures of chapter 4: scores, quality of the negatives, and two hyper-parameters of BNS."""

import numpy as np
from matplotlib.figure import Figure

from .._progress import display
from . import sampling
from .data import load_parts
from .targets import Job, Target, draw_values, finish, shown, train_all
from .training import train_published


def score_distributions(job: Job) -> None:
    """Figure 4.2: scores of true and false negatives."""
    epochs = job.options.epochs or 100
    edges = np.linspace(-4, 6, 101)
    probe = sampling.score_histogram(job.world, edges)
    with display(job.console) as screen:
        outcome = train_published(
            sampling.RNS,
            job.world,
            (0,),
            epochs,
            probe=probe,
            on_epoch=shown(screen, "rns", epochs),
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
    finish(
        job, figure,
        ["epoch", "from", "to", "true_negatives", "false_negatives"],
        [
            [entry["epoch"], low, high, *counts]
            for entry in entries
            for low, high, *counts in zip(
                edges[:-1], edges[1:], entry["true_negatives"][0], entry["false_negatives"][0],
                strict=True,
            )
        ],
        about=", RNS",
    )  # fmt: skip


def _spread(n: int, k: int) -> list[int]:
    """Returns up to ``k`` geometrically spaced indices between a tenth of ``n`` and its end.

    They are denser early on, where more changes.
    """
    return sorted({round(i) for i in np.geomspace(max(1, n / 10), n, k) - 1})


def quality(job: Job) -> None:
    """Figure 4.4: quality of the negatives."""
    outcomes = train_all(sampling.QUALITY, job)
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
    finish(
        job, figure, ["method", "epoch", "tnr", "inf"],
        [
            [o.label, entry["epoch"], np.mean(entry["tnr"]), np.mean(entry["inf"])]
            for o in outcomes
            for entry in o.history
        ],
    )  # fmt: skip


def lambda_and_size(job: Job) -> None:
    """Figure 4.5: the λ of the risk and the number of candidates."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    rows, main = [], sampling.BNS.recipe.main
    for axes, (name, values, label) in zip(
        figure.subplots(1, 2, sharey=True),
        (("risk_lambda", sampling.LAMBDAS, "λ"), ("size", sampling.SIZES, "candidates |M|")),
        strict=True,
    ):
        outcomes = train_all(sampling.LAMBDA_OR_SIZE[name], job)
        scores = np.array([[m[main] for m in outcome.per_seed] for outcome in outcomes])
        draw_values(axes, scores, [f"{value:g}" for value in values], label)
        rows += [
            [name, value, seed, score]
            for value, row in zip(values, scores, strict=True)
            for seed, score in enumerate(row)
        ]
    figure.axes[0].set_ylabel(main.upper())
    finish(job, figure, ["parameter", "value", "seed", main], rows)


FIGURE_4_2 = Target(
    title="Figure 4.2: scores of true and false negatives",
    load=load_parts, make=score_distributions, settings=("published",),
)  # fmt: skip
FIGURE_4_4 = Target(
    title="Figure 4.4: quality of the negatives",
    load=load_parts, make=quality, settings=("published",),
)  # fmt: skip
FIGURE_4_5 = Target(
    title="Figure 4.5: the λ of the risk and the number of candidates |M|",
    load=load_parts, make=lambda_and_size, settings=("published",),
)  # fmt: skip
