"""Saving and loading of the encoder of a run on graphs, and the command ``embed``."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from crl_jax import augment, data, models

from .. import _encoder_file as file
from .._ranges import option_group
from ..backbones import GRAPH_ENCODERS, make_backbone
from ._config import _DATA, SCHEMA, Config
from ._host import TrainedGraphModel

_DESCRIPTION = """Features of graphs, before the projection head, by the encoder of a run.

Writes an npz with the arrays features [n, dim], labels [n] and classes. The node features are those
of the run's --features. Tags and degrees are numbered within a set, so another set needs the same.
"""


@option_group
class EmbedOptions(file.EmbedOptions):
    """Options of ``embed``."""

    data: Annotated[str, tyro.conf.arg(help=f"{_DATA} By default the run's own.")] = ""


class Encoder(file.TrainedNetwork[Config]):
    """Graph encoder trained by a run."""

    @property
    def n_in(self) -> int:
        """Number of node features that the encoder expects."""
        return self.network.build.n_in  # pyright: ignore[reportFunctionMemberAccess]

    def features(self, graphs: data.Graphs) -> np.ndarray:
        """Computes features ``[n, n_features]`` of graphs."""
        views = augment.GraphAugmentation(models.GraphArrays.from_graphs(graphs))
        return file.encode(
            self.network, self.variables, np.arange(len(graphs), dtype=np.int32), views
        )


def save_encoder(folder: Path, learned: TrainedGraphModel) -> None:
    """Writes the trained backbone, without the projection head."""
    file.save_backbone(folder, learned, n_in=learned.graphs.features.shape[1])


def load_encoder(folder: Path) -> Encoder:
    """Loads the encoder of a run.

    Raises:
      ValueError: If there is no trained encoder in ``folder``, or its files are damaged.
    """
    saved = file.open_encoder(folder, SCHEMA)
    n_in = saved.metadata.get("n_in")
    if not isinstance(n_in, int):
        raise ValueError(f"{saved.path}: expected the number of features of a node, got {n_in}.")
    network = models.Network(make_backbone(saved.config.encoding, GRAPH_ENCODERS, n_in=n_in))
    return Encoder(saved.config, network, saved.variables(network.init))


def _embed(options: EmbedOptions, encoder: Encoder) -> tuple[str, dict[str, Any]]:
    """Returns the features of the graphs that the flags select."""
    run_source = encoder.config.source
    source = options.data or run_source.data
    graphs = data.load_graphs(source, features=run_source.features)
    n_in = graphs.features.shape[1]
    file.check_input(f"--data {source}", "nodes of {} features", n_in, encoder.n_in, options.run)
    classes = np.array(graphs.classes, np.str_)
    features = encoder.features(graphs)
    return "graphs", {"features": features, "labels": graphs.labels, "classes": classes}


main = file.embed_command(EmbedOptions, "graphs", _DESCRIPTION, load_encoder, _embed)
