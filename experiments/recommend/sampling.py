"""Registry of samplers by command-line name.

A sampler of :mod:`crl_jax.samplers` is discovered automatically if it is constructed from the
training part, or from hyper-parameters that have defaults. A sampler that needs more, or another
name, requires a :class:`SamplerEntry` in :data:`SAMPLERS`. A new prior of Bayesian negative
sampling requires a function of the :class:`Context` and an entry in :data:`PRIORS`.
"""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from crl_jax import data, hyperparams, samplers

from .._ranges import COUNT_OR_NONE
from .._registry import Entry, Registry, count, declared, resolve_flags, words
from ._occupations import occupations
from ._options import SamplerOptions


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
            hyperparam.field or name: numbers[name]
            for name, hyperparam in self.hyperparams.items()
            if hyperparam.sweeps and name in numbers
        }


def make_entry(
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
        numbers = {hyperparam.field or name: values[name] for name, hyperparam in own.items()}
        return source(**numbers) if build is None else build(context.train, **numbers)

    return SamplerEntry(source=source, hyperparams=own, make=make)


def discover(taken: Collection[type[samplers.Sampler]]) -> dict[str, SamplerEntry]:
    """Finds the remaining samplers of the library that require at most the training part."""
    entries = {}
    for name, source in vars(samplers).items():
        is_sampler = isinstance(source, type) and issubclass(source, samplers.Sampler)
        if not is_sampler or inspect.isabstract(source) or source in taken:
            continue
        required = [
            p.name for p in inspect.signature(source).parameters.values() if p.default is p.empty
        ]
        if not required or hasattr(source, "from_interactions"):
            entries[name.lower()] = make_entry(source)
    return entries


PRIORS: dict[str, Callable[[Context], samplers.Prior]] = {
    "popularity": lambda context: samplers.popularity_prior(context.train),
    "uniform": lambda context: samplers.uniform_prior(context.train.n_items),
    "occupation": lambda context: samplers.group_prior(
        context.train, occupations(context.source, context.train)
    ),
}


def _bns(
    context: Context,
    criterion: Literal["risk", "posterior"] = "risk",
    *,
    prior: str,
    candidates: int,
    ecdf_samples: int,
    ecdf: Literal["catalogue", "batch"],
    **numbers: Any,
) -> samplers.BNS:
    return samplers.BNS(
        PRIORS[prior](context),
        candidates=candidates,
        ecdf_samples=ecdf_samples or None,
        criterion=criterion,
        ecdf=ecdf,
        **numbers,
    )


def _staged(context: Context, *, rns_epochs: int, **values: Any) -> samplers.Sampler:
    bns = _bns(context, **values)
    return samplers.StagedSampler(samplers.RNS(), bns, rns_epochs) if rns_epochs else bns


_BNS_FLAGS = {
    **declared(samplers.BNS, "candidates", "ecdf"),
    "prior": words(
        "popularity",
        "Prior of a false negative; occupation reads u.user in the folder of the data",
        tuple(PRIORS),
    ),
    "ecdf_samples": count(
        samplers.BNS.ecdf_samples or 0,
        f"{hyperparams(samplers.BNS)['ecdf_samples'].help}; 0 for all items",
        COUNT_OR_NONE,
    ),
}


def _srns(context: Context, candidates: int, variance_weight: Any) -> samplers.SRNS:
    if candidates < context.n_neg:
        raise ValueError(
            f"--candidates must be at least the {context.n_neg} negatives of --n-neg, "
            f"got {candidates}."
        )
    return samplers.SRNS(memory=candidates, variance_weight=variance_weight)


_EXPLICIT: Mapping[str, SamplerEntry] = {
    "rns": make_entry(samplers.RNS),
    "pns": make_entry(samplers.PNS),
    "aobpr": make_entry(samplers.AOBPR, flags={"scale": "rank_scale"}),
    "dns": make_entry(samplers.DNS),
    "srns": SamplerEntry(
        source=samplers.SRNS,
        hyperparams=declared(
            samplers.SRNS, "memory", "variance_weight", flags={"memory": "candidates"}
        ),
        make=_srns,
    ),
    "in-batch": make_entry(samplers.InBatch, flags={"mask": "batch_mask", "correction": "log_q"}),
    "shared": make_entry(
        samplers.SharedRNS, flags={"mask": "pool_mask", "anchors": "pool_anchors"}
    ),
    "bns": SamplerEntry(
        source=samplers.BNS,
        hyperparams={
            **_BNS_FLAGS,
            **declared(samplers.BNS, "risk_lambda", "risk_lambda_slope", "risk_lambda_min"),
            "rns_epochs": count(0, "Epochs of uniform negatives before bns begins", COUNT_OR_NONE),
        },
        make=_staged,
    ),
    "bns-posterior": SamplerEntry(
        help="the candidate most probably a true negative",
        source=samplers.BNS,
        hyperparams=_BNS_FLAGS,
        make=lambda context, **values: _bns(context, "posterior", **values),
    ),
}
SAMPLERS = Registry(
    {**_EXPLICIT, **discover({entry.source for entry in _EXPLICIT.values()})}, make=make_entry
)


def resolve_sampler_flags(
    options: SamplerOptions,
    swept: tuple[str, ...],
    own: Callable[[data.Interactions], samplers.Sampler] | None,
) -> dict[str, Any]:
    """Returns the flag values of the chosen sampler, without access to the data.

    Args:
      options: The flags.
      swept: Names of the numbers set by a sweep.
      own: Factory of the sampler that the loss prescribes; no other sampler is supported then.

    Raises:
      ValueError: If a flag is not supported by the sampler, or the loss supports no other sampler.
    """
    values = resolve_flags("sampler", options, SAMPLERS, swept)
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
      swept: See :func:`resolve_sampler_flags`.
      own: See :func:`resolve_sampler_flags`.

    Returns:
      The sampler, and the values of its flags.

    Raises:
      ValueError: See :func:`resolve_sampler_flags`; also if the data lack what the prior requires,
        or the sampler has no field for a swept number.
    """
    values = resolve_sampler_flags(options, swept, own)
    if own is not None:
        return own(context.train), values
    entry = SAMPLERS[options.sampler]
    sampler = entry.make(context, **values)
    _check_fields(sampler, entry.swept_fields({name: name for name in swept}))
    return sampler, values


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
