"""Backbones of representation learning by their names on the command line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ._registry import Entry, declared, settle
from ._study_options import EncoderOptions


@dataclass(frozen=True, kw_only=True)
class BackboneEntry(Entry):
    """A network from examples to features.

    Attributes:
      make: ``make(**sizes, **values)``: what :class:`crl_jax.models.Network` builds, from the sizes
        of the data and the values of the flags.
    """

    make: Callable[..., Any]


def entry_of(source: Any) -> BackboneEntry:
    """A network with the hyper-parameters that its class or function declares."""
    return BackboneEntry(source=source, hyperparams=declared(source, sweeps=False), make=source)


def make_backbone(
    options: EncoderOptions, entries: Mapping[str, BackboneEntry], **sizes: int
) -> Any:
    """Returns the builder of the chosen network for examples of these sizes."""
    values = settle("encoder", options, entries)
    return entries[options.encoder].make(**sizes, **values)
