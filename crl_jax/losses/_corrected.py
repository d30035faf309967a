"""Debiased contrastive loss with smaller weights for uncertain negatives."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._hyperparams import Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import ReduceFn, masked_mean
from .._scaling import subtract_row_max
from ._common import finish, per_anchor_loss, prepare, sampled_positives
from ._estimators import debias
from ._logspace import log_count, log_mean_exp


@per_anchor_loss
@check_arguments
def corrected_contrastive(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: hp.TauPlus = 0.05,
    gamma: hp.NonNegative = 0.0,
    min_score: hp.MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Corrected and weighted loss (after CW): uncertain negatives weigh less.

    .. math::
        \ell = \log N \max\Bigl(\frac{1}{\tau^-}\Bigl[\frac1N \sum_j w_j e^{s_j/t}
        - \tau^+ \frac1K \sum_k e^{s^+_k/t}\Bigr],\; e^{s_{\min}/t}\Bigr) - \frac{s^+}t, \qquad
        w_j = \frac{e^{-\gamma s_j/t}}{\frac1N \sum_i e^{-\gamma s_i/t}}

    The positive is not in the denominator, so that with :math:`\tau^+ = \gamma = 0` this is
    :func:`decoupled_contrastive`. The weights are constant in the gradient; where those of
    :func:`hard_contrastive` increase with the score, these decrease, since a negative with a high
    score may be a false one.

    The correction by :math:`\tau^+`, which is the default, is that of the paper. Its weights are
    described there as larger for confident negatives and smaller for uncertain ones; their formula
    was not available for this implementation, and the weights here are not the published ones.

    Args:
      pos: Scores ``[*batch, 1 + K]``: the positive, then K further sampled positives; or
        ``[*batch]``, where the positive is its own sample.
      tau_plus: Prior probability :math:`\tau^+` in [0, 1) of a false negative.
      gamma: Concentration :math:`\gamma \ge 0` on negatives with low scores; 0 weighs all alike.
      min_score: Lower bound :math:`s_{\min}` of the scores, -1 for cosine similarities. The first
        three are scalars or arrays that broadcast to ``[*batch]``.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Yin et al., `Correct and Weight: A Simple Yet Effective Loss for Implicit Feedback
      Recommendation <https://arxiv.org/abs/2601.04291>`_, 2026.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{corrected_contrastive(pos, neg, tau_plus=0.1, gamma=0.5):.4f}")
    0.4038
    """
    a = prepare(pos, neg, temperature, where, weights, extra_positives=True)
    logits = a.neg / a.temperature
    gamma = expand_anchor_axis(per_anchor("gamma", gamma, a.pos.shape, logits.dtype))
    valid_logits = logits if a.where is None else jnp.where(a.where, logits, -jnp.inf)
    below, _ = subtract_row_max(valid_logits)  # otherwise the product with gamma could overflow
    if a.where is not None:
        below = jnp.where(a.where, below, 0)
    log_w = jax.lax.stop_gradient(-gamma * below)
    log_mean = log_mean_exp(logits + log_w, where=a.where) - log_mean_exp(log_w, where=a.where)
    log_n = log_count(a.neg, a.where)
    if a.valid is not None:  # both are -inf for an empty set
        log_mean, log_n = (jnp.where(a.valid, x, 0) for x in (log_mean, log_n))
    log_g = debias(log_mean, log_n, sampled_positives(a), tau_plus, min_score, a.temperature)
    return finish(log_g - a.pos / a.temperature, a, reduce_fn)
