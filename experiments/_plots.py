"""The curves of a run."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from crl_jax.train import Selection

# Of more points only the chosen one has a name; the others share a grey line.
_MOST_NAMED = 10
_GREY = "#999999"
_AGAIN = {"final": "--", "use": "-."}
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

    Without a search there is the loss alone.

    Args:
      path: The PNG, replaced atomically.
      history: Lines of ``history.jsonl``.
      title: What was trained, on which data.
      points: The numbers tried; the runs of the search are theirs, those of a point together.
      choice: The choice among them.
      learned: What each phase learns from, in words.
    """
    save_figure(curves(history, title, points, choice, learned), path)


def curves(
    history: list[dict[str, Any]],
    title: str,
    points: list[dict[str, float]],
    choice: Selection,
    learned: dict[str, str],
) -> Figure:
    """The figure of :func:`draw_curves`."""
    search = [entry for entry in history if entry["phase"] == "search"]
    names = {"loss": "loss"}
    if search:
        metric = next(name for name in search[0] if name.startswith("valid_"))
        names[metric] = f"validation {metric.removeprefix('valid_').upper()}"
    figure = Figure(figsize=(5 * len(names), 5), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    left = panels[0]
    if search:
        for axes, name in zip(panels, names, strict=True):
            _draw_search(axes, search, name, points, choice, learned["search"])
    for phase, style in _AGAIN.items():
        entries = [entry for entry in history if entry["phase"] == phase]
        if entries:
            values = np.array([entry["loss"] for entry in entries], float)
            label = f"{phase}: {learned[phase]}"
            first = phase == "final" and not search
            _lines(left, entries, values, label, color=_BLACK, linestyle="-" if first else style)
    for axes, name in zip(panels, names.values(), strict=True):
        if search:
            chosen = axes.axvline(choice.epochs, color=_BLACK, linewidth=1.2, linestyle=":")
            chosen.set_label(f"chosen: epoch {choice.epochs}")
        axes.set(xlabel="epoch", ylabel=name)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.grid(alpha=0.3)
    # Below the axes: among the curves its lines could be taken for some of them.
    handles, labels = left.get_legend_handles_labels()
    columns = 2 if max(map(len, labels)) > 30 else 4
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize="small")
    figure.suptitle(title, wrap=True)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a PNG, atomically."""
    partial = path.with_name(path.name + ".partial")
    figure.savefig(partial, dpi=120, format="png")
    partial.replace(path)


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
    others = False
    for i, point in enumerate(points):
        own = values[:, i * n_seeds : (i + 1) * n_seeds].copy()
        own[epochs > point.get("epochs", np.inf)] = np.nan  # longer runs went on
        chosen = i == choice.point
        label = ", ".join(f"{key}={value:g}" for key, value in point.items())
        style: dict[str, Any] = {
            "color": colormaps["tab10"](i % 10),
            "zorder": 2.5 if chosen else 2,
        }
        if len(points) > _MOST_NAMED and not chosen:
            style["color"], label, others = _GREY, "" if others else "other points", True
        style["linewidth"] = 2 if chosen and len(points) > 1 else 1
        _lines(
            axes, search, own, f"search: {label or learned}" if label or not point else "", **style
        )


def _lines(
    axes: Axes, entries: list[dict[str, Any]], values: np.ndarray, label: str, **style: Any
) -> None:
    """A thin line for each run, of which the first has the label; a single entry is a dot."""
    marker = "o" if len(entries) == 1 else None
    lines = axes.plot([e["epoch"] for e in entries], values, marker=marker, **style)
    if label:
        lines[0].set_label(label + (f" ({len(lines)} seeds)" if len(lines) > 1 else ""))
