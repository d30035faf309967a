"""Uniform, popularity-based, rank-based, dynamic (DNS) and memory-based (SRNS) samplers."""

from typing import Any

from crl_jax import samplers

from .._registry import declared
from ._entry import Context, SamplerEntry, entry_of

RNS = entry_of(samplers.RNS)
PNS = entry_of(samplers.PNS)
DNS = entry_of(samplers.DNS)
AOBPR = entry_of(samplers.AOBPR, flags={"scale": "rank_scale"})
IN_BATCH = entry_of(
    samplers.InBatch,
    defaults={"correction": 0.0},
    flags={"mask": "batch_mask", "correction": "log_q"},
)
SHARED = entry_of(samplers.SharedRNS, flags={"mask": "pool_mask", "anchors": "pool_anchors"})


def _srns(context: Context, candidates: int, variance_weight: Any) -> samplers.SRNS:
    if candidates < context.n_neg:
        raise ValueError(
            f"--candidates must be at least the {context.n_neg} negatives of --n-neg, "
            f"got {candidates}."
        )
    return samplers.SRNS(memory=candidates, variance_weight=variance_weight)


SRNS = SamplerEntry(
    source=samplers.SRNS,
    hyperparams=declared(
        samplers.SRNS, "memory", "variance_weight", flags={"memory": "candidates"}
    ),
    make=_srns,
)
