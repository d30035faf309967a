"""Figures of the numerical experiment, each with a CSV file of its data."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from .. import _rundir as rundir
from .._plots import save_figure
from ._model import ESTIMATORS
from ._punce import METHODS, SHARES

# Okabe and Ito's colours, which colour-blind readers can distinguish, and a marker for each.
_STYLES: dict[str, dict[str, Any]] = {
    "biased": dict(color="#D55E00", marker="s", linestyle=":"),
    "dcl": dict(color="#0072B2", marker="^", linestyle="--"),
    "bcl": dict(color="#009E73", marker="o", linestyle="-"),
    "bcl_normalised": dict(color="#CC79A7", marker="D", linestyle="-."),
    "bcl_auc": dict(color="#E69F00", marker="v", linestyle=(0, (5, 1, 1, 1))),
}
_OF_METHOD: dict[str, dict[str, Any]] = {
    "info_nce": dict(color="black", marker="x", linestyle=":"),
    "supcon": dict(color="#0072B2", marker="^", linestyle="--"),
    "supcon_negative": dict(color="#D55E00", marker="s", linestyle="-."),
    "punce_half": dict(color="#CC79A7", marker="v", linestyle=(0, (5, 1, 1, 1))),
    "punce": dict(color="#009E73", marker="o", linestyle="-"),
    "punce_more": dict(color="#E69F00", marker="D", linestyle=(0, (3, 2))),
}
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00")
SYMBOLS = {
    "alpha": "α",
    "gamma": "γ, variation of the anchors' ranges",
    "tau_plus": "τ⁺",
    "temperature": "t",
    "n_neg": "N",
    "told_alpha": "α assumed by BCL",
    "told_tau_plus": "τ⁺ assumed by DCL and BCL",
}
_PUBLISHED = ("biased", "dcl", "bcl", "bcl_normalised")
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.titlesize": 10,
    "legend.fontsize": 8,
}
"""Matplotlib's settings for all figures."""
Sweep = dict[str, np.ndarray]
"""``x`` and the arrays of :func:`._model.measure`, with points on the first axis."""
Table = tuple[list[str], list[list[Any]]]
"""Header and lines of a CSV file."""


def nce(folder: Path, of_noise: Mapping[str, dict[str, np.ndarray]]) -> None:
    """Plots the convergence of NCE to maximum likelihood, for each noise: gradients and fits."""
    figure, panels = panels_of(1, 2, (9.5, 3.9))
    for (name, row), colour, marker in zip(of_noise.items(), COLOURS, ("o", "s")):
        points: dict[str, Any] = dict(color=colour, marker=marker, linestyle="none", markersize=4)
        panels[0].plot(row["k"], row["expected"], color=colour, label=f"noise: {name}")
        panels[0].errorbar(row["k"], row["drawn"], 2 * row["deviation"], **points)
        panels[1].plot(row["k"], row["theory"], color=colour)
        panels[1].plot(row["k"], row["error"], **points)
    titles = "distance of the gradient, relative", "mean square error of a fit, relative"
    for axes, title in zip(panels, titles):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="k, noise samples per observation", title=title)
    panels[0].set_yscale("log")
    panels[0].legend()
    panels[1].axhline(1, color="0.5", linewidth=0.8)
    title = "NCE compared with maximum likelihood; lines: theory"
    save(figure, folder / "nce", title, *stacked("noise", of_noise))


def punce(folder: Path, rows: list[dict[str, Any]], summary: list[dict[str, Any]]) -> None:
    """Compares puNCE with InfoNCE and SupCon, by the share of labelled positives."""
    titles = {
        "linear": "accuracy, linear, fitted with all labels",
        "pu_auc": "AUC of labelled against unlabelled, linear",
    }
    figure, panels = panels_of(1, 2, (11.5, 4.6))
    at = np.arange(len(SHARES))
    for axes, (measure, title) in zip(panels, titles.items()):
        for i, (name, label) in enumerate(METHODS.items()):
            own = [row for row in summary if (row["measure"], row["method"]) == (measure, name)]
            beside = at + 0.08 * (i - (len(METHODS) - 1) / 2)  # so that error bars do not overlap
            mean, deviation = ([row[of] for row in own] for of in ("mean", "deviation"))
            axes.errorbar(
                beside, mean, np.nan_to_num(deviation), label=label, capsize=2, markersize=5,
                linewidth=1.2, **_OF_METHOD[name],
            )  # fmt: skip
        axes.set_xticks(at, [f"{share:.0%}" for share in SHARES])
        axes.set(xlabel="share of the even digits that is labelled", title=title)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
                  fontsize=9)  # fmt: skip
    title = "Digits, even against odd: mean and deviation over seeds"
    save(figure, folder / "punce", title, list(rows[0]), map(dict.values, rows))
    _write(folder / "punce_paired.csv", list(summary[0]), map(dict.values, summary))


