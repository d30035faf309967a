"""What the command line needs to know of an encoder."""

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


def entry_of(source: type[models.Encoder]) -> EncoderEntry:
    """An encoder that is made by ``from_interactions(log, dim=…, …)``, or from the two sizes."""
    build: Any = getattr(source, "from_interactions", None)
    flags = declared(build or source)
    own = {name: of for name, of in flags.items() if name not in ("dim", "similarity")}

    def make(log: data.Interactions, *, initializer: Any = None, **values: Any) -> models.Encoder:
        given = values | ({} if initializer is None else {"initializer": initializer})
        return source(log.n_users, log.n_items, **given) if build is None else build(log, **given)

    return EncoderEntry(source=source, hyperparams=own, make=make)
