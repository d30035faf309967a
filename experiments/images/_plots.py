"""The pictures of a run on images."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from crl_jax import data, weights

from .._plots import save_figure

_SHOWN, _VIEWS = 6, 8
_NAMES = {
    "loss": "loss",
    "valid_knn": "accuracy of kNN on the validation part",
    "train_knn": "accuracy of kNN among training images",
    "auc": "AUC of the scores, by labels",
    "alpha": "α of the loss",
}
_STYLES = {"search": ":", "final": "-"}
_MOST_CLASSES = 20


def draw_views(path: Path, views: Any, images: data.Images, seed: int) -> None:
    """Draws some images, and views of each that training might see.

    Args:
      path: The PNG, replaced atomically.
      views: The augmentation.
      images: The images; the first of some classes are shown.
      seed: Of the views.
    """
    save_figure(figure_of_views(views, images, seed), path)


def figure_of_views(views: Any, images: data.Images, seed: int) -> Figure:
    """The figure of :func:`draw_views`."""
    _, first = np.unique(images.labels, return_index=True)
    shown = jnp.asarray(images.images[np.sort(first)[:_SHOWN]])
    keys = jax.random.split(jax.random.key(seed), (_VIEWS, len(shown)))
    drawn = np.asarray(jax.vmap(jax.vmap(views), (0, None))(keys, shown))
    pictures = np.clip(drawn * np.asarray(views.std) + np.asarray(views.mean), 0, 1)
    figure = Figure(figsize=(1.1 * (_VIEWS + 1), 1.15 * len(shown) + 0.5), layout="constrained")
    panels = figure.subplots(len(shown), _VIEWS + 1, squeeze=False)
    for row, original in enumerate(np.asarray(shown)):
        _picture(panels[row, 0], original / 255.0)
        for column in range(_VIEWS):
            _picture(panels[row, column + 1], pictures[column, row])
    panels[0, 0].set_title("image", fontsize="small")
    panels[0, 1].set_title("views", fontsize="small", loc="left")
    return figure


def _picture(axes: Axes, image: np.ndarray) -> None:
    grey = image.shape[-1] == 1
    axes.imshow(image[..., 0] if grey else image, cmap="gray", vmin=0, vmax=1)
    axes.set_axis_off()


def draw_curves(path: Path, history: list[dict[str, Any]], title: str) -> None:
    """Draws what the reports of all runs measured, against epochs; the search is dotted."""
    save_figure(figure_of_curves(history, title), path)


def figure_of_curves(history: list[dict[str, Any]], title: str) -> Figure:
    """The figure of :func:`draw_curves`."""
    names = [name for name in _NAMES if any(name in entry for entry in history)]
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
        axes.set(xlabel="epoch", ylabel=_NAMES[name])
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.grid(alpha=0.3)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    if len(handles) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    figure.suptitle(title, wrap=True)
    return figure


def draw_posterior(path: Path, calibration: weights.Calibration, title: str) -> None:
    """Draws what a posterior says against what labels say, with how often it says so."""
    save_figure(figure_of_posterior(calibration, title), path)


def figure_of_posterior(calibration: weights.Calibration, title: str) -> Figure:
    """The figure of :func:`draw_posterior`."""
    predicted, actual, samples = (
        np.asarray(x) for x in (calibration.predicted, calibration.actual, calibration.samples)
    )
    figure = Figure(figsize=(6, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    above.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="what would be true")
    there = samples > 0
    above.plot(predicted[there], actual[there], "o-", label="test images")
    above.set(ylabel="share of true negatives, by labels", ylim=(0, 1.02))
    above.legend(fontsize="small")
    edges = np.linspace(0, 1, len(samples) + 1)
    below.bar(edges[:-1], samples / samples.sum(), np.diff(edges), align="edge", edgecolor="white")
    below.set(xlabel="posterior that a negative is a true one", ylabel="share of negatives")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.suptitle(f"{title}; ECE {float(calibration.error):.3f}", wrap=True)
    return figure


def draw_embedding(
    path: Path, features: np.ndarray, images: data.Images, title: str, seed: int
) -> None:
    """Draws features in the plane by t-SNE, in the colours of their classes.

    Args:
      path: The PNG, replaced atomically.
      features: ``[n, dim]``.
      images: Their images, whose labels give the colours.
      title: Of the figure.
      seed: Of t-SNE.
    """
    save_figure(figure_of_embedding(features, images, title, seed), path)


def figure_of_embedding(features: np.ndarray, images: data.Images, title: str, seed: int) -> Figure:
    """The figure of :func:`draw_embedding`."""
    from sklearn.manifold import TSNE  # takes long to import

    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    perplexity = min(30, (len(unit) - 1) / 3)
    places = TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(unit)
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    axes = figure.subplots()
    classes = range(len(images.classes))
    colours = colormaps["tab10" if len(classes) <= 10 else "tab20"]
    for c in classes:
        own = images.labels == c
        label = images.classes[c] if c < _MOST_CLASSES else None
        axes.scatter(*places[own].T, s=6, color=colours(c % colours.N), label=label)
    axes.set(xticks=[], yticks=[])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), markerscale=2, fontsize="small")
    figure.suptitle(title, wrap=True)
    return figure
