r"""Estimators of the sum over true negatives in the denominator of a contrastive loss.

Given the scores of :math:`N` unlabelled samples per anchor, each function returns the logarithm of
an estimate :math:`G` of :math:`N\,\mathbb{E}_{\text{true negative}} e^{s/t}`, from which the loss
is ``softplus(log G - pos / temperature)``.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._checks import check_negatives, check_shape
from .._floats import at_least_float32
from .._gaussian import gaussian_exponents
from .._hyperparams import Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import any_unmasked, masked_mean
from ..weights import bayesian_weights
from ._logspace import log_count, log_debiased, log_mean_exp, log_sum_exp, tilted_log_mean_exp


@check_arguments
def biased_log_sum(
    neg: Float[Array, "*batch n_neg"],
    *,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Biased estimate that counts every sample as a true negative: :math:`G = \sum_j e^{s_j/t}`.

    Args:
      neg: Scores :math:`s_j` of the negatives, shape ``[*batch, n_neg]``.
      temperature: Temperature :math:`t > 0`; divides all scores.
      where: Mask of valid negatives, shape ``[*batch, n_neg]``; masked scores are ignored.

    Returns:
      :math:`\log G`, shape ``[*batch]``, at least float32; -inf with zero gradient for anchors
      without valid negatives.

    Raises:
      ValueError: If shapes are incompatible or a hyper-parameter is out of range.

    References:
      van den Oord et al., `Representation Learning with Contrastive Predictive Coding
      <https://arxiv.org/abs/1807.03748>`_, 2018, Eq. 4.

    >>> print(f"{biased_log_sum(jnp.log(jnp.array([1.0, 2.0, 4.0]))):.4f}")  # log 7
    1.9459
    """
    return log_sum_exp(_logits(neg, temperature, where), where=where)


