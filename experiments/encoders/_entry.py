"""What the command line needs to know of an encoder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crl_jax import models

from .._registry import Entry

Build = Callable[[Any], Any]
"""Makes the module from random streams."""


@dataclass(frozen=True, kw_only=True)
class EncoderEntry(Entry):
    """An encoder.

    Attributes:
      make: ``make(log, dim, deviation=None, **values)``, the values by the names of the flags. A
        deviation asks for initial values of that normal law, in place of Xavier's.
      serve: ``serve(params)``: vectors whose inner products are the scores.
    """

    make: Callable[..., Build]
    serve: Callable[[Any], models.Tables]
