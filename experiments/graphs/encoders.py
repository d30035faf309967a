"""Registry of graph encoders, by their names on the command line."""

from typing import Any

from crl_jax import models

from .._backbones import BackboneEntry, entry_of
from .._backbones import make_backbone as make
from .._registry import Registry, declared
from .._study_options import EncoderOptions

ENCODERS = Registry(
    {
        "gin": BackboneEntry(
            source=models.GIN,
            hyperparams=declared(models.GIN, "width", "n_layers", "epsilon", sweeps=False),
            make=models.GIN,
        ),
    },
    make=entry_of,
)


def make_backbone(options: EncoderOptions, n_in: int) -> Any:
    """Returns the builder of the network for graphs with ``n_in`` features per node."""
    return make(options, ENCODERS, n_in=n_in)
