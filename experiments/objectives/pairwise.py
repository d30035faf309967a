"""Losses of pairs: a positive should score above a negative."""

from typing import Any

import jax.numpy as jnp

from crl_jax import data, losses, samplers

from .._ranges import SHARE, Range
from .._registry import Hyperparam
from ._objective import Objective

TAU_PLUS = Hyperparam(
    0.05, "Share of positives among the unlabelled items (τ⁺)", Range(0, 1, high_open=True)
)


@losses.per_anchor_loss
def group_bpr(pos: Any, neg: Any, *, rho: Any, **rest: Any) -> Any:
    """GBPR of the scores that training gives: the own one, then those of the group."""
    return losses.gbpr(pos[:, 0], neg, group=pos[:, 1:], rho=rho, **rest)


@losses.per_anchor_loss
def likely_and_unpopular(pos: Any, neg: Any, *, balance: Any, **rest: Any) -> Any:
    """MPR of two negatives, of which the first is likely to be liked."""
    return losses.mpr(pos, neg[:, 1:], likely=neg[:, 0], balance=balance, **rest)


def popular_and_not(log: data.Interactions) -> samplers.MixedSampler:
    """A negative by popularity, and one by its inverse."""
    counts = jnp.asarray(log.item_counts, jnp.float32)
    return samplers.MixedSampler(
        (samplers.PNS.from_interactions(log), samplers.PNS(1 / (1 + counts)))
    )


BPR = Objective(help="the baseline of ranking", loss=losses.bpr, n_neg=1)
BCE = Objective(help="scores become probabilities", loss=losses.bce, n_neg=1)
DPL = Objective(
    help="BPR without the bias of false negatives",
    loss=losses.debiased_pairwise,
    hyperparams={
        "tau_plus": TAU_PLUS,
        "floor": Hyperparam(1e-2, "Least value of the estimated probability", SHARE),
    },
    n_pos=5,
)
GBPR = Objective(
    help="BPR with a group of users of the same item",
    loss=group_bpr,
    hyperparams={"rho": Hyperparam(0.4, "Share of the group in a positive's score", SHARE)},
    n_neg=1,
    n_group=3,
)
MPR = Objective(
    help="a likely item between the positive and the negative",
    loss=likely_and_unpopular,
    hyperparams={
        "balance": Hyperparam(0.5, "Weight of the positive's lead over a likely item", SHARE)
    },
    n_neg=2,
    n_pos=2,
    sampler=popular_and_not,
)
