"""Figure of a run on pairs: image retrieval by text."""

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from .._plots import save_figure
from ._evaluate import EmbeddedTestPart

_TEXTS, _IMAGES = 6, 8
_WIDTH = 26
_RELEVANT_COLOUR = "#2a9d3f"


def draw_retrieval(path: Path, embedded: EmbeddedTestPart, title: str) -> None:
    """Draws some test texts, and the nearest images of each, with relevant images framed.

    Args:
      path: Path of the PNG, which is replaced atomically.
      embedded: The trained model and its test embeddings.
      title: Title of the figure.
    """
    test = embedded.test
    texts = np.linspace(0, len(test.texts) - 1, min(_TEXTS, len(test.texts))).astype(int)
    scores = np.asarray(embedded.texts)[texts] @ np.asarray(embedded.images).T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :_IMAGES]
    columns = best.shape[1]
    figure = Figure(figsize=(1.15 * columns + 2.6, 1.2 * len(texts) + 0.8), layout="constrained")
    panels = figure.subplots(
        len(texts), columns + 1, squeeze=False, width_ratios=[2.2, *[1] * columns]
    )
    for row, text, nearest in zip(panels, texts, best):
        row[0].set_axis_off()
        caption = textwrap.shorten(test.texts[text], 4 * _WIDTH, placeholder=" …")
        row[0].text(
            0, 0.5, textwrap.fill(caption, _WIDTH), va="center", fontsize="small",
            transform=row[0].transAxes, parse_math=False,
        )  # fmt: skip
        for axes, index in zip(row[1:], nearest):
            image = test.images[index]
            grey = image.shape[-1] == 1
            axes.imshow(image[..., 0] if grey else image, cmap="gray", vmin=0, vmax=255)
            axes.set(xticks=[], yticks=[])
            group = test.text_groups[text]
            is_relevant = group >= 0 and test.image_groups[index] == group
            for spine in axes.spines.values():
                spine.set(visible=bool(is_relevant), color=_RELEVANT_COLOUR, linewidth=3)
    figure.suptitle(f"{title}\nnearest images of texts; a green frame is a right one", wrap=True)
    save_figure(figure, path)
