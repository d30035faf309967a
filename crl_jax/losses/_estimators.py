r"""Estimators of the sum over true negatives in the denominator of a contrastive loss.

Each takes the scores of one anchor with :math:`N` unlabelled samples and returns the
logarithm of its estimate :math:`G` of :math:`N\,\mathbb{E}_{\text{true negative}} e^{s/t}`.
The losses are ``softplus(log G - pos / temperature)``; the estimators are public so that
they can be studied on their own.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32
from .._hyperparams import (
    Alpha,
    Beta,
    MinScore,
    NonNegative,
    PerAnchor,
    Scalar,
    TauPlus,
    Temperature,
    check_arguments,
    expand_anchor_axis,
    per_anchor,
)
from .._reduce import masked_mean
from ..weights import bayesian_weights
from ._logspace import (
    log_count,
    log_debiased,
    log_mean_exp,
    log_sum_exp,
    tilted_log_mean_exp,
)


@check_arguments
def biased_log_sum(
    neg: Float[Array, "*batch n_neg"],
    *,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Takes every sample for a true negative: :math:`G = \sum_j e^{s_j/t}`.

    Args:
      neg: Scores :math:`s_j` of an anchor with its negatives, shape ``[*batch, n_neg]``.
      temperature: The :math:`t > 0` that divides all scores.
      where: True keeps a negative, shape ``[*batch, n_neg]``. Others are never read.

    Returns:
      The logarithm of :math:`G`, shape ``[*batch]``, at least float32; -inf, with zero
      gradient, where no negative is kept.

    Raises:
      ValueError: If a shape does not fit or ``temperature`` is not positive.

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
    r"""Knows the true negatives, and scales their sum from their number to that of all.

    .. math:: G = \frac{N}{|T|} \sum_{j \in T} e^{s_j/t}

    What the estimators below are estimates of: N times the mean over true negatives.

    Args:
      neg: Scores :math:`s_j` of an anchor with N samples, shape ``[*batch, n_neg]``.
      true_negative: Which samples are in :math:`T`, shape ``[*batch, n_neg]``. Others are
        never read.
      temperature: The :math:`t > 0` that divides all scores.
      where: True keeps a sample, shape ``[*batch, n_neg]``; :math:`N` is their number.
        Others are never read.

    Returns:
      The logarithm of :math:`G`, shape ``[*batch]``, at least float32; -inf, with zero
      gradient, where no true negative is kept.

    Raises:
      ValueError: If a shape does not fit or ``temperature`` is not positive.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.1 and 6.45.

    >>> neg, labels = jnp.log(jnp.array([1.0, 2.0, 6.0])), jnp.array([True, True, False])
    >>> print(f"{jnp.exp(oracle_log_sum(neg, true_negative=labels)):.4f}")  # 3 (1 + 2) / 2
    4.5000
    """
    check_shape("true_negative", true_negative, neg.shape)
    check_shape("where", where, neg.shape)
    true = true_negative if where is None else where & true_negative
    log_mean = log_mean_exp(_logits(neg, temperature, true), where=true)
    return log_count(neg, where).astype(log_mean.dtype) + log_mean


@check_arguments
def debiased_log_sum(
    neg: Float[Array, "*batch n_neg"],
    pos: Float[Array, "*batch n_pos"],
    *,
    tau_plus: TauPlus,
    min_score: MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Subtracts what the false negatives are expected to add.

    .. math::
        G = N \max\Bigl(\frac{1}{\tau^-}\Bigl[\frac1N \sum_j e^{s_j/t}
            - \tau^+ \frac1K \sum_k e^{s^+_k/t}\Bigr],\; e^{s_{\min}/t}\Bigr)

    Unbiased before the floor. Where the floor holds, the gradient with respect to scores is zero.

    Args:
      neg: Scores :math:`s_j` of an anchor with its negatives, shape ``[*batch, n_neg]``.
      pos: Scores :math:`s^+_k` of the same anchor with draws from its positives, shape
        ``[*batch, n_pos]``.
      tau_plus: Prior :math:`\tau^+` in [0, 1) that a sample is in truth a positive; a
        scalar or an array that broadcasts to ``[*batch]``.
      min_score: The smallest value :math:`s_{\min}` that a score can take: -1 for cosines.
        With ``-jnp.inf``, for scores without a bound, :math:`G` is at least 0, and log G is
        -inf where the estimate is not positive.
      temperature: The :math:`t > 0` that divides all scores.
      where: True keeps a negative, shape ``[*batch, n_neg]``. Others are never read.

    Returns:
      The logarithm of :math:`G`, shape ``[*batch]``, at least float32; -inf, with zero
      gradient, where no negative is kept.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

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
    return _debias(log_mean, neg, pos, tau_plus, min_score, temperature, where)


@check_arguments
def hard_log_sum(
    neg: Float[Array, "*batch n_neg"],
    pos: Float[Array, "*batch n_pos"],
    *,
    tau_plus: TauPlus,
    beta: NonNegative,
    min_score: MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""The debiased estimate, of negatives tilted towards the hard ones.

    :func:`debiased_log_sum` with its first mean replaced by

    .. math::
        \frac1N \sum_j w_j e^{s_j/t}
        = \frac{\sum_j e^{(\beta+1) s_j/t}}{\sum_j e^{\beta s_j/t}},
        \qquad w_j = \frac{e^{\beta s_j/t}}{\frac1N \sum_i e^{\beta s_i/t}}

    with the weights of :func:`crl_jax.weights.hard_weights`, through which gradients flow.

    Args:
      neg: Scores :math:`s_j` of an anchor with its negatives, shape ``[*batch, n_neg]``.
      pos: Scores of the same anchor with draws from its positives, shape
        ``[*batch, n_pos]``.
      tau_plus: Prior :math:`\tau^+` in [0, 1) that a sample is in truth a positive.
      beta: Concentration :math:`\beta \ge 0`; 0 gives :func:`debiased_log_sum`. Like
        ``tau_plus`` and ``min_score`` a scalar or an array that broadcasts to ``[*batch]``.
      min_score: The smallest value that a score can take, see :func:`debiased_log_sum`.
      temperature: The :math:`t > 0` that divides all scores.
      where: True keeps a negative, shape ``[*batch, n_neg]``. Others are never read.

    Returns:
      The logarithm of :math:`G`, shape ``[*batch]``, at least float32; -inf, with zero
      gradient, where no negative is kept.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

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
    return _debias(log_mean, neg, pos, tau_plus, min_score, temperature, where)


@check_arguments
def bayesian_log_sum(
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: TauPlus,
    alpha: Alpha,
    beta: Beta,
    bins: int | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Weights each sample by how its rank speaks for a true negative.

    .. math:: G = \sum_j \omega_j e^{s_j/t}

    with :math:`\omega` from :func:`crl_jax.weights.bayesian_weights`, which takes no
    gradient: it is a step function of the scores.

    Args:
      neg: Scores :math:`s_j` of an anchor with its negatives, shape ``[*batch, n_neg]``.
      tau_plus: Prior :math:`\tau^+` in [0, 1) that a sample is in truth a positive.
      alpha: Quality of the encoder in [0.5, 1].
      beta: Hardness in [0.5, 1]. The three are scalars or arrays that broadcast to
        ``[*batch]``.
      bins: As in :func:`crl_jax.weights.bayesian_weights`.
      temperature: The :math:`t > 0` that divides all scores.
      where: True keeps a negative, shape ``[*batch, n_neg]``. Others are never read.

    Returns:
      The logarithm of :math:`G`, shape ``[*batch]``, at least float32; -inf, with zero
      gradient, where all weights are 0 or no negative is kept.

    Raises:
      ValueError: If a shape does not fit, a hyper-parameter leaves its range, or
        ``alpha = beta = 1``.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.25 to 6.31.

    >>> neg = jnp.array([0.1, 0.7, 0.4])
    >>> log_g = bayesian_log_sum(neg, tau_plus=0.1, alpha=0.8, beta=0.5)
    >>> print(f"{log_g:.4f} {biased_log_sum(neg):.4f}")
    1.4309 1.5284
    """
    logits = _logits(neg, temperature, where)
    # The weights see the scores before division: rounding then makes no ties.
    omega = bayesian_weights(neg, tau_plus=tau_plus, alpha=alpha, beta=beta, bins=bins, where=where)
    return log_sum_exp(logits, weights=jax.lax.stop_gradient(omega))


