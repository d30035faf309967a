"""Losses of anchors with a positive and negatives, as pure functions of their scores.

A model gives scores; a loss takes those of each anchor with its positive, ``[*batch]``, and
with its negatives, ``[*batch, n_neg]``:

>>> import jax, jax.numpy as jnp
>>> from crl_jax import losses
>>> pos = jnp.array([0.9, 0.2])
>>> neg = jnp.array([[0.1, 0.8, -0.3], [0.4, -0.5, 0.0]])
>>> print(f"{losses.info_nce(pos, neg, temperature=0.5):.4f}")
0.9868

When some negatives may be positives in disguise, the debiased losses take the share
``tau_plus`` of them into account. Hyper-parameters are ordinary values: they may be traced,
swept with ``jax.vmap``, or differ between anchors.

>>> print(f"{losses.debiased_contrastive(pos, neg, tau_plus=0.1, temperature=0.5):.4f}")
0.9248
>>> def bayesian(alpha):
...     return losses.bayesian_contrastive(pos, neg, tau_plus=0.1, alpha=alpha, beta=0.5)
>>> [f"{loss:.4f}" for loss in jax.vmap(bayesian)(jnp.array([0.5, 0.7, 0.9]))]
['1.1199', '1.0798', '0.9637']

``where`` leaves out padded negatives, ``weights`` multiplies anchors, and ``reduce_fn=None``
returns one loss per anchor:

>>> keep = jnp.array([[True, True, False], [False, False, False]])
>>> print(losses.bpr(pos, neg, where=keep, reduce_fn=None))
[0.50774866 0.        ]

The contrastive losses differ only in how they estimate the sum over true negatives:
``softplus(log_sum - pos / temperature)`` with one of ``biased_log_sum``,
``debiased_log_sum``, ``hard_log_sum`` and ``bayesian_log_sum``.
"""

from ._contrastive import bayesian_contrastive as bayesian_contrastive
from ._contrastive import debiased_contrastive as debiased_contrastive
from ._contrastive import hard_contrastive as hard_contrastive
from ._contrastive import info_nce as info_nce
from ._denominators import bayesian_log_sum as bayesian_log_sum
from ._denominators import biased_log_sum as biased_log_sum
from ._denominators import debiased_log_sum as debiased_log_sum
from ._denominators import hard_log_sum as hard_log_sum
from ._distances import alignment as alignment
from ._distances import half_square as half_square
from ._distances import half_squared_hinge as half_squared_hinge
from ._distances import pair_contrastive as pair_contrastive
from ._distances import uniformity as uniformity
from ._pairwise import bce as bce
from ._pairwise import bpr as bpr
from ._pairwise import debiased_pairwise as debiased_pairwise
