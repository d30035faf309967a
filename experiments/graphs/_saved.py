"""The encoder of a run: how it is written, and read for use."""

from pathlib import Path

import numpy as np

from crl_jax import augment, data, models

from .. import _encoder_file as file
from .._learned import Learned
from ._config import SCHEMA, Config
from .encoders import make_backbone


class Encoder(file.TrainedNetwork[Config]):
    """Encoder of graphs that a run trained."""

    @property
    def n_in(self) -> int:
        """Features of a node in the graphs that it takes."""
        return self.network.build.n_in  # pyright: ignore[reportFunctionMemberAccess]

    def features(self, graphs: data.Graphs) -> np.ndarray:
        """Features of graphs ``[n, n_features]``."""
        views = augment.GraphAugmentation(models.GraphArrays.from_graphs(graphs))
        return file.encode(
            self.network, self.variables, np.arange(len(graphs), dtype=np.int32), views
        )


def save_encoder(folder: Path, learned: Learned) -> None:
    """Writes the backbone of what was learned, without the head."""
    file.save_backbone(folder, learned, n_in=learned.task.augment.graphs.features.shape[1])


def load_encoder(folder: Path) -> Encoder:
    """What a run learned.

    Raises:
      ValueError: If there is no trained encoder in ``folder``, or it is damaged.
    """
    kept = file.open_encoder(folder, SCHEMA)
    n_in = kept.told.get("n_in")
    if not isinstance(n_in, int):
        raise ValueError(f"{kept.path}: expected the number of features of a node, got {n_in}.")
    network = models.Network(make_backbone(kept.config.encoding, n_in))
    return Encoder(kept.config, network, kept.variables(network.init))
