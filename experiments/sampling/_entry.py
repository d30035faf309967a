"""What the command line needs to know of a sampler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from crl_jax import data, samplers

from .._registry import Entry


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
    """A sampler.

    Attributes:
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
