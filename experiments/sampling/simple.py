"""Samplers by chance, popularity, rank, the best of some candidates, or a memory of them."""

from typing import Any

from crl_jax import samplers

from .._ranges import NOT_NEGATIVE, POSITIVE, Range
from .._registry import Hyperparam, count, words
from ._entry import Context, SamplerEntry

RNS = SamplerEntry(help="uniform", make=lambda context: samplers.RNS())
PNS = SamplerEntry(
    help="by popularity", make=lambda context: samplers.PNS.from_interactions(context.train)
)
AOBPR = SamplerEntry(
    help="by rank",
    hyperparams={
        "rank_scale": Hyperparam(
            samplers.AOBPR.scale,
            "Ranks after which the probability has fallen to 1/e",
            POSITIVE,
            field="scale",
        )
    },
    make=lambda context, rank_scale: samplers.AOBPR(rank_scale),
)


IN_BATCH = SamplerEntry(
    help="the items of the batch, whatever --n-neg is",
    hyperparams={
        "batch_mask": words(
            samplers.InBatch.mask,
            "What of the batch is no negative: what the user has taken (seen), the own place "
            "(self), or nothing (none)",
            ("seen", "self", "none"),
        ),
        "log_q": Hyperparam(
            0.0,
            "How much scores are corrected for popular items coming up more often: not at all (0) "
            "to as though all came up alike (1)",
            Range(0, 1),
            field="correction",
        ),
    },
    make=lambda context, batch_mask, log_q: samplers.InBatch.from_interactions(
        context.train, batch_mask, log_q
    ),
)


def _number(default: int | None) -> int:
    """A default for which None would do too, and is not chosen."""
    assert default is not None
    return default


SHARED = SamplerEntry(
    help="uniform, --n-neg for many anchors at once",
    hyperparams={
        "pool_mask": words(
            samplers.SharedRNS.mask,
            "What of the pool is no negative: what the user has taken (seen), or nothing (none)",
            ("seen", "none"),
        ),
        "pool_anchors": count(
            _number(samplers.SharedRNS.anchors),
            "How many anchors that follow each other in a batch share a pool",
        ),
    },
    make=lambda context, pool_mask, pool_anchors: samplers.SharedRNS(pool_mask, pool_anchors),
)


def candidates(default: int | None) -> Hyperparam:
    """The number of candidates that a sampler chooses among."""
    return count(_number(default), "Candidates per negative; for srns items in memory")


DNS = SamplerEntry(
    help="the best of some candidates",
    hyperparams={"candidates": candidates(samplers.DNS.candidates)},
    make=lambda context, candidates: samplers.DNS(candidates),
)


def _srns(context: Context, candidates: int, variance_weight: Any) -> samplers.SRNS:
    if candidates < context.n_neg:
        raise ValueError(
            f"--candidates must be at least the {context.n_neg} negatives of --n-neg, "
            f"got {candidates}."
        )
    return samplers.SRNS(memory=candidates, variance_weight=variance_weight)


SRNS = SamplerEntry(
    help="a memory of varying ones",
    hyperparams={
        "candidates": candidates(samplers.SRNS.memory),
        "variance_weight": Hyperparam(
            samplers.SRNS.variance_weight, "Weight of the deviation of past scores", NOT_NEGATIVE
        ),
    },
    make=_srns,
)