@check_arguments
def oracle_log_sum(
    neg: Float[Array, "*batch n_neg"],
    *,
    true_negative: Bool[Array, "*batch n_neg"],
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Oracle estimate: the sum over labelled true negatives, rescaled to all N samples.

    .. math:: G = \frac{N}{|T|} \sum_{j \in T} e^{s_j/t}

    N times the mean over true negatives, which the other estimators approximate; -inf for anchors
    without valid ones.

    Args:
      true_negative: Mask of the set :math:`T` of true negatives, shape ``[*batch, n_neg]``;
        other scores are ignored.
      where: Mask of valid samples, whose number is :math:`N`.

    Other arguments, the result and errors are those of :func:`biased_log_sum`.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.1 and 6.45.

    >>> neg, labels = jnp.log(jnp.array([1.0, 2.0, 6.0])), jnp.array([True, True, False])
    >>> print(f"{jnp.exp(oracle_log_sum(neg, true_negative=labels)):.4f}")  # 3 (1 + 2) / 2
    4.5000
    """
    check_shape("true_negative", true_negative, neg.shape)
    check_shape("where", where, neg.shape)
    (neg,) = at_least_float32(neg)
    true = true_negative if where is None else where & true_negative
    log_mean = log_mean_exp(_logits(neg, temperature, true), where=true)
    return log_count(neg, where) + log_mean


@check_arguments
def debiased_log_sum(
    neg: Float[Array, "*batch n_neg"],
    pos: Float[Array, "*batch n_pos"],
    *,
    tau_plus: hp.TauPlus,
    min_score: hp.MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Debiased estimate: subtracts the expected contribution of false negatives.

    .. math::
        G = N \max\Bigl(\frac{1}{\tau^-}\Bigl[\frac1N \sum_j e^{s_j/t}
            - \tau^+ \frac1K \sum_k e^{s^+_k/t}\Bigr],\; e^{s_{\min}/t}\Bigr)

    Unbiased before clamping. Where the estimate is clamped, its gradient with respect to the
    scores is zero.

    Args:
      pos: Scores :math:`s^+_k` of K sampled positives, shape ``[*batch, n_pos]``.
      tau_plus: Prior probability :math:`\tau^+` in [0, 1) of a false negative; a scalar or an
        array that broadcasts to ``[*batch]``.
      min_score: Lower bound :math:`s_{\min}` of the scores, -1 for cosine similarities. Use
        ``-jnp.inf`` for unbounded scores: :math:`G` is then clamped at 0, and
        :math:`\log G` is -inf where the estimate is not positive.

    Other arguments, the result and errors are those of :func:`biased_log_sum`.

    References:
      Chuang et al., `Debiased Contrastive Learning <https://arxiv.org/abs/2007.00224>`_,
      2020, Eq. 7 and 8.

    >>> neg, pos = jnp.log(jnp.array([1.0, 2.0, 6.0])), jnp.log(jnp.array([6.0]))
    >>> log_g = debiased_log_sum(neg, pos, tau_plus=1 / 3)
    >>> print(f"{jnp.exp(log_g):.4f}")  # 3 times the mean of 1 and 2
    4.5000
    """
    neg, pos = at_least_float32(neg, pos)
    log_mean = log_mean_exp(_logits(neg, temperature, where), where=where)
    log_g = debias(log_mean, log_count(neg, where), pos, tau_plus, min_score, temperature)
    return _neg_inf_if_empty(log_g, where)


@check_arguments
def hard_log_sum(
    neg: Float[Array, "*batch n_neg"],
    pos: Float[Array, "*batch n_pos"],
    *,
    tau_plus: hp.TauPlus,
    beta: hp.NonNegative,
    min_score: hp.MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Debiased estimate with importance weights for hard negatives.

    Replaces the first mean of :func:`debiased_log_sum` by

    .. math::
        \frac1N \sum_j w_j e^{s_j/t}
        = \frac{\sum_j e^{(\beta+1) s_j/t}}{\sum_j e^{\beta s_j/t}},
        \qquad w_j = \frac{e^{\beta s_j/t}}{\frac1N \sum_i e^{\beta s_i/t}}

    with the weights of :func:`crl_jax.weights.hard_weights`, which are differentiated through.

    Args:
      beta: Concentration :math:`\beta \ge 0`, a scalar or an array that broadcasts to
        ``[*batch]``; 0 gives :func:`debiased_log_sum`.

    Other arguments, the result and errors are those of :func:`debiased_log_sum`.

    References:
      Robinson et al., `Contrastive Learning with Hard Negative Samples
      <https://arxiv.org/abs/2010.04592>`_, 2021, with the normalisation of its code;
      "Contrastive Learning for Personalized Recommendation", Eq. 5.52.

    >>> neg, pos = jnp.log(jnp.array([1.0, 3.0])), jnp.log(jnp.array([2.0]))
    >>> log_g = hard_log_sum(neg, pos, tau_plus=0.0, beta=1.0)
    >>> print(f"{jnp.exp(log_g):.4f}")  # 2 (1 + 9) / (1 + 3)
    5.0000
    """
    neg, pos = at_least_float32(neg, pos)
    logits = _logits(neg, temperature, where)
    beta = expand_anchor_axis(per_anchor("beta", beta, logits.shape[:-1], logits.dtype))
    log_mean = tilted_log_mean_exp(logits, beta, where=where)
    log_g = debias(log_mean, log_count(neg, where), pos, tau_plus, min_score, temperature)
    return _neg_inf_if_empty(log_g, where)


@check_arguments
def adjusted_log_sum(
    neg: Float[Array, "*batch n_neg"],
    *,
    mu: hp.Finite,
    sigma: hp.Positive,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Sum over negatives with Gaussian weights, the largest for scores near :math:`\mu`.

    .. math:: G = \sum_j w_j e^{s_j/t}

    with :math:`w` from :func:`crl_jax.weights.gaussian_weights`, treated as constant in the
    gradient.

    Arguments, result and errors are those of :func:`biased_log_sum` and
    :func:`crl_jax.weights.gaussian_weights`.

    References:
      Wu et al., `Understanding Contrastive Learning via Distributionally Robust Optimization
      <https://arxiv.org/abs/2310.11048>`_, 2023, ADNCE.

    >>> neg = jnp.array([-0.2, 0.7, 1.0])
    >>> print(f"{adjusted_log_sum(neg, mu=0.7, sigma=0.5):.4f} {biased_log_sum(neg):.4f}")
    1.8811 1.7139
    """
    logits = _logits(neg, temperature, where)
    # In logarithms: a score with a tiny weight can dominate the sum.
    (scores,) = at_least_float32(neg)
    log_w = jax.lax.stop_gradient(gaussian_exponents(scores, mu, sigma, where))
    log_g = log_sum_exp(logits + log_w, where=where) - log_mean_exp(log_w, where=where)
    return _neg_inf_if_empty(log_g, where)


@check_arguments
def bayesian_log_sum(
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: hp.TauPlus,
    alpha: hp.Alpha,
    beta: hp.Beta,
    bins: int | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Bayesian estimate, with rank-based importance weights for the samples.

    .. math:: G = \sum_j \omega_j e^{s_j/t}

    with :math:`\omega` from :func:`crl_jax.weights.bayesian_weights`. The weights are a step
    function of the scores and treated as constant in the gradient. The result is -inf also for
    anchors with all weights 0.

    Arguments, result and errors are those of :func:`biased_log_sum` and
    :func:`crl_jax.weights.bayesian_weights`.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.25 to 6.31.

    >>> neg = jnp.array([0.1, 0.7, 0.4])
    >>> log_g = bayesian_log_sum(neg, tau_plus=0.1, alpha=0.8, beta=0.5)
    >>> print(f"{log_g:.4f} {biased_log_sum(neg):.4f}")
    1.4309 1.5284
    """
    logits = _logits(neg, temperature, where)
    # Ranks use the scores before division by the temperature, whose rounding could cause ties.
    omega = bayesian_weights(neg, tau_plus=tau_plus, alpha=alpha, beta=beta, bins=bins, where=where)
    return log_sum_exp(logits, weights=jax.lax.stop_gradient(omega))


@check_arguments
def floor_hit_rate(
    neg: Float[Array, "*batch n_neg"],
    pos: Float[Array, "*batch n_pos"],
    *,
    tau_plus: hp.TauPlus,
    beta: hp.NonNegative = 0.0,
    min_score: hp.MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, ""]:
    r"""Fraction of anchors whose debiased estimate is clamped at its lower bound.

    .. math::
        \frac{1}{\tau^-}\Bigl[\frac1N \sum_j w_j e^{s_j/t}
            - \tau^+ \frac1K \sum_k e^{s^+_k/t}\Bigr] < e^{s_{\min}/t}

    The negatives of these anchors receive no gradient. A high rate indicates that ``tau_plus`` is
    too large for this encoder or :math:`K` too small.

    Args:
      min_score: Lower bound of the scores. With ``-jnp.inf``, counts the estimates that are not
        positive.
      where: Mask of valid negatives; anchors without any are excluded.

    Other arguments and errors are those of :func:`hard_log_sum`.

    Returns:
      Scalar in [0, 1], at least float32; 0 without valid anchors, NaN if a valid score is NaN.

    References:
      Chuang et al., `Debiased Contrastive Learning <https://arxiv.org/abs/2007.00224>`_,
      2020, Eq. 8.

    >>> neg, pos = jnp.log(jnp.array([[1.0, 2.0], [6.0, 9.0]])), jnp.log(jnp.array([[6.0], [6.0]]))
    >>> print(floor_hit_rate(neg, pos, tau_plus=0.5))  # 1.5 - 3 < 0 is, 7.5 - 3 is not
    0.5
    """
    neg, pos = at_least_float32(neg, pos)
    arguments: dict[str, Any] = {
        "tau_plus": tau_plus,
        "beta": beta,
        "temperature": temperature,
        "where": where,
    }
    log_true = hard_log_sum(neg, pos, min_score=-jnp.inf, **arguments)
    dtype = log_true.dtype
    log_true = log_true - log_count(neg, where)
    floor = per_anchor("min_score", min_score, log_true.shape, dtype)
    floor = floor / jnp.asarray(temperature, dtype)
    hit = ((log_true < floor) | jnp.isneginf(log_true)).astype(dtype)
    hit = jnp.where(jnp.isnan(log_true), jnp.nan, hit)
    counts = jnp.ones(hit.shape, bool) if where is None else any_unmasked(where)
    return masked_mean(hit, where=counts)


def _logits(neg: Array, temperature: hp.Scalar, where: Array | None) -> Array:
    check_negatives(neg)
    check_shape("where", where, neg.shape)
    check_shape("temperature", temperature, ())
    (neg,) = at_least_float32(neg)
    if where is not None:  # before any arithmetic: 0 * nan would reach d/dtemperature
        neg = jnp.where(where, neg, 0)
    return neg / jnp.asarray(temperature, neg.dtype)


def _neg_inf_if_empty(log_g: Array, where: Array | None) -> Array:
    """Sets the estimate of anchors without valid negatives to -inf."""
    return log_g if where is None else jnp.where(any_unmasked(where), log_g, -jnp.inf)


def debias(
    log_mean: Array,
    log_n: Array,
    pos: Array,
    tau_plus: hp.PerAnchor,
    min_score: hp.PerAnchor,
    temperature: hp.Scalar,
) -> Array:
    """Debiased log-sum from the log-mean over N samples and ``log_n = log(N)``."""
    batch, dtype = log_mean.shape, log_mean.dtype
    check_shape("pos", pos, (*batch, *pos.shape[-1:]))
    tau_plus = per_anchor("tau_plus", tau_plus, batch, dtype)
    min_score = per_anchor("min_score", min_score, batch, dtype)
    temperature = jnp.asarray(temperature, dtype)

    log_false = log_mean_exp(pos / temperature)
    log_true = log_debiased(log_mean, log_false, tau_plus)
    bounded = min_score != -jnp.inf  # otherwise the gradient of -inf / temperature is 0 * inf
    floor = jnp.where(bounded, jnp.where(bounded, min_score, 0) / temperature, -jnp.inf)
    return log_n.astype(dtype) + jnp.maximum(log_true, floor)
