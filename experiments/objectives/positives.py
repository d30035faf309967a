"""Losses that look at positives alone."""

from crl_jax import data, samplers, tasks

from .._registry import declared
from ._objective import Objective


def unread(log: data.Interactions) -> samplers.Sampler:
    """Training draws a negative whatever the loss; this one is not looked at."""
    del log
    return samplers.RNS()


DIRECTAU = Objective(
    help="alignment of positives, uniformity of users and of items (DirectAU)",
    loss=tasks.align_positives,
    n_neg=1,
    sampler=unread,
    term=tasks.Uniformity,
    of_term=declared(tasks.Uniformity, "weight", flags={"weight": "gamma"}),
    similarities=("cosine", "inner"),
)
