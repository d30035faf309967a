"""Losses on positives only."""

from crl_jax import data, samplers, tasks

from .._registry import declared
from ._objective import Objective


def unread(log: data.Interactions) -> samplers.Sampler:
    """Returns a placeholder sampler; training always draws negatives, which the loss ignores."""
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
