"""What the command line needs to know of an encoder."""

from collections.abc import Callable
from dataclasses import dataclass

from crl_jax import models, summary

from .._registry import Entry


@dataclass(frozen=True, kw_only=True)
class EncoderEntry(Entry):
    """An encoder of users and items on the command line.

    Attributes:
      source: Its class, whose docstring is the help text.
      make: ``make(log, *, dim, similarity, initializer, **values)``, the values by the names of the
        flags; without an initializer the encoder has its own.
    """

    help: str = ""
    source: type[models.Encoder]
    make: Callable[..., models.Encoder]

    def __post_init__(self) -> None:
        object.__setattr__(self, "help", self.help or summary(self.source))

    @property
    def by_rows(self) -> bool:
        """See :class:`crl_jax.models.Encoder`."""
        return self.source.by_rows

    @property
    def sweepable(self) -> frozenset[str]:
        """None: all points of a sweep train the one encoder."""
        return frozenset()
