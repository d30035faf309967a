"""Figures of a run: curves of the training, and a t-SNE plot of the features."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from crl_jax.train import Selection

from ._files import replacing
from ._trained_model import evenly_spaced

# Of more points only the chosen one has a name; the others share a grey line.
_MAX_NAMED_POINTS = 10
_GREY = "#999999"
_RETRAINING_STYLES = {"final": "--", "use": "-."}
_BLACK = "#222222"


def draw_curves(
    path: Path,
    history: list[dict[str, Any]],
    title: str,
    *,
    points: list[dict[str, float]],
    choice: Selection,
    learned: dict[str, str],
) -> None:
    """Draws loss and validation score against epochs, and marks the chosen epoch.

    Without a search, draws only the loss.

    Args:
      path: The PNG, replaced atomically.
      history: Lines of ``history.jsonl``.
      title: Title of the figure.
      points: Points of the sweep; the runs of a point are consecutive.
      choice: The selected point and epoch.
      learned: Description of the training data of each phase.
    """
    save_figure(curves(history, title, points, choice, learned), path)


def curves(
    history: list[dict[str, Any]],
    title: str,
    points: list[dict[str, float]],
    choice: Selection,
    learned: dict[str, str],
) -> Figure:
    """Returns the figure of :func:`draw_curves`."""
    search = [entry for entry in history if entry["phase"] == "search"]
    names = {"loss": "loss"}
    if search:
        metric = next(name for name in search[0] if name.startswith("valid_"))
        names[metric] = f"validation {metric.removeprefix('valid_').upper()}"
    figure = Figure(figsize=(5 * len(names), 5), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    loss_axes = panels[0]
    if search:
        for axes, name in zip(panels, names, strict=True):
            _draw_search(axes, search, name, points, choice, learned["search"])
    for phase, style in _RETRAINING_STYLES.items():
        # Of several models, which are blended, that of the selected point.
        entries = [e for e in history if e["phase"] == phase and not e.get("run")]
        if entries:
            values = np.array([entry["loss"] for entry in entries], float)
            label = f"{phase}: {learned[phase]}"
            first = phase == "final" and not search
            _lines(
                loss_axes, entries, values, label, color=_BLACK, linestyle="-" if first else style
            )
    for axes, name in zip(panels, names.values(), strict=True):
        if search:
            chosen = axes.axvline(choice.epochs, color=_BLACK, linewidth=1.2, linestyle=":")
            chosen.set_label(f"chosen: epoch {choice.epochs}")
        _label_epochs(axes, name)
    # Below the axes: among the curves its lines could be taken for some of them.
    handles, labels = loss_axes.get_legend_handles_labels()
    _legend_below(figure, handles, labels)
    figure.suptitle(title, wrap=True)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a PNG, atomically."""
    with replacing(path) as partial:
        figure.savefig(partial, dpi=120, format="png")


