"""The encoders of graphs by their names on the command line.

A new one is an :class:`EncoderEntry` and a line in :data:`ENCODERS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crl_jax import models

from .._ranges import NOT_NEGATIVE
from .._registry import Entry, Hyperparam, count


@dataclass(frozen=True, kw_only=True)
class EncoderEntry(Entry):
    """A network from graphs to features.

    Attributes:
      make: ``make(n_in=…, **values)``: what :class:`crl_jax.models.Network` builds.
    """

    make: Callable[..., Any]


ENCODERS: Mapping[str, EncoderEntry] = {
    "gin": EncoderEntry(
        help="sums over neighbours, and of all nodes after each layer (GIN)",
        hyperparams={
            "width": count(32, "Width of a layer"),
            "n_layers": count(3, "Number of layers"),
            "epsilon": Hyperparam(
                0.0, "By how much a node counts more than a neighbour", NOT_NEGATIVE, sweeps=False
            ),
        },
        make=models.GIN,
    ),
}
