"""Figures of a run on images."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crl_jax import data, weights

from .._plots import save_figure

_N_IMAGES, _N_VIEWS = 6, 8


def draw_views(path: Path, views: Any, images: data.Images, seed: int) -> None:
    """Draws some images next to random views of each, as in training.

    Args:
      path: Path of the PNG, which is replaced atomically.
      views: The augmentation.
      images: The images. Shows the first image of some classes, or the first images if unlabelled.
      seed: Random seed of the views.
    """
    first = np.arange(len(images))
    if images.classes:
        _, first = np.unique(images.labels, return_index=True)
    originals = jnp.asarray(images.images[np.sort(first)[:_N_IMAGES]])
    keys = jax.random.split(jax.random.key(seed), (_N_VIEWS, len(originals)))
    view_pixels = np.asarray(jax.jit(jax.vmap(jax.vmap(views), (0, None)))(keys, originals))
    pictures = np.clip(view_pixels * np.asarray(views.std) + np.asarray(views.mean), 0, 1)
    figure = Figure(
        figsize=(1.1 * (_N_VIEWS + 1), 1.15 * len(originals) + 0.5), layout="constrained"
    )
    panels = figure.subplots(len(originals), _N_VIEWS + 1, squeeze=False)
    for row, original in enumerate(np.asarray(originals)):
        _picture(panels[row, 0], original / 255.0)
        for column in range(_N_VIEWS):
            _picture(panels[row, column + 1], pictures[column, row])
    panels[0, 0].set_title("image", fontsize="small")
    panels[0, 1].set_title("views", fontsize="small", loc="left")
    save_figure(figure, path)


def _picture(axes: Axes, image: np.ndarray) -> None:
    grey = image.shape[-1] == 1
    axes.imshow(image[..., 0] if grey else image, cmap="gray", vmin=0, vmax=1)
    axes.set_axis_off()


def draw_posterior(path: Path, calibration: weights.Calibration, title: str) -> None:
    """Draws the reliability diagram of the posterior against labels, with a histogram."""
    predicted, actual, samples = (
        np.asarray(x) for x in (calibration.predicted, calibration.actual, calibration.samples)
    )
    figure = Figure(figsize=(6, 6), layout="constrained")
    curve_axes, histogram_axes = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    curve_axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="what would be true")
    is_filled = samples > 0
    curve_axes.plot(predicted[is_filled], actual[is_filled], "o-", label="test images")
    curve_axes.set(ylabel="share of true negatives, by labels", ylim=(0, 1.02))
    curve_axes.legend(fontsize="small")
    edges = np.linspace(0, 1, len(samples) + 1)
    histogram_axes.bar(
        edges[:-1], samples / samples.sum(), np.diff(edges), align="edge", edgecolor="white"
    )
    histogram_axes.set(
        xlabel="posterior that a negative is a true one", ylabel="share of negatives"
    )
    for axes in (curve_axes, histogram_axes):
        axes.grid(alpha=0.3)
    figure.suptitle(f"{title}; ECE {float(calibration.error):.3f}", wrap=True)
    save_figure(figure, path)
