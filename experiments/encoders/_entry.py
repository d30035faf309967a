"""Command-line entry of an encoder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crl_jax import data, models

from .._registry import Entry, declared


@dataclass(frozen=True, kw_only=True)
class EncoderEntry(Entry):
    """An encoder of users and items on the command line.

    Attributes:
      source: Its class.
      make: ``make(log, *, dim, similarity, initializer, **values)``, with values keyed by flag
        name; without an initializer the encoder uses its own.
    """

    make: Callable[..., models.Encoder]

    @property
    def by_rows(self) -> bool:
        """See :class:`crl_jax.models.Encoder`."""
        return self.source.by_rows

    @property
    def sweepable(self) -> frozenset[str]:
        """Always empty: all points of a sweep train the same encoder."""
        return frozenset()


def entry_of(source: type[models.Encoder]) -> EncoderEntry:
    """Returns the entry of an encoder with ``from_interactions(log, dim=…, …)``.

    Without this method, the constructor is called with the numbers of users and items.
    """
    build: Any = getattr(source, "from_interactions", None)
    flags = declared(build or source)
    own = {name: of for name, of in flags.items() if name not in ("dim", "similarity")}

    def make(log: data.Interactions, *, initializer: Any = None, **values: Any) -> models.Encoder:
        given = values | ({} if initializer is None else {"initializer": initializer})
        return source(log.n_users, log.n_items, **given) if build is None else build(log, **given)

    return EncoderEntry(source=source, hyperparams=own, make=make)
