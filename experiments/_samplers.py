"""The samplers by their names on the command line, and what they need to know of the data."""

import dataclasses
from collections.abc import Callable
from typing import Any

from crl_jax import data, samplers

from ._config import SamplerOptions
from ._flags import flag
from ._occupations import occupations

# What each sampler takes; the rest is refused.
_NUMBERS: dict[str, tuple[str, ...]] = {
    "rns": (),
    "pns": (),
    "aobpr": ("rank_scale",),
    "dns": ("candidates",),
    "srns": ("candidates", "variance_weight"),
    "bns": (
        "candidates",
        "gain",
        "gain_slope",
        "gain_least",
        "prior",
        "ecdf_samples",
        "rns_epochs",
    ),
    "bns-posterior": ("candidates", "prior", "ecdf_samples"),
}
SWEEPABLE = ("rank_scale", "variance_weight", "gain")
"""Numbers of samplers that a sweep can set; the others change shapes."""
_FIELDS = {"rank_scale": "scale"}
_PRIOR = "popularity"


def resolve_sampler(
    options: SamplerOptions,
    train: data.Interactions,
    source: str,
    swept: tuple[str, ...] = (),
    own: Callable[[data.Interactions], samplers.Sampler] | None = None,
) -> samplers.Sampler:
    """Makes the chosen sampler for training on ``train``.

    Args:
      options: The flags.
      train: What is trained on; popularity and the like are counted in it.
      source: Where the data came from, for ``--prior occupation``.
      swept: Names of numbers that a sweep sets.
      own: Makes the negatives of a loss that is about certain ones; no others will do.

    Raises:
      ValueError: If a flag was given that the sampler has no use for, or the data lack what its
        prior needs.
    """
    name, known = options.sampler, _NUMBERS[options.sampler]
    given: dict[str, Any] = {
        number: value
        for number in {number for numbers in _NUMBERS.values() for number in numbers}
        if (value := getattr(options, number)) is not None
    }
    for number in sorted({*given, *(set(swept) & set(SWEEPABLE))}):
        if number not in known:
            takes = f"it takes {', '.join(map(flag, known))}" if known else "it takes no numbers"
            raise ValueError(f"--sampler {name} has no {flag(number)}; {takes}.")
    if own is not None:
        if name != "rns":
            raise ValueError(f"--sampler {name}: this loss draws negatives of its own.")
        return own(train)
    if name == "srns" and "candidates" in given:
        given["memory"] = given.pop("candidates")
    prior, first = given.pop("prior", _PRIOR), given.pop("rns_epochs", 0)
    arguments: dict[str, Any] = {_FIELDS.get(name, name): value for name, value in given.items()}
    if arguments.get("ecdf_samples") == 0:
        del arguments["ecdf_samples"]
    match name:
        case "rns":
            return samplers.RNS()
        case "pns":
            return samplers.PNS.of(train)
        case "aobpr":
            return samplers.AOBPR(**arguments)
        case "dns":
            return samplers.DNS(**arguments)
        case "srns":
            return samplers.SRNS(**arguments)
    criterion = "posterior" if name == "bns-posterior" else "risk"
    bns = samplers.BNS(PRIORS[prior](train, source), criterion=criterion, **arguments)
    return samplers.Staged(samplers.RNS(), bns, first) if first else bns


def settle(
    options: SamplerOptions, sampler: samplers.Sampler, swept: tuple[str, ...] = ()
) -> SamplerOptions:
    """The flags with what is used of their defaults filled in, but for what a sweep sets.

    Args:
      options: The flags.
      sampler: What :func:`resolve_sampler` made of them.
      swept: Names of numbers that a sweep sets.
    """
    drawn = sampler.then if isinstance(sampler, samplers.Staged) else sampler
    fields = _FIELDS | ({"candidates": "memory"} if options.sampler == "srns" else {})
    settled: dict[str, Any] = {}
    for name in _NUMBERS[options.sampler]:
        match name:
            case "prior":
                settled[name] = options.prior or _PRIOR
            case "rns_epochs":
                settled[name] = options.rns_epochs or 0
            case "ecdf_samples":
                settled[name] = getattr(drawn, name) or 0
            case _ if name not in swept:
                settled[name] = getattr(drawn, fields.get(name, name))
    return dataclasses.replace(options, **settled)


def sampler_knobs(numbers: dict[str, Any]) -> dict[str, Any]:
    """Those of ``numbers`` that belong to a sampler, by the names of its fields."""
    return {_FIELDS.get(name, name): numbers[name] for name in SWEEPABLE if name in numbers}


PRIORS: dict[str, Callable[[data.Interactions, str], samplers.Prior]] = {
    "popularity": lambda train, _: samplers.popularity_prior(train),
    "uniform": lambda train, _: samplers.uniform_prior(train.n_items),
    "occupation": lambda train, source: samplers.group_prior(train, occupations(source, train)),
}
