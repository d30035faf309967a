"""Pairwise losses, which rank a positive above a negative."""

from typing import Any

import jax.numpy as jnp

from crl_jax import data, losses, samplers

from ._objective import Objective


@losses.per_anchor_loss
def group_bpr(pos: Any, neg: Any, *, rho: Any, **rest: Any) -> Any:
    """GBPR on the array used in training, with the positive's score first and its group's after."""
    return losses.gbpr(pos[:, 0], neg, group=pos[:, 1:], rho=rho, **rest)


@losses.per_anchor_loss
def likely_and_unpopular(pos: Any, neg: Any, *, balance: Any, **rest: Any) -> Any:
    """MPR with two negatives, of which the first is likely to be liked."""
    return losses.mpr(pos, neg[:, 1:], likely=neg[:, 0], balance=balance, **rest)


def popular_and_not(log: data.Interactions) -> samplers.MixedSampler:
    """Returns a sampler of one negative by popularity and one by inverse popularity."""
    counts = jnp.asarray(log.item_counts, jnp.float32)
    return samplers.MixedSampler(
        (samplers.PNS.from_interactions(log), samplers.PNS(1 / (1 + counts)))
    )


BPR = Objective(loss=losses.bpr, n_neg=1)
BCE = Objective(loss=losses.bce, n_neg=1)
DPL = Objective(loss=losses.debiased_pairwise, n_pos=5)
GBPR = Objective(loss=group_bpr, source=losses.gbpr, n_neg=1, n_group=3)
MPR = Objective(
    loss=likely_and_unpopular,
    source=losses.mpr,
    n_neg=2,
    n_pos=2,
    sampler=popular_and_not,
)
