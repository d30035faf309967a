"""The encoders by their names on the command line.

A new one is an :class:`EncoderEntry` in a file of this folder, and a line in :data:`ENCODERS`.
"""

from collections.abc import Mapping

from crl_jax import data

from .._options import EncoderOptions
from .._registry import settle
from . import factors
from ._entry import Build
from ._entry import EncoderEntry as EncoderEntry

ENCODERS: Mapping[str, EncoderEntry] = {
    "mf": factors.MF,
}


def resolve_encoder(
    options: EncoderOptions,
    log: data.Interactions,
    dim: int,
    swept: tuple[str, ...] = (),
) -> Build:
    """Makes the chosen encoder for training on ``log``, with vectors of width ``dim``.

    Raises:
      ValueError: If a flag was given that the encoder does not take.
    """
    values = settle("encoder", options, ENCODERS, swept)
    return ENCODERS[options.encoder].make(log, dim, **values)


def default_encoder(
    name: str, log: data.Interactions, dim: int, deviation: float | None = None
) -> Build:
    """The encoder of that name with its default flags, see :class:`EncoderEntry`."""
    entry = ENCODERS[name]
    defaults = {flag: of.default for flag, of in entry.flags.items()}
    return entry.make(log, dim, deviation, **defaults)
