"""Contrastive losses, which compare one positive with many negatives."""

from crl_jax import losses

from ._objective import Objective

# Unlike cosines, inner products are unbounded below; few of those seen in training are lower.
_INNER = {"min_score": -5.0}

INFO_NCE = Objective(loss=losses.info_nce)
DEBIASED = Objective(loss=losses.debiased_contrastive, defaults=_INNER, n_pos=5)
HARD = Objective(loss=losses.hard_contrastive, defaults=_INNER, n_pos=5)
BAYESIAN = Objective(loss=losses.bayesian_contrastive)
BSL = Objective(loss=losses.bilateral_softmax, n_neg=50, n_pos=0)
CCL = Objective(loss=losses.cosine_contrastive, n_neg=50)
