"""The encoders of graphs by their names on the command line.

A new one is an :class:`EncoderEntry` and a line in :data:`ENCODERS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crl_jax import models, summary

from .._registry import Entry, declared, settle
from ._options import EncoderOptions


@dataclass(frozen=True, kw_only=True)
class EncoderEntry(Entry):
    """A network from graphs to features.

    Attributes:
      make: ``make(n_in=…, **values)``: what :class:`crl_jax.models.Network` builds.
    """

    make: Callable[..., Any]


ENCODERS: Mapping[str, EncoderEntry] = {
    "gin": EncoderEntry(
        help=summary(models.GIN),
        hyperparams=declared(models.GIN, "width", "n_layers", "epsilon", sweeps=False),
        make=models.GIN,
    ),
}


def make_backbone(options: EncoderOptions, n_in: int) -> Any:
    """What builds the network from graphs of ``n_in`` features a node, by the flags."""
    values = settle("encoder", options, ENCODERS)
    return ENCODERS[options.encoder].make(n_in=n_in, **values)