def errors(folder: Path, sweeps: dict[str, Sweep]) -> None:
    """Figure 6.9: mean square error along each sweep."""
    figure, panels = panels_of(2, 3, (12.5, 7), "mean square error")
    for axes, (parameter, sweep) in zip(panels, sweeps.items()):
        for name in _PUBLISHED:
            _curve(axes, sweep, name, "mse")
        axes.set_yscale("log")
        if parameter in ("n_neg", "temperature"):
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(SYMBOLS[parameter])
    panels[5].axis("off")
    panels[5].legend(*panels[0].get_legend_handles_labels(), loc="center", fontsize=10,
                     title="mean ± 95 % over the anchors")  # fmt: skip
    title = "Mean square error of the estimates of the mean over true negatives"
    save(figure, folder / "figure_6_9", title, *_long_form(sweeps, _PUBLISHED))


def means(folder: Path, sweeps: dict[str, Sweep]) -> None:
    """Figure 6.10: mean of the estimates, with their bias below."""
    figure, panels = panels_of(2, len(sweeps), (5 * len(sweeps), 6.6), sharex="col")
    for above, below, (parameter, sweep) in zip(
        panels[: len(sweeps)], panels[len(sweeps) :], sweeps.items()
    ):
        above.plot(sweep["x"], sweep["supervised"], color="black", linewidth=3, alpha=0.35,
                   label="true negatives")  # fmt: skip
        for name in _PUBLISHED:
            _curve(above, sweep, name, "mean")
            _curve(below, sweep, name, "bias")
        below.axhline(0, color="0.3", linewidth=0.8)
        below.set_xlabel(SYMBOLS[parameter])
    panels[0].set_ylabel("mean of the estimates")
    panels[len(sweeps)].set_ylabel("bias")
    panels[0].legend()
    table = _long_form(sweeps, _PUBLISHED)
    save(figure, folder / "figure_6_10", "Mean of the estimates", *table)


def misspecified(folder: Path, sweeps: dict[str, Sweep], truth: dict[str, float]) -> None:
    """Bias of the estimators for a misspecified class prior or encoder quality."""
    names = ("biased", "dcl", "bcl")
    ylabel = "bias, % of the mean over true negatives"
    figure, panels = panels_of(1, len(sweeps), (5 * len(sweeps), 3.8), ylabel, sharey=True)
    for axes, (parameter, sweep) in zip(panels, sweeps.items()):
        percent = 100 / sweep["supervised"][:, None]
        relative = sweep | {key: percent * sweep[key] for key in ("bias", "bias_se")}
        for name in names:
            _curve(axes, relative, name, "bias")
        axes.axhline(0, color="0.3", linewidth=0.8)
        marks = {"truth": truth[parameter]}
        if parameter == "told_alpha":
            marks["AUC"] = 0.5 + (2 * truth[parameter] - 1) / 3
        for text, x in marks.items():
            axes.axvline(x, color="0.3", linewidth=0.8, linestyle=":")
            across = axes.get_xaxis_transform()
            axes.text(x, 0.98, f" {text}", transform=across, va="top", fontsize=8)
        axes.set_xlabel(SYMBOLS[parameter])
    low, high = panels[0].get_ylim()
    panels[0].set_ylim(low, high + 0.1 * (high - low))  # room for the annotations
    panels[0].legend(loc="lower left")
    table = _long_form(sweeps, names)
    save(figure, folder / "misspecified", "Bias under wrong assumptions", *table)


