r"""Importance weights for the negatives and positives of a contrastive loss.

An unlabelled sample with a high score is either a hard negative or a false negative.
:func:`bayesian_weights` balances the two cases, given the class prior ``tau_plus`` of false
negatives, the encoder quality ``alpha`` (its AUC) and the emphasis ``beta`` on hard negatives.

>>> import jax.numpy as jnp, numpy as np
>>> from crl_jax import weights
>>> neg = jnp.array([[-0.5, 0.1, 0.2, 0.9]])
>>> w = weights.bayesian_weights(neg, tau_plus=0.1, alpha=0.9, beta=0.5)
>>> print(np.asarray(w).round(2))  # without hardness, doubt falls on the best-scoring
[[1.08 1.04 0.97 0.56]]
>>> posterior = weights.true_negative_posterior(neg, tau_plus=0.1, alpha=0.9)
>>> print(np.asarray(posterior).round(2))
[[0.97 0.94 0.87 0.5 ]]
>>> print(np.asarray(weights.effective_sample_size(w)).round(2))  # of four negatives
[3.8]

Weights are plain arrays. A loss that treats them as constants applies
``jax.lax.stop_gradient`` itself. :func:`hard_weights` is the exponential tilting of hard
negative mining, whose gradient is part of the method; :func:`gaussian_weights` decrease again for
the highest scores.

The hyper-parameters can be estimated (:func:`estimate_alpha`, :func:`estimate_tau_plus`) or
scheduled (:func:`warmup_alpha`, :func:`measured_alpha`), and posteriors evaluated
(:func:`posterior_by_label`, :func:`posterior_calibration`). :func:`update_threshold` learns the
score of an anchor above which negatives are false. For noisy positives,
:func:`small_loss_weights` and :func:`reliability_weights` down-weight samples with a large loss.
"""

from ._adversarial import adversarial_weights as adversarial_weights
from ._diagnostics import Calibration as Calibration
from ._diagnostics import PosteriorByLabel as PosteriorByLabel
from ._diagnostics import effective_sample_size as effective_sample_size
from ._diagnostics import false_negative_share as false_negative_share
from ._diagnostics import posterior_by_label as posterior_by_label
from ._diagnostics import posterior_calibration as posterior_calibration
from ._diagnostics import weights_auc as weights_auc
from ._estimates import TauPlusEstimate as TauPlusEstimate
from ._estimates import estimate_alpha as estimate_alpha
from ._estimates import estimate_tau_plus as estimate_tau_plus
from ._negatives import bayesian_weights as bayesian_weights
from ._negatives import gaussian_weights as gaussian_weights
from ._negatives import hard_weights as hard_weights
from ._negatives import true_negative_posterior as true_negative_posterior
from ._positives import confidence_density as confidence_density
from ._positives import confidence_posterior as confidence_posterior
from ._positives import credibility_prior as credibility_prior
from ._positives import reliability_weights as reliability_weights
from ._positives import small_loss_weights as small_loss_weights
from ._schedules import MeasuredAlphaState as MeasuredAlphaState
from ._schedules import fixed_alpha as fixed_alpha
from ._schedules import init_measured_alpha as init_measured_alpha
from ._schedules import measured_alpha as measured_alpha
from ._schedules import ramp_drop_rate as ramp_drop_rate
from ._schedules import update_measured_alpha as update_measured_alpha
from ._schedules import warmup_alpha as warmup_alpha
from ._thresholds import update_threshold as update_threshold
from ._top_k import top_k_threshold as top_k_threshold
