"""What the command line needs to know of an encoder."""

from collections.abc import Callable
from dataclasses import dataclass

from crl_jax import models

from .._registry import Entry


@dataclass(frozen=True, kw_only=True)
class EncoderEntry(Entry):
    """An encoder of users and items on the command line.

    Attributes:
      source: Its class.
      make: ``make(log, *, dim, similarity, initializer, **values)``, the values by the names of the
        flags; without an initializer the encoder has its own.
    """

    make: Callable[..., models.Encoder]

    @property
    def by_rows(self) -> bool:
        """See :class:`crl_jax.models.Encoder`."""
        return self.source.by_rows

    @property
    def sweepable(self) -> frozenset[str]:
        """None: all points of a sweep train the one encoder."""
        return frozenset()
