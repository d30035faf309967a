"""The encoders by their names on the command line.

A new one is an :class:`EncoderEntry` in a file of this folder, and a line in :data:`ENCODERS`.
"""

from typing import Any

from crl_jax import data, models

from .._options import EncoderOptions
from .._registry import Registry, settle
from . import factors
from ._entry import EncoderEntry as EncoderEntry
from ._entry import entry_of

ENCODERS = Registry({"mf": factors.MF, "lightgcn": factors.LIGHTGCN}, make=entry_of)


def resolve_encoder(
    options: EncoderOptions,
    log: data.Interactions,
    dim: int,
    swept: tuple[str, ...] = (),
) -> models.Encoder:
    """Makes the chosen encoder for training on ``log``, with vectors of width ``dim``.

    Raises:
      ValueError: If a flag was given that the encoder does not take.
    """
    values = settle("encoder", options, ENCODERS, swept)
    make = ENCODERS[options.encoder].make
    return make(log, dim=dim, similarity=options.similarity or "inner", **values)


def default_encoder(
    name: str, log: data.Interactions, dim: int, initializer: Any = None
) -> models.Encoder:
    """The encoder of that name with its default flags, and perhaps other initial values."""
    entry = ENCODERS[name]
    defaults = {flag: of.default for flag, of in entry.flags.items()}
    return entry.make(log, dim=dim, similarity="inner", initializer=initializer, **defaults)
