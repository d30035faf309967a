"""Features of images by the encoder of a run: ``python -m experiments.images embed``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from crl_jax import data

from .._program import program
from .._screen import output, plain
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
    console = output()
    encoder = load_encoder(options.run)
    own = encoder.config.source
    source = options.data or own.data
    split = data.load_images(source, size=own.image_size)
    wanted = encoder.n_channels
    if split.train.images.shape[-1] != wanted:
        raise ValueError(
            f"--data {source} has images of {split.train.images.shape[-1]} channels: the encoder "
            f"of {options.run} takes {wanted}."
        )
    parts = dict(split.parts())
    features = np.concatenate([encoder.features(part.images) for part in parts.values()])
    labels = np.concatenate([part.labels for part in parts.values()])
    names = np.repeat(list(parts), [len(part) for part in parts.values()])
    classes = np.array(split.train.classes)
    partial = options.out.with_name(options.out.name + ".partial")
    with partial.open("wb") as file:
        np.savez(file, features=features, labels=labels, classes=classes, part=names)
    partial.replace(options.out)
    n, dim = features.shape
    console.print(f"{n:,} images, {dim} features each, in {plain(options.out)}")
