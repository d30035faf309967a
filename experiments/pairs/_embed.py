"""Images or texts in the space of a run: ``python -m experiments.pairs embed``."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from crl_jax import data

from .._encoder_file import write_features
from .._program import program
from .._text_file import read_lines
from ..images._embed import check_channels, of_parts
from ._saved import load_towers

_DESCRIPTION = """Images or texts in the space that a run learned, as vectors of length 1: what
belongs together is near.

Writes an npz with the array features [n, dim], a row for each line of --texts; of --images also
labels [n] (-1: none), classes, part [n], which part of the set each image is of, and, of folders
and archives, names [n], the paths of the files.
"""


@dataclass(frozen=True)
class EmbedOptions:
    """What is embedded."""

    run: Path
    """Run directory."""
    images: str | None = None
    """What images reads as its --data, such as a folder or archive of images; brought to the run's
    size."""
    labels: bool = True
    """Whether labels of --images are read. Without them, folders may have any names."""
    texts: Path | None = None
    """File with a text in each line, UTF-8."""
    out: Path = Path("features.npz")
    """The file that is written."""


def main(arguments: list[str]) -> None:
    """Embeds what the flags name."""
    options = tyro.cli(
        EmbedOptions, prog=f"{program('pairs')} embed", description=_DESCRIPTION, args=arguments,
        config=(tyro.conf.FlagConversionOff,),
    )  # fmt: skip
    source = options.images
    if (source is None) == (options.texts is None):
        raise ValueError("--images and --texts name what is embedded; give one of them.")
    towers = load_towers(options.run)
    if options.texts is not None:
        write_features(options.out, "texts", towers.texts(read_lines(options.texts)))
        return
    split = data.load_images(source, size=towers.image_size, labelled=options.labels)
    check_channels(f"--images {source}", split, towers.n_channels, options.run)
    write_features(options.out, "images", **of_parts(split, towers.images))