@check_arguments
def floor_hit_rate(
    neg: Float[Array, "*batch n_neg"],
    pos: Float[Array, "*batch n_pos"],
    *,
    tau_plus: TauPlus,
    beta: NonNegative = 0.0,
    min_score: MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, ""]:
    r"""Share of anchors whose debiased estimate is clamped at its floor.

    There the subtracted positives outweigh what the negatives sum up to,

    .. math::
        \frac{1}{\tau^-}\Bigl[\frac1N \sum_j w_j e^{s_j/t}
            - \tau^+ \frac1K \sum_k e^{s^+_k/t}\Bigr] < e^{s_{\min}/t}

    and the anchor's negatives take no gradient. Often so, ``tau_plus`` is too large for
    this encoder, or :math:`K` too small.

    Args:
      neg: Scores of an anchor with its negatives, shape ``[*batch, n_neg]``.
      pos: Scores of the same anchor with draws from its positives, shape ``[*batch, n_pos]``.
      tau_plus: Prior in [0, 1) that a sample is in truth a positive.
      beta: Concentration >= 0 of :func:`hard_log_sum`; 0 is
        :func:`debiased_log_sum`.
      min_score: The smallest value that a score can take. With ``-jnp.inf`` the estimates that
        are not positive count.
      temperature: The :math:`t > 0` that divides all scores.
      where: True keeps a negative, shape ``[*batch, n_neg]``. Others are never read, and an
        anchor without any does not count.

    Returns:
      A scalar in [0, 1], at least float32; 0 if no anchor counts, NaN if a score that counts is.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

    References:
      Chuang et al., `Debiased Contrastive Learning <https://arxiv.org/abs/2007.00224>`_,
      2020, Eq. 8.

    >>> neg, pos = jnp.log(jnp.array([[1.0, 2.0], [6.0, 9.0]])), jnp.log(jnp.array([[6.0], [6.0]]))
    >>> print(floor_hit_rate(neg, pos, tau_plus=0.5))  # 1.5 - 3 < 0 is, 7.5 - 3 is not
    0.5
    """
    log_true = hard_log_sum(
        neg,
        pos,
        tau_plus=tau_plus,
        beta=beta,
        min_score=-jnp.inf,
        temperature=temperature,
        where=where,
    )
    dtype = log_true.dtype
    log_true = log_true - log_count(neg, where).astype(dtype)
    floor = per_anchor("min_score", min_score, log_true.shape, dtype)
    floor = floor / jnp.asarray(temperature, dtype)
    hit = ((log_true < floor) | jnp.isneginf(log_true)).astype(dtype)
    hit = jnp.where(jnp.isnan(log_true), jnp.nan, hit)
    counts = jnp.ones(hit.shape, bool) if where is None else jnp.any(where, axis=-1)
    return masked_mean(hit, where=counts)


