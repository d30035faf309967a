"""Command-line entry of a sampler."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from crl_jax import data, samplers

from .._registry import Entry, declared


class Context(NamedTuple):
    """Data that a sampler is constructed from.

    Attributes:
      train: The training part, from which popularity and similar statistics are computed.
      source: Path or name of the dataset.
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
      make: ``make(context, **values)``, with values keyed by flag name. Raises ``ValueError`` if
        they are invalid for the data.
    """

    make: Callable[..., samplers.Sampler]

    def swept_fields(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """Maps the swept ``numbers`` that are flags of this sampler to the fields that they set."""
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
    """Returns the entry of a sampler constructed from the training part or hyper-parameters only.

    Args:
      source: The class; its ``from_interactions`` is called if it has one.
      defaults: See :func:`declared`.
      flags: See :func:`declared`.
    """
    build: Any = getattr(source, "from_interactions", None)
    own = declared(source, defaults=defaults, flags=flags)

    def make(context: Context, **values: Any) -> samplers.Sampler:
        numbers = {of.field or name: values[name] for name, of in own.items()}
        return source(**numbers) if build is None else build(context.train, **numbers)

    return SamplerEntry(source=source, hyperparams=own, make=make)


def discover(taken: Collection[type[samplers.Sampler]]) -> dict[str, SamplerEntry]:
    """Finds the remaining samplers of the library that require at most the training part."""
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
