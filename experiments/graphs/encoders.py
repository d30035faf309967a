"""The encoders of graphs by their names on the command line."""

from collections.abc import Mapping
from typing import Any

from crl_jax import models

from .._backbones import BackboneEntry
from .._backbones import make_backbone as make
from .._registry import declared
from .._study_options import EncoderOptions

ENCODERS: Mapping[str, BackboneEntry] = {
    "gin": BackboneEntry(
        source=models.GIN,
        hyperparams=declared(models.GIN, "width", "n_layers", "epsilon", sweeps=False),
        make=models.GIN,
    ),
}


def make_backbone(options: EncoderOptions, n_in: int) -> Any:
    """What builds the network from graphs of ``n_in`` features a node, by the flags."""
    return make(options, ENCODERS, n_in=n_in)
