"""Registry of samplers by command-line name.

A sampler of :mod:`crl_jax.samplers` is discovered automatically if it is constructed from the
training part, or from hyper-parameters that have defaults. A sampler that needs more, or another
name, requires a :class:`SamplerEntry` in a file of this folder and an entry in :data:`SAMPLERS`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from crl_jax import data, samplers

from .._options import SamplerOptions
from .._registry import Registry, settle
from . import bayesian, simple
from ._entry import Context as Context
from ._entry import SamplerEntry as SamplerEntry
from ._entry import discover, entry_of

_CHOSEN: Mapping[str, SamplerEntry] = {
    "rns": simple.RNS,
    "pns": simple.PNS,
    "aobpr": simple.AOBPR,
    "dns": simple.DNS,
    "srns": simple.SRNS,
    "in-batch": simple.IN_BATCH,
    "shared": simple.SHARED,
    "bns": bayesian.BNS,
    "bns-posterior": bayesian.POSTERIOR,
}
SAMPLERS = Registry(
    {**_CHOSEN, **discover({entry.source for entry in _CHOSEN.values()})}, make=entry_of
)


def settle_sampler(
    options: SamplerOptions,
    swept: tuple[str, ...] = (),
    own: Callable[[data.Interactions], samplers.Sampler] | None = None,
) -> dict[str, Any]:
    """Returns the flag values of the chosen sampler, without access to the data.

    Args:
      options: The flags.
      swept: Names of the numbers set by a sweep.
      own: Factory of the sampler that the loss prescribes; no other sampler is supported then.

    Raises:
      ValueError: If a flag is not supported by the sampler, or the loss supports no other sampler.
    """
    values = settle("sampler", options, SAMPLERS, swept)
    if own is not None and options.sampler != "rns":
        raise ValueError(
            f"--sampler {options.sampler}: this loss draws its own negatives, or needs none."
        )
    return values


def resolve_sampler(
    options: SamplerOptions,
    context: Context,
    swept: tuple[str, ...] = (),
    own: Callable[[data.Interactions], samplers.Sampler] | None = None,
) -> tuple[samplers.Sampler, dict[str, Any]]:
    """Creates the chosen sampler.

    Args:
      options: The flags.
      context: The data to sample from.
      swept: See :func:`settle_sampler`.
      own: See :func:`settle_sampler`.

    Returns:
      The sampler, and the values of its flags.

    Raises:
      ValueError: See :func:`settle_sampler`; also if the data lack what the prior requires, or the
        sampler has no field for a swept number.
    """
    values = settle_sampler(options, swept, own)
    if own is not None:
        return own(context.train), values
    entry = SAMPLERS[options.sampler]
    made = entry.make(context, **values)
    _check_fields(made, entry.swept_fields({name: name for name in swept}))
    return made, values


def _check_fields(sampler: samplers.Sampler, swept: Mapping[str, str]) -> None:
    """Raises ``ValueError`` unless the sampler has all fields in ``swept``, which maps to flags."""
    fields = [f.name for f in dataclasses.fields(sampler) if not f.metadata.get("static")]
    for field, name in swept.items():
        if field.partition(".")[0] not in fields:
            raise ValueError(
                f"--sweep {name}: expected a field of {type(sampler).__name__} (it has "
                f"{', '.join(fields) or 'none'}), got {field}. Mark the flag sweeps=False, or "
                "name the field that it sets by field=."
            )