def convergence(
    folder: Path, sweep: Sweep, limits: dict[str, float], rates: dict[str, float]
) -> None:
    """Error of the estimate and of the loss as N grows, with the limits of the populations."""
    figure, (left, right) = panels_of(1, 2, (11.5, 5))
    x, bcl = sweep["x"], list(ESTIMATORS).index("bcl")
    for i, (name, label) in enumerate(ESTIMATORS.items()):
        style = dict(_STYLES[name], markersize=5, linewidth=1.5)
        root = np.sqrt(sweep["mse"][:, i])
        band = 1.96 * sweep["mse_se"][:, i] / (2 * root)
        if name in rates:
            stated = f"∝ $N^{{{rates[name]:.2f}}}$"
        else:
            stated = f"→ {limits[name]:.3g}"
            left.axhline(limits[name], color=style["color"], linewidth=0.8, alpha=0.7)
        left.plot(x, root, label=f"{label} {stated}", **style)
        left.fill_between(x, root - band, root + band, color=style["color"], alpha=0.2)
        off = np.abs(sweep["loss_bias"][:, i])
        clear = off > 1.96 * sweep["loss_bias_se"][:, i]
        right.plot(x, off, markevery=list(np.flatnonzero(clear)), **style)
        right.plot(x[~clear], off[~clear], style["marker"], color=style["color"],
                   markersize=5, markerfacecolor="white")  # fmt: skip
    # Reference lines for BCL.
    left.plot(x, 0.6 * np.sqrt(sweep["mse"][0, bcl] * x[0] / x), color="0.4", label="∝ $N^{-1/2}$")
    first = np.abs(sweep["loss_bias"][0, bcl])
    right.plot(x, 0.4 * first * x[0] / x, color="0.4", label="∝ $N^{-1}$")
    right.plot([], [], "o", color="0.4", markerfacecolor="white",
               label="hollow: not significantly (95 %) different from 0")  # fmt: skip
    for axes, label in (
        (left, "root mean square error of the estimate"),
        (right, "|mean loss − mean supervised loss|"),
    ):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="N, unlabelled samples of an anchor", ylabel=label, yscale="log")
        axes.legend(fontsize=9, loc="lower left")
    title = "Theorem 6.2: convergence to the supervised mean and loss as N grows"
    table = _long_form({"n_neg": sweep}, tuple(ESTIMATORS))
    save(figure, folder / "convergence", title, *table)


def panels_of(
    rows: int, columns: int, size: tuple[float, float], ylabel: str = "", **options: Any
) -> tuple[Figure, list[Axes]]:
    """Creates the panels, with a label of the y-axes left of each row."""
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **options)
    for axes in panels[:, 0]:
        axes.set_ylabel(ylabel)
    return figure, list(panels.ravel())


def _curve(axes: Axes, sweep: Sweep, name: str, quantity: str) -> None:
    """Plots an estimator's curve, with a 95 % band if the quantity has a standard error."""
    i = list(ESTIMATORS).index(name)
    x, y = sweep["x"], sweep[quantity][:, i]
    style = _STYLES[name]
    axes.plot(x, y, markersize=4, markevery=2, linewidth=1.5, label=ESTIMATORS[name], **style)
    if f"{quantity}_se" in sweep:
        band = 1.96 * sweep[f"{quantity}_se"][:, i]
        axes.fill_between(x, y - band, y + band, color=style["color"], alpha=0.2, linewidth=0)


def stacked(name: str, groups: Mapping[Any, dict[str, np.ndarray]]) -> Table:
    """Returns the tables of all values of ``name``, concatenated vertically."""
    header = [name, *next(iter(groups.values()))]
    return header, [[key, *line] for key, of in groups.items() for line in zip(*of.values())]


def _long_form(sweeps: dict[str, Sweep], names: Sequence[str]) -> Table:
    """Returns a table with a line for each point of each sweep and each estimator."""
    first, lines = next(iter(sweeps.values())), []
    columns = [q for ndim in (1, 2) for q in first if q != "x" and first[q].ndim == ndim]
    for parameter, sweep in sweeps.items():
        shape = len(ESTIMATORS), len(sweep["x"])
        numbers = np.stack([np.broadcast_to(sweep[q].T, shape) for q in columns], axis=-1)
        of = dict(zip(ESTIMATORS, numbers))
        lines += [
            [parameter, x, name, *of[name][point]]
            for point, x in enumerate(sweep["x"])
            for name in names
        ]
    return ["parameter", "value", "estimator", *columns], lines


def save(
    figure: Figure, path: Path, title: str, header: Sequence[str], lines: Iterable[Iterable[Any]]
) -> None:
    """Writes the titled figure as PNG, and its data as CSV."""
    figure.suptitle(title)
    save_figure(figure, path.with_suffix(".png"))
    _write(path.with_suffix(".csv"), header, lines)


def _write(path: Path, header: Sequence[str], lines: Iterable[Iterable[Any]]) -> None:
    shown = (
        [f"{cell:.7g}" if isinstance(cell, float | np.floating) else cell for cell in line]
        for line in lines
    )
    rundir.write_csv(path, header, shown)