def _logits(neg: Array, temperature: Scalar, where: Array | None) -> Array:
    check_shape("where", where, neg.shape)
    check_shape("temperature", temperature, ())
    (neg,) = at_least_float32(neg)
    if where is not None:  # before any arithmetic: 0 * nan would reach d/dtemperature
        neg = jnp.where(where, neg, 0)
    return neg / jnp.asarray(temperature, neg.dtype)


def _debias(
    log_mean: Array,
    neg: Array,
    pos: Array,
    tau_plus: PerAnchor,
    min_score: PerAnchor,
    temperature: Scalar,
    where: Array | None,
) -> Array:
    batch, dtype = log_mean.shape, log_mean.dtype
    check_shape("pos", pos, (*batch, *pos.shape[-1:]))
    tau_plus = per_anchor("tau_plus", tau_plus, batch, dtype)
    min_score = per_anchor("min_score", min_score, batch, dtype)
    temperature = jnp.asarray(temperature, dtype)

    log_false = log_mean_exp(pos / temperature)
    log_true = log_debiased(log_mean, log_false, tau_plus)
    bounded = min_score != -jnp.inf  # else -inf / temperature has a gradient of 0 * inf
    floor = jnp.where(bounded, jnp.where(bounded, min_score, 0) / temperature, -jnp.inf)
    log_g = log_count(neg, where).astype(dtype) + jnp.maximum(log_true, floor)
    return log_g if where is None else jnp.where(jnp.any(where, axis=-1), log_g, -jnp.inf)
