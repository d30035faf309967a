"""Contrastive and pairwise losses as pure functions of scores.

A loss takes the scores of the positives, ``[*batch]``, and of the negatives,
``[*batch, n_neg]``, for a batch of anchors:

>>> import jax, jax.numpy as jnp
>>> from crl_jax import losses
>>> pos = jnp.array([0.9, 0.2])
>>> neg = jnp.array([[0.1, 0.8, -0.3], [0.4, -0.5, 0.0]])
>>> print(f"{losses.info_nce(pos, neg, temperature=0.5):.4f}")
0.9868

Debiased losses correct for false negatives, given their prior probability ``tau_plus``.
Hyper-parameters may be traced values, swept with ``jax.vmap``, or per-anchor arrays.

>>> print(f"{losses.debiased_contrastive(pos, neg, tau_plus=0.1, temperature=0.5):.4f}")
0.9248
>>> def bayesian(alpha):
...     return losses.bayesian_contrastive(pos, neg, tau_plus=0.1, alpha=alpha, beta=0.5)
>>> [f"{loss:.4f}" for loss in jax.vmap(bayesian)(jnp.array([0.5, 0.7, 0.9]))]
['1.1199', '1.0798', '0.9637']

``where`` masks padded negatives, ``weights`` sets per-anchor loss weights, and
``reduce_fn=None`` returns per-anchor losses:

>>> keep = jnp.array([[True, True, False], [False, False, False]])
>>> print(losses.bpr(pos, neg, where=keep, reduce_fn=None))
[0.50774866 0.        ]

Logits (scores divided by the temperature), their pairwise differences and the sum of the
losses must not overflow: in float32, keep logits below 1.7e38 in magnitude.

The contrastive losses differ only in how they estimate the sum over true negatives:
``softplus(log_sum - pos / temperature)`` with one of ``biased_log_sum``, ``debiased_log_sum``,
``hard_log_sum``, ``adjusted_log_sum`` and ``bayesian_log_sum``, or with ``oracle_log_sum`` of
labels. Some losses take other inputs: several positives, additional items or users, the sampling
distribution of the negatives, a square score matrix, or distances and embeddings.
"""

from .._reduce import ReduceFn as ReduceFn
from .._reduce import masked_mean as masked_mean
from ._adversarial import adversarial_contrastive as adversarial_contrastive
from ._attention import attention_contrastive as attention_contrastive
from ._batch_scores import BatchScores as BatchScores
from ._batch_scores import normalize as normalize
from ._batch_scores import tower_scores as tower_scores
from ._batch_scores import view_scores as view_scores
from ._classification import bce as bce
from ._classification import gbce as gbce
from ._classification import nce as nce
from ._classification import nt_logistic as nt_logistic
from ._classification import sigmoid_contrastive as sigmoid_contrastive
from ._clip import clip_contrastive as clip_contrastive
from ._clip import proto_nce as proto_nce
from ._common import accepts_where as accepts_where
from ._common import is_per_anchor_loss as is_per_anchor_loss
from ._common import per_anchor_loss as per_anchor_loss
from ._contrastive import adjusted_contrastive as adjusted_contrastive
from ._contrastive import bayesian_contrastive as bayesian_contrastive
from ._contrastive import bilateral_softmax as bilateral_softmax
from ._contrastive import cosine_contrastive as cosine_contrastive
from ._contrastive import debiased_contrastive as debiased_contrastive
from ._contrastive import debiased_cosine_contrastive as debiased_cosine_contrastive
from ._contrastive import decoupled_contrastive as decoupled_contrastive
from ._contrastive import hard_contrastive as hard_contrastive
from ._contrastive import info_nce as info_nce
from ._contrastive import info_nce_plus as info_nce_plus
from ._corrected import corrected_contrastive as corrected_contrastive
from ._denoising import reweighted_bce as reweighted_bce
from ._denoising import reweighted_bpr as reweighted_bpr
from ._denoising import truncated_bce as truncated_bce
from ._denoising import truncated_bpr as truncated_bpr
from ._distances import alignment as alignment
from ._distances import half_square as half_square
from ._distances import half_squared_hinge as half_squared_hinge
from ._distances import pair_contrastive as pair_contrastive
from ._distances import uniformity as uniformity
from ._estimators import adjusted_log_sum as adjusted_log_sum
from ._estimators import bayesian_log_sum as bayesian_log_sum
from ._estimators import biased_log_sum as biased_log_sum
from ._estimators import debiased_log_sum as debiased_log_sum
from ._estimators import floor_hit_rate as floor_hit_rate
from ._estimators import hard_log_sum as hard_log_sum
from ._estimators import oracle_log_sum as oracle_log_sum
from ._fused import fused_tower_loss as fused_tower_loss
from ._fused import fused_view_loss as fused_view_loss
from ._global import global_contrastive as global_contrastive
from ._global import update_log_mean as update_log_mean
from ._pairwise import bpr as bpr
from ._pairwise import debiased_pairwise as debiased_pairwise
from ._pairwise import gbpr as gbpr
from ._pairwise import linear_pairwise as linear_pairwise
from ._pairwise import mpr as mpr
from ._pairwise import triplet_margin as triplet_margin
from ._supervised import oracle_contrastive as oracle_contrastive
from ._supervised import oracle_pairwise as oracle_pairwise
from ._supervised import punce as punce
from ._supervised import supervised_contrastive as supervised_contrastive
from ._surrogates import pairwise_softmax as pairwise_softmax
from ._tiled import tiled_catalogue_loss as tiled_catalogue_loss
from ._tiled import tiled_tower_loss as tiled_tower_loss
from ._tiled import tiled_view_loss as tiled_view_loss
from ._top_k import lambda_loss_at_k as lambda_loss_at_k
from ._top_k import softmax_at_k as softmax_at_k
from ._variational import variational_bpr as variational_bpr
