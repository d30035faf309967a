"""Bayesian negative sampling and its priors.

A new prior requires a function of the :class:`Context` and an entry in :data:`PRIORS`.
"""

from collections.abc import Callable
from typing import Any, Literal

from crl_jax import hyperparams, samplers

from .._occupations import occupations
from .._ranges import COUNT_OR_NONE
from .._registry import count, declared, words
from ._entry import Context, SamplerEntry

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
    **numbers: Any,
) -> samplers.BNS:
    return samplers.BNS(
        PRIORS[prior](context),
        candidates=candidates,
        ecdf_samples=ecdf_samples or None,
        criterion=criterion,
        **numbers,
    )


def _staged(
    context: Context,
    *,
    rns_epochs: int,
    **values: Any,
) -> samplers.Sampler:
    bns = _bns(context, **values)
    return samplers.StagedSampler(samplers.RNS(), bns, rns_epochs) if rns_epochs else bns


_SHARED = {
    **declared(samplers.BNS, "candidates"),
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
BNS = SamplerEntry(
    source=samplers.BNS,
    hyperparams={
        **_SHARED,
        **declared(samplers.BNS, "risk_lambda", "risk_lambda_slope", "risk_lambda_min"),
        "rns_epochs": count(0, "Epochs of uniform negatives before bns begins", COUNT_OR_NONE),
    },
    make=_staged,
)
POSTERIOR = SamplerEntry(
    help="the candidate most probably a true negative",
    source=samplers.BNS,
    hyperparams=_SHARED,
    make=lambda context, **values: _bns(context, "posterior", **values),
)
