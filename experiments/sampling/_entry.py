"""What the command line needs to know of a sampler."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from crl_jax import data, samplers

from .._registry import Entry, declared


class Context(NamedTuple):
    """What negatives are drawn for.

    Attributes:
      train: What is trained on; popularity and the like are counted in it.
      source: Where the data came from.
      n_neg: Negatives per interaction.
    """

    train: data.Interactions
    source: str
    n_neg: int


@dataclass(frozen=True, kw_only=True)
class SamplerEntry(Entry):
    """A sampler on the command line.

    Attributes:
      source: Its class.
      make: ``make(context, **values)``, the values by the names of the flags. Raises
        ``ValueError`` if they do not suit the data.
    """

    make: Callable[..., samplers.Sampler]

    def swept_fields(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """Those of ``numbers`` that are flags of this sampler, by the fields that they set."""
        return {
            of.field or name: numbers[name]
            for name, of in self.hyperparams.items()
            if of.sweeps and name in numbers
        }


def entry_of(
    source: type[samplers.Sampler],
    *,
    defaults: Mapping[str, Any] | None = None,
    flags: Mapping[str, str] | None = None,
) -> SamplerEntry:
    """A sampler that is made from the training part, or from its hyper-parameters alone.

    Args:
      source: The class; its ``from_interactions`` is called if it has one.
      defaults: As for :func:`declared`.
      flags: As for :func:`declared`.
    """
    build: Any = getattr(source, "from_interactions", None)
    own = declared(source, defaults=defaults, flags=flags)

    def make(context: Context, **values: Any) -> samplers.Sampler:
        numbers = {of.field or name: values[name] for name, of in own.items()}
        return source(**numbers) if build is None else build(context.train, **numbers)

    return SamplerEntry(source=source, hyperparams=own, make=make)


def discover(taken: Collection[type[samplers.Sampler]]) -> dict[str, SamplerEntry]:
    """Finds the other samplers of the library that need the training part at most."""
    found = {}
    for name, source in vars(samplers).items():
        is_sampler = isinstance(source, type) and issubclass(source, samplers.Sampler)
        if not is_sampler or inspect.isabstract(source) or source in taken:
            continue
        required = [
            p.name for p in inspect.signature(source).parameters.values() if p.default is p.empty
        ]
        if not required or hasattr(source, "from_interactions"):
            found[name.lower()] = entry_of(source)
    return found
