"""Saving and loading of the encoder of a run on images, and the command ``embed``."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from crl_jax import data, models

from .. import _encoder_file as file
from .._ranges import option_group
from ..backbones import IMAGE_ENCODERS, make_backbone
from ._config import _DATA, SCHEMA, Config
from ._views import make_views

_DESCRIPTION = """Features of images, before the projection head, by the encoder of a run.

Writes an npz with the arrays features [n, dim], labels [n] (-1: none), classes and part [n]: which
part of the set each image is of; of folders and archives also names [n], the paths of the files.
"""


@option_group
class EmbedOptions(file.EmbedOptions):
    """Options of ``embed``."""

    data: Annotated[str, tyro.conf.arg(help=f"{_DATA} By default the run's own.")] = ""
    labels: bool | None = None
    """Whether to read labels. Without labels, folders may have any names. By default as in the run,
    or True with --data."""


def embed_images(
    source: str, split: data.ImageSplit, encode: Callable[[np.ndarray], np.ndarray],
    n_expected: int, run: Path,
) -> tuple[str, dict[str, Any]]:  # fmt: skip
    """Returns the features of all images, with labels, classes, parts and file names.

    Raises ``ValueError`` if the images, which the flag ``source`` selects, do not have
    ``n_expected`` channels.
    """
    n_channels = split.train.images.shape[-1]
    file.check_input(source, "images of {} channels", n_channels, n_expected, run)
    parts = [part for _, part in split.parts()]
    names = [part.names for part in parts if part.names is not None]
    features = np.concatenate([encode(part.images) for part in parts])
    named = {"names": np.concatenate(names)} if len(names) == len(parts) else {}
    return "images", {"features": features, **file.label_arrays(split), **named}


class Encoder(file.TrainedNetwork[Config]):
    """Image encoder trained by a run."""

    def features(self, images: np.ndarray) -> np.ndarray:
        """Computes features of uint8 images ``[n, height, width, channels]``."""
        return file.encode(self.network, self.variables, images, make_views(self.config.views))


def count_channels(config: Any) -> int:
    """Returns the number of channels of the training images, from the length of ``mean``."""
    return len(config.views.mean)


def load_encoder(folder: Path) -> Encoder:
    """Loads the encoder of a run.

    Raises:
      ValueError: If there is no trained encoder in ``folder``, or its files are damaged.
    """
    saved = file.open_encoder(folder, SCHEMA)
    config = saved.config
    backbone = make_backbone(config.encoding, IMAGE_ENCODERS, n_channels=count_channels(config))
    network = models.Network(backbone)
    return Encoder(config, network, saved.variables(network.init))


def _embed(options: EmbedOptions, encoder: Encoder) -> tuple[str, dict[str, Any]]:
    """Returns the features of the images that the flags select."""
    run_source = encoder.config.source
    source, labelled = options.data or run_source.data, options.labels
    if labelled is None:
        labelled = run_source.labels or bool(options.data)
    on_disk = encoder.config.training.batches == "disk" and not options.data
    split = data.load_images(source, size=run_source.image_size, labelled=labelled, on_disk=on_disk)
    n_channels = count_channels(encoder.config)
    return embed_images(f"--data {source}", split, encoder.features, n_channels, options.run)


main = file.embed_command(EmbedOptions, "images", _DESCRIPTION, load_encoder, _embed)
