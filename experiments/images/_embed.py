"""Features of images by the encoder of a run: ``python -m experiments.images embed``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from crl_jax import data

from .._encoder_file import write_features
from .._program import program
from ._options import _DATA
from ._saved import load_encoder

_DESCRIPTION = """Features of images, before the projection head, by the encoder of a run.

Writes an npz with the arrays features [n, dim], labels [n] (-1: none), classes and part [n]: which
part of the set each image is of.
"""


@dataclass(frozen=True)
class EmbedOptions:
    """What is embedded."""

    run: Path
    """Run directory."""
    data: Annotated[str, tyro.conf.arg(help=f"{_DATA} By default the run's own.")] = ""
    out: Path = Path("features.npz")
    """The file that is written."""


def main(arguments: list[str]) -> None:
    """Embeds what the flags name."""
    options = tyro.cli(
        EmbedOptions, prog=f"{program('images')} embed", description=_DESCRIPTION, args=arguments
    )
    encoder = load_encoder(options.run)
    own = encoder.config.source
    source = options.data or own.data
    split = data.load_images(source, size=own.image_size)
    check_channels(f"--data {source}", split, encoder.n_channels, options.run)
    write_features(options.out, "images", **of_parts(split, encoder.features))


def check_channels(said: str, split: data.ImageSplit, wanted: int, run: Path) -> None:
    """Refuses images that an encoder does not take.

    Args:
      said: The flag that named them, and its value.
      split: The images.
      wanted: How many channels the encoder takes.
      run: Its run directory.

    Raises:
      ValueError: If they have others.
    """
    found = split.train.images.shape[-1]
    if found != wanted:
        raise ValueError(
            f"{said} has images of {found} channels: the encoder of {run} takes {wanted}."
        )


def of_parts(
    split: data.ImageSplit, features: Callable[[np.ndarray], np.ndarray]
) -> dict[str, Any]:
    """The features of all images, with labels, classes and the part that each is of."""
    parts = dict(split.parts())
    return {
        "features": np.concatenate([features(part.images) for part in parts.values()]),
        "labels": np.concatenate([part.labels for part in parts.values()]),
        "classes": np.array(split.train.classes),
        "part": np.repeat(list(parts), [len(part) for part in parts.values()]),
    }
