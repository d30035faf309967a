"""Features of graphs by the encoder of a run: ``python -m experiments.graphs embed``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from crl_jax import data

from .._encoder_file import write_features
from .._program import program
from ._options import _DATA
from ._saved import load_encoder

_DESCRIPTION = """Features of graphs, before the projection head, by the encoder of a run.

Writes an npz with the arrays features [n, dim], labels [n] and classes. Nodes are known by what the
run's --features says. Tags and degrees are numbered within a set, so another set needs the same.
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
        EmbedOptions, prog=f"{program('graphs')} embed", description=_DESCRIPTION, args=arguments
    )
    encoder = load_encoder(options.run)
    own = encoder.config.source
    source = options.data or own.data
    graphs = data.load_graphs(source, features=own.features)
    found = graphs.features.shape[1]
    if found != encoder.n_in:
        raise ValueError(
            f"--data {source} has nodes of {found} features: the encoder of {options.run} takes "
            f"{encoder.n_in}."
        )
    write_features(
        options.out, "graphs", encoder.features(graphs),
        labels=graphs.labels, classes=np.array(graphs.classes, np.str_),
    )  # fmt: skip
