"""Figure of a run on pairs: image retrieval by text."""

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from .._plots import save_figure
from ._evaluate import EmbeddedTestPart

_TEXTS, _IMAGES = 6, 8
_WIDTH = 26
_RIGHT = "#2a9d3f"


def draw_retrieval(path: Path, found: EmbeddedTestPart, title: str) -> None:
    """Draws some test texts, and the nearest images of each, with relevant images framed.

    Args:
      path: Path of the PNG, which is replaced atomically.
      found: The trained model and its test embeddings.
      title: Title of the figure.
    """
    test = found.test
    texts = np.linspace(0, len(test.texts) - 1, min(_TEXTS, len(test.texts))).astype(int)
    scores = np.asarray(found.texts)[texts] @ np.asarray(found.images).T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :_IMAGES]
    columns = best.shape[1]
    figure = Figure(figsize=(1.15 * columns + 2.6, 1.2 * len(texts) + 0.8), layout="constrained")
    panels = figure.subplots(
        len(texts), columns + 1, squeeze=False, width_ratios=[2.2, *[1] * columns]
    )
    for row, text, places in zip(panels, texts, best):
        row[0].set_axis_off()
        said = textwrap.shorten(test.texts[text], 4 * _WIDTH, placeholder=" …")
        row[0].text(
            0, 0.5, textwrap.fill(said, _WIDTH), va="center", fontsize="small",
            transform=row[0].transAxes, parse_math=False,
        )  # fmt: skip
        for axes, place in zip(row[1:], places):
            image = test.images[place]
            grey = image.shape[-1] == 1
            axes.imshow(image[..., 0] if grey else image, cmap="gray", vmin=0, vmax=255)
            axes.set(xticks=[], yticks=[])
            group = test.text_groups[text]
            right = group >= 0 and test.image_groups[place] == group
            for spine in axes.spines.values():
                spine.set(visible=bool(right), color=_RIGHT, linewidth=3)
    figure.suptitle(f"{title}\nnearest images of texts; a green frame is a right one", wrap=True)
    save_figure(figure, path)
