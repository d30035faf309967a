"""Registry of encoders by command-line name.

A new encoder requires an :class:`EncoderEntry` in a file of this folder and an entry in
:data:`ENCODERS`.
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
    """Creates the chosen encoder for training on ``log``, with embeddings of width ``dim``.

    Raises:
      ValueError: If a flag is not supported by the encoder.
    """
    values = settle("encoder", options, ENCODERS, swept)
    make = ENCODERS[options.encoder].make
    return make(log, dim=dim, similarity=options.similarity or "inner", **values)


def default_encoder(
    name: str, log: data.Interactions, dim: int, initializer: Any = None
) -> models.Encoder:
    """Creates an encoder by name with its default flags and, optionally, another initializer."""
    entry = ENCODERS[name]
    defaults = {flag: of.default for flag, of in entry.flags.items()}
    return entry.make(log, dim=dim, similarity="inner", initializer=initializer, **defaults)
