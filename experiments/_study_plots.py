"""Figures of a study: training curves, and a t-SNE plot of the features."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ._plots import save_figure

_STYLES = {"search": ":", "final": "-"}
_MOST_CLASSES = 20
_PICTURED = 1000
"""Number of examples in an embedding plot."""


def draw_curves(
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
        axes.set(xlabel="epoch", ylabel=words[name])
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.grid(alpha=0.3)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    if len(handles) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    figure.suptitle(title, wrap=True)
    save_figure(figure, path)


def pictured(n: int) -> slice:
    """Returns the slice of ``n`` examples in an embedding plot: evenly spaced ones."""
    step = max(1, n // _PICTURED)
    return slice(0, step * _PICTURED, step)


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
        places = TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(unit)
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["tab10" if len(classes) <= 10 else "tab20"]
    for c, name in enumerate(classes):
        own = labels == c
        label = name if c < _MOST_CLASSES else None
        axes.scatter(*places[own].T, s=6, color=colours(c % colours.N), label=label)
    unknown = labels < 0
    if unknown.any():
        axes.scatter(*places[unknown].T, s=6, color="grey", label="no label")
    axes.set(xticks=[], yticks=[])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), markerscale=2, fontsize="small")
    figure.suptitle(title, wrap=True)
    save_figure(figure, path)
