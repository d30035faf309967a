"""The curves of a run."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

_COLOURS = {"search": "#1f77b4", "final": "#d95f02"}
_LABELS = {"search": "training part", "final": "training + validation"}


def draw_curves(path: Path, history: list[dict[str, Any]], title: str) -> None:
    """Draws loss and validation score against epochs, every run a thin line.

    Args:
      path: The PNG, replaced atomically.
      history: Lines of ``history.jsonl``.
      title: What was trained.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for phase, colour in _COLOURS.items():
        entries = [entry for entry in history if entry["phase"] == phase]
        if not entries:
            continue
        epochs = [entry["epoch"] for entry in entries]
        _lines(left, epochs, [entry["loss"] for entry in entries], colour, _LABELS[phase])
        scored = [name for name in entries[0] if name.startswith("valid_")]
        for name in scored:
            _lines(right, epochs, [entry[name] for entry in entries], colour, "validation part")
            right.set_ylabel(f"validation {name.removeprefix('valid_').upper()}")
    left.set_ylabel("loss")
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(frameon=False)
    figure.suptitle(title)
    save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a PNG, atomically."""
    partial = path.with_name(path.name + ".partial")
    figure.savefig(partial, dpi=120, format="png")
    partial.replace(path)


def _lines(
    axes: Any, epochs: list[int], values: list[list[float]], colour: str, label: str
) -> None:
    curves = np.asarray(values, float)
    thin = {"linewidth": 1.5 if curves.shape[1] == 1 else 0.8}
    thin["alpha"] = 1.0 if curves.shape[1] == 1 else max(0.2, 1 / np.sqrt(curves.shape[1]))
    marker = "o" if len(epochs) == 1 else None
    lines = axes.plot(epochs, curves, color=colour, marker=marker, **thin)
    runs = f" ({curves.shape[1]} runs)" if curves.shape[1] > 1 else ""
    lines[0].set_label(label + runs)
