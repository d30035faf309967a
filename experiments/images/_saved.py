"""The encoder of a run: how it is written, and read for use."""

from pathlib import Path
from typing import Any

import numpy as np

from crl_jax import models

from .. import _encoder_file as file
from ._config import SCHEMA, Config
from ._views import make_views
from .encoders import make_backbone


class Encoder(file.TrainedNetwork[Config]):
    """Encoder of images that a run trained."""

    @property
    def n_channels(self) -> int:
        """Channels of the images that it takes."""
        return channels_of(self.config)

    def features(self, images: np.ndarray) -> np.ndarray:
        """Features of images ``[n, height, width, channels]``, uint8."""
        return file.encode(self.network, self.variables, images, make_views(self.config.views))


def channels_of(config: Any) -> int:
    """Channels of the images that a run learned from: it has a mean of each."""
    return len(config.views.mean)


def load_encoder(folder: Path) -> Encoder:
    """What a run learned.

    Raises:
      ValueError: If there is no trained encoder in ``folder``, or it is damaged.
    """
    kept = file.open_encoder(folder, SCHEMA)
    config = kept.config
    network = models.Network(make_backbone(config.encoding, channels_of(config)))
    return Encoder(config, network, kept.variables(network.init))
