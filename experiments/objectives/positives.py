"""Losses that look at positives alone."""

from crl_jax import data, samplers, tasks

from .._ranges import NOT_NEGATIVE
from .._registry import Hyperparam
from ._objective import Objective


def unread(log: data.Interactions) -> samplers.Sampler:
    """Training draws a negative whatever the loss; this one is not looked at."""
    del log
    return samplers.RNS()


DIRECTAU = Objective(
    help="positives alike, users and items apart from their own kind (DirectAU)",
    loss=tasks.align_positives,
    has_temperature=False,
    n_neg=1,
    sampler=unread,
    term=tasks.Uniformity,
    of_term={
        "gamma": Hyperparam(
            1.0, "How much it counts that users and items are apart", NOT_NEGATIVE, field="weight"
        )
    },
    similarities=("cosine", "inner"),
)