def _legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Draws a legend below the axes, in as many columns as its labels leave room for, at most 4."""
    inches = 0.5 + 0.07 * max(map(len, labels))  # a line, and characters of a small font
    columns = min(4, max(1, int(figure.get_figwidth() / inches)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize="small")


def _label_epochs(axes: Axes, name: str) -> None:
    axes.set(xlabel="epoch", ylabel=name)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)


def _draw_search(
    axes: Axes,
    search: list[dict[str, Any]],
    name: str,
    points: list[dict[str, float]],
    choice: Selection,
    learned: str,
) -> None:
    values = np.array([entry[name] for entry in search], float)
    epochs = np.array([entry["epoch"] for entry in search])
    n_seeds = values.shape[1] // len(points)
    labelled = False
    for i, point in enumerate(points):
        y = values[:, i * n_seeds : (i + 1) * n_seeds].copy()
        y[epochs > point.get("epochs", np.inf)] = np.nan  # longer runs went on
        chosen = i == choice.point
        label = ", ".join(f"{key}={value:g}" for key, value in point.items())
        style: dict[str, Any] = {
            "color": colormaps["tab10"](i % 10),
            "zorder": 2.5 if chosen else 2,
        }
        if len(points) > _MAX_NAMED_POINTS and not chosen:
            style["color"], label, labelled = _GREY, "" if labelled else "other points", True
        style["linewidth"] = 2 if chosen and len(points) > 1 else 1
        _lines(
            axes, search, y, f"search: {label or learned}" if label or not point else "", **style
        )


def _lines(
    axes: Axes, entries: list[dict[str, Any]], values: np.ndarray, label: str, **style: Any
) -> None:
    """Draws a line for each run, the first with the label; a single entry is a dot."""
    marker = "o" if len(entries) == 1 else None
    lines = axes.plot([e["epoch"] for e in entries], values, marker=marker, **style)
    if label:
        lines[0].set_label(label + (f" ({len(lines)} seeds)" if len(lines) > 1 else ""))


_STYLES = {"search": ":", "final": "-"}
_MAX_LEGEND_CLASSES = 20
_MAX_EMBEDDED = 1000
"""Number of examples in an embedding plot."""


def draw_reports(
    path: Path, history: list[dict[str, Any]], title: str, words: Mapping[str, str]
) -> None:
    """Plots the reports of all runs against epochs, those of the search dotted.

    Args:
      path: The PNG, replaced atomically.
      history: The entries of all runs, each with the name of its run under ``label``.
      title: Title of the figure.
      words: Display names of the plotted columns; columns that are absent are omitted.
    """
    names = [name for name in words if any(name in entry for entry in history)]
    rows, columns = -(-len(names) // 3), min(3, len(names))
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows + 0.8), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    runs = list(dict.fromkeys((entry["phase"], entry["run"]) for entry in history))
    for axes, name in zip(panels, names):
        for i, (phase, run) in enumerate(runs):
            entries = [e for e in history if (e["phase"], e["run"]) == (phase, run) and name in e]
            if not entries:
                continue
            values = [entry[name] for entry in entries]
            axes.plot(
                [entry["epoch"] for entry in entries], values, _STYLES[phase],
                color=colormaps["tab10"](i % 10), label=entries[0]["label"],
                marker="o" if len(values) == 1 else None,
            )  # fmt: skip
        _label_epochs(axes, words[name])
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    if len(handles) > 1:
        _legend_below(figure, handles, labels)
    figure.suptitle(title, wrap=True)
    save_figure(figure, path)


def plotted_slice(n: int) -> slice:
    """Returns the slice of ``n`` examples in an embedding plot: evenly spaced ones."""
    return evenly_spaced(n, _MAX_EMBEDDED)


def draw_embedding(
    path: Path, features: np.ndarray, labels: np.ndarray, classes: Sequence[str], title: str,
    seed: int,
) -> None:  # fmt: skip
    """Plots features by t-SNE, coloured by class; plots nothing if a feature is not finite.

    Args:
      path: The PNG, replaced atomically.
      features: ``[n, dim]``.
      labels: Their classes, -1 for none, ``[n]``.
      classes: Class names.
      title: Title of the figure.
      seed: Seed of t-SNE.
    """
    if not np.isfinite(features).all():
        return
    from sklearn.manifold import TSNE  # slow to import
    from threadpoolctl import threadpool_limits

    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    perplexity = min(30, (len(unit) - 1) / 3)
    with threadpool_limits(1):  # on busy processors, its threads wait for each other
        coordinates = TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(unit)
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["tab10" if len(classes) <= 10 else "tab20"]
    for c, name in enumerate(classes):
        in_class = labels == c
        label = name if c < _MAX_LEGEND_CLASSES else None
        axes.scatter(*coordinates[in_class].T, s=6, color=colours(c % colours.N), label=label)
    is_unlabelled = labels < 0
    if is_unlabelled.any():
        axes.scatter(*coordinates[is_unlabelled].T, s=6, color="grey", label="no label")
    axes.set(xticks=[], yticks=[])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), markerscale=2, fontsize="small")
    figure.suptitle(title, wrap=True)
    save_figure(figure, path)
