"""Bayesian negative sampling, and the priors it takes.

A new prior is a function of the :class:`Context` and a line in :data:`PRIORS`.
"""

from collections.abc import Callable
from typing import Any, Literal

from crl_jax import samplers

from .._occupations import occupations
from .._ranges import COUNT_OR_NONE, NOT_NEGATIVE
from .._registry import Hyperparam, count, words
from ._entry import Context, SamplerEntry
from .simple import candidates as candidates_flag

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
    "candidates": candidates_flag(samplers.BNS.candidates),
    "prior": words(
        "popularity",
        "Prior of a false negative; occupation reads u.user beside the data",
        tuple(PRIORS),
    ),
    "ecdf_samples": count(
        samplers.BNS.ecdf_samples or 0,
        "Items that the distribution of scores is taken over; 0 for all",
        COUNT_OR_NONE,
    ),
}
BNS = SamplerEntry(
    help="the least risky of some candidates",
    hyperparams={
        **_SHARED,
        "risk_lambda": Hyperparam(
            samplers.BNS.risk_lambda,
            "What a true negative gains where a false one loses 1 (λ)",
            NOT_NEGATIVE,
        ),
        "risk_lambda_slope": Hyperparam(
            samplers.BNS.risk_lambda_slope,
            "What λ loses with every epoch",
            NOT_NEGATIVE,
            sweeps=False,
        ),
        "risk_lambda_least": Hyperparam(
            samplers.BNS.risk_lambda_least, "Where λ stops falling", NOT_NEGATIVE, sweeps=False
        ),
        "rns_epochs": count(0, "Epochs of uniform negatives before bns begins", COUNT_OR_NONE),
    },
    make=_staged,
)
POSTERIOR = SamplerEntry(
    help="the surest of some candidates",
    hyperparams=_SHARED,
    make=lambda context, **values: _bns(context, "posterior", **values),
)
