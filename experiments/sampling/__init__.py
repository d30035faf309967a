"""The samplers by their names on the command line.

A new one is a :class:`SamplerEntry` in a file of this folder, and a line in :data:`SAMPLERS`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from crl_jax import data, samplers

from .._options import SamplerOptions
from .._registry import settle
from . import bayesian, simple
from ._entry import Context as Context
from ._entry import SamplerEntry as SamplerEntry

SAMPLERS: Mapping[str, SamplerEntry] = {
    "rns": simple.RNS,
    "pns": simple.PNS,
    "aobpr": simple.AOBPR,
    "dns": simple.DNS,
    "srns": simple.SRNS,
    "in-batch": simple.IN_BATCH,
    "bns": bayesian.BNS,
    "bns-posterior": bayesian.POSTERIOR,
}


def resolve_sampler(
    options: SamplerOptions,
    context: Context,
    swept: tuple[str, ...] = (),
    own: Callable[[data.Interactions], samplers.Sampler] | None = None,
) -> tuple[samplers.Sampler, dict[str, Any]]:
    """Makes the chosen sampler.

    Args:
      options: The flags.
      context: What it draws for.
      swept: Names of numbers that a sweep sets.
      own: Makes the negatives of a loss that is about certain ones; no others will do.

    Returns:
      The sampler, and the values of its flags.

    Raises:
      ValueError: If a flag was given that the sampler does not take, or the data lack what its
        prior needs.
    """
    values = settle("sampler", options, SAMPLERS, swept)
    if own is not None:
        if options.sampler != "rns":
            raise ValueError(f"--sampler {options.sampler}: this loss draws negatives of its own.")
        return own(context.train), values
    return SAMPLERS[options.sampler].make(context, **values), values
