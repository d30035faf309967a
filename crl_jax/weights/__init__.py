r"""Importance weights for negatives: whom a contrastive loss should listen to.

An unlabelled sample that scores high is either a hard negative or a positive in disguise.
:func:`bayesian_weights` trades the two off: with probability ``tau_plus`` a sample is a
false negative, an encoder of quality ``alpha`` (its AUC) ranks true negatives below, and
``beta`` says how much the hard ones should count.

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

They are ordinary arrays: look at them, average them, or multiply a loss with them. A loss
that takes them as constants says so itself, with ``jax.lax.stop_gradient``.
:func:`hard_weights` is the exponential tilt of hard negative mining, whose gradient is
part of the method.

What the weights assume can be measured: :func:`estimate_alpha` takes a few labelled anchors,
:func:`estimate_tau_plus` held-out positives and unlabelled samples; :func:`warmup_alpha` and
:func:`measured_alpha` go along with a training. :func:`posterior_by_label`
tells whether it works, :func:`posterior_calibration` whether it is true, and
:func:`crl_jax.losses.floor_hit_rate` how often an estimate is clamped.

Positives may be noise, too: :func:`small_loss_weights`, at a rate that :func:`ramp_drop_rate`
raises along a training, and :func:`reliability_weights` distrust those with a large loss.
"""

from ._bayesian import bayesian_weights as bayesian_weights
from ._bayesian import true_negative_posterior as true_negative_posterior
from ._calibration import Calibration as Calibration
from ._calibration import false_negative_share as false_negative_share
from ._calibration import posterior_calibration as posterior_calibration
from ._calibration import weights_auc as weights_auc
from ._confidence import confidence_density as confidence_density
from ._confidence import confidence_posterior as confidence_posterior
from ._confidence import credibility_prior as credibility_prior
from ._denoising import reliability_weights as reliability_weights
from ._denoising import small_loss_weights as small_loss_weights
from ._diagnostics import PosteriorByLabel as PosteriorByLabel
from ._diagnostics import effective_sample_size as effective_sample_size
from ._diagnostics import posterior_by_label as posterior_by_label
from ._estimates import TauPlusEstimate as TauPlusEstimate
from ._estimates import estimate_alpha as estimate_alpha
from ._estimates import estimate_tau_plus as estimate_tau_plus
from ._hard import hard_weights as hard_weights
from ._measured_alpha import MeasuredAlpha as MeasuredAlpha
from ._measured_alpha import init_measured_alpha as init_measured_alpha
from ._measured_alpha import measured_alpha as measured_alpha
from ._measured_alpha import update_measured_alpha as update_measured_alpha
from ._schedules import fixed_alpha as fixed_alpha
from ._schedules import ramp_drop_rate as ramp_drop_rate
from ._schedules import warmup_alpha as warmup_alpha
