r"""Contrastive losses: InfoNCE, its variants, and estimators of its sum over negatives.

.. math:: \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + G} = \mathrm{softplus}(\log G - s^+/t)
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._hyperparams import Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import ReduceFn, masked_mean
from . import _estimators
from ._common import (
    Anchors,
    all_positives,
    finish,
    per_anchor_loss,
    prepare,
    row_mean,
    sampled_positives,
)
from ._logspace import log_mean_exp, softplus

_LARGEST_EXPONENT = 80.0  # of exponentials that are finite in float32 and bfloat16


@per_anchor_loss
@check_arguments
def info_nce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""InfoNCE loss, also known as NT-Xent; treats every sample as a true negative.

    .. math:: \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + \sum_j e^{s_j/t}}

    Equal to :func:`bpr` with one negative.

    Arguments, result and errors are those of :func:`bpr`.

    References:
      van den Oord et al., `Representation Learning with Contrastive Predictive Coding
      <https://arxiv.org/abs/1807.03748>`_, 2018, Eq. 4; "Contrastive Learning for
      Personalized Recommendation", Eq. 6.2.

    >>> pos, neg = jnp.array([2.0, 0.0]), jnp.array([[0.0, 1.0], [1.0, 9.0]])
    >>> keep = jnp.array([[True, True], [True, False]])
    >>> print(f"{info_nce(pos, neg, where=keep):.4f}")
    0.8604
    """
    a = prepare(pos, neg, temperature, where, weights)
    return _contrastive(_estimators.biased_log_sum, a, reduce_fn)


@per_anchor_loss
@check_arguments
def debiased_contrastive(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: hp.TauPlus = 0.05,
    min_score: hp.MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Debiased contrastive loss; corrects the denominator for expected false negatives.

    .. math::
        \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + G}, \qquad
        G = N \max\Bigl(\frac{1}{\tau^-}\Bigl[\frac1N \sum_j e^{s_j/t}
            - \tau^+ \frac1K \sum_k e^{s^+_k/t}\Bigr],\; e^{s_{\min}/t}\Bigr)

    Not to be confused with :func:`decoupled_contrastive`, also abbreviated "DCL".

    Args:
      pos: Scores of the positives. With shape ``[*batch]``, the positive is also the single
        sample, :math:`K = 1`, that estimates the false-negative term. With shape
        ``[*batch, 1 + M]`` (same rank as ``neg``), column 0 is the positive and the other M
        columns are the samples, :math:`K = M`.
      tau_plus: Prior probability :math:`\tau^+` in [0, 1) of a false negative; a scalar or an
        array that broadcasts to ``[*batch]``.
      min_score: Lower bound :math:`s_{\min}` of the scores, -1 for cosine similarities. Use
        ``-jnp.inf`` for unbounded scores: the loss and its gradient are then 0 where the
        estimate is not positive.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Chuang et al., `Debiased Contrastive Learning <https://arxiv.org/abs/2007.00224>`_,
      2020, Eq. 8; "Contrastive Learning for Personalized Recommendation", section 5.6.1.4.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{debiased_contrastive(pos, neg, tau_plus=0.1):.4f}")
    0.9680
    >>> pos = jnp.array([[0.8, 0.6, 0.4]])  # with two more positives of the same anchor
    >>> print(f"{debiased_contrastive(pos, neg, tau_plus=0.1):.4f}")
    0.9998
    """
    a = prepare(pos, neg, temperature, where, weights, extra_positives=True)
    prior = dict(tau_plus=tau_plus, min_score=min_score)
    return _contrastive(_estimators.debiased_log_sum, a, reduce_fn, sampled_positives(a), **prior)


@per_anchor_loss
@check_arguments
def hard_contrastive(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: hp.TauPlus = 0.05,
    beta: hp.NonNegative = 0.5,
    min_score: hp.MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Debiased contrastive loss with importance weights for hard negatives.

    :func:`debiased_contrastive` with :math:`e^{s_j/t}` replaced by :math:`w_j e^{s_j/t}`,
    :math:`w_j = e^{\beta s_j/t} / \frac1N \sum_i e^{\beta s_i/t}`. Gradients flow through the
    weights.

    Args:
      beta: Concentration :math:`\beta \ge 0` on hard negatives; a scalar or an array that
        broadcasts to ``[*batch]``. 0 gives :func:`debiased_contrastive`.

    Other arguments, the result and errors are those of :func:`debiased_contrastive`.

    References:
      Robinson et al., `Contrastive Learning with Hard Negative Samples
      <https://arxiv.org/abs/2010.04592>`_, 2021; "Contrastive Learning for Personalized
      Recommendation", Eq. 5.52.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{hard_contrastive(pos, neg, tau_plus=0.1, beta=1.0):.4f}")
    1.0746
    """
    a = prepare(pos, neg, temperature, where, weights, extra_positives=True)
    prior = dict(tau_plus=tau_plus, beta=beta, min_score=min_score)
    return _contrastive(_estimators.hard_log_sum, a, reduce_fn, sampled_positives(a), **prior)


@per_anchor_loss
@check_arguments
def bayesian_contrastive(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: hp.TauPlus = 0.05,
    alpha: hp.Alpha = 0.9,
    beta: hp.Beta = 0.7,
    bins: int | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Bayesian contrastive loss, with rank-based importance weights for the negatives.

    .. math:: \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + \sum_j \omega_j e^{s_j/t}}

    with :math:`\omega` from :func:`crl_jax.weights.bayesian_weights`, treated as constant in
    the gradient. Equal to :func:`info_nce` with ``tau_plus=0, beta=0.5``.

    Ranks are invariant to the scale of score differences. With ``beta`` well above 0.5, hard
    negatives keep a large weight even if all scores are almost equal, and embeddings may collapse:
    train with ``beta=0.5`` until the positives score higher.

    Precision: ranks are those of the given scores; ties by rounding share the highest rank.

    Args:
      neg: Scores :math:`s_j` of several negatives: a single one has the top rank.
      tau_plus: Prior probability :math:`\tau^+` in [0, 1) of a false negative.
      alpha: Encoder quality in [0.5, 1]: the probability that a positive scores above a negative.
      beta: Hardness in [0.5, 1]; 0.5 does not emphasize hard negatives. ``tau_plus``,
        ``alpha`` and ``beta`` are scalars or arrays that broadcast to ``[*batch]``.
      bins: Number of histogram bins for approximate ranks, static; useful with thousands of
        negatives. See :func:`crl_jax.weights.bayesian_weights`.

    Other arguments and the result are those of :func:`bpr`.

    Raises:
      ValueError: As :func:`bpr`, and if ``alpha = beta = 1``.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.31.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{bayesian_contrastive(pos, neg, tau_plus=0.1, alpha=0.9, beta=0.5):.4f}")
    0.8714
    """
    a = prepare(pos, neg, temperature, where, weights)
    prior = dict(tau_plus=tau_plus, alpha=alpha, beta=beta, bins=bins)
    return _contrastive(_estimators.bayesian_log_sum, a, reduce_fn, **prior)


@per_anchor_loss
@check_arguments
def adjusted_contrastive(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    mu: hp.Finite = 0.7,
    sigma: hp.Positive = 0.5,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Adjusted InfoNCE loss (ADNCE), with Gaussian weights for the negatives.

    .. math:: \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + \sum_j w_j e^{s_j/t}}

    with :math:`w` from :func:`crl_jax.weights.gaussian_weights`, treated as constant in the
    gradient. InfoNCE emphasizes the highest scores, which may be false negatives; these weights
    shift the emphasis towards the score :math:`\mu`. Tends to :func:`info_nce` as
    :math:`\sigma \to \infty`.

    Args:
      mu: Score :math:`\mu` with the largest weight, in units of the undivided scores; the default
        is that of CIFAR-10 with cosine similarities.
      sigma: Width :math:`\sigma > 0` of the weights, likewise. ``mu`` and ``sigma`` are scalars or
        arrays that broadcast to ``[*batch]``.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Wu et al., `Understanding Contrastive Learning via Distributionally Robust Optimization
      <https://arxiv.org/abs/2310.11048>`_, 2023, ADNCE, and its published code.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{adjusted_contrastive(pos, neg, mu=0.7, sigma=0.5):.4f}")
    1.1542
    """
    a = prepare(pos, neg, temperature, where, weights)
    return _contrastive(_estimators.adjusted_log_sum, a, reduce_fn, mu=mu, sigma=sigma)


@per_anchor_loss
@check_arguments
def decoupled_contrastive(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Decoupled contrastive loss: InfoNCE without the positive in the denominator.

    .. math:: \ell = -\log \frac{e^{s^+/t}}{\sum_j e^{s_j/t}}

    The gradient does not vanish for easy positives and easy negatives, so that few negatives
    suffice. The loss has no lower bound. Not to be confused with
    :func:`debiased_contrastive`, also abbreviated "DCL".

    Arguments, result and errors are those of :func:`bpr`.

    References:
      Yeh et al., `Decoupled Contrastive Learning <https://arxiv.org/abs/2110.06848>`_, 2022,
      Eq. 6; "Contrastive Learning for Personalized Recommendation", section 2.2.4.3.

    >>> pos, neg = jnp.array([2.0]), jnp.array([[0.0, 1.0]])
    >>> print(f"{decoupled_contrastive(pos, neg):.4f}")  # log(1 + e) - 2
    -0.6867
    """
    a = prepare(pos, neg, temperature, where, weights)
    log_g = _estimators.biased_log_sum(a.neg, temperature=a.temperature, where=a.where)
    loss = jnp.where(jnp.isneginf(log_g), 0, log_g - a.pos / a.temperature)
    return finish(loss, a, reduce_fn)


@per_anchor_loss
@check_arguments
def bilateral_softmax(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    repulsion: hp.NonNegative = 1.0,
    pos_temperature: hp.Positive | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Bilateral softmax loss (BSL), robust to noisy positives and negatives.

    .. math:: \ell = -\log \frac1{1+M} \sum_m e^{s^+_m/t^+} + c \log \frac1N \sum_j e^{s_j/t}

    The loss of the paper is this one with :math:`c = t/t^+`, multiplied by :math:`t^+`; its code
    uses a single temperature and c from 0.84 to 1.22. Small temperatures emphasize the positives
    and negatives with the highest scores. The loss is bounded below only if the scores are, as
    cosine similarities are. With one positive, c = 1 and a single temperature, equal to
    :func:`decoupled_contrastive` minus :math:`\log N`.

    Args:
      pos: Scores of the positives, shape ``[*batch, 1 + M]`` (same rank as ``neg``), or
        ``[*batch]`` for one positive per anchor.
      repulsion: Weight :math:`c \ge 0` of the negative term; a scalar or an array that
        broadcasts to ``[*batch]``.
      pos_temperature: Temperature :math:`t^+ > 0` of the positives; a scalar or an array that
        broadcasts to ``[*batch]``. ``None`` means ``temperature``.
      temperature: Temperature :math:`t > 0` of the negatives.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Wu et al., `BSL: Understanding and Improving Softmax Loss for Recommendation
      <https://arxiv.org/abs/2312.12882>`_, 2024, and its published code.

    >>> pos, neg = jnp.array([[0.9, 0.5]]), jnp.array([[0.1, 0.8, -0.3]])
    >>> print(f"{bilateral_softmax(pos, neg, temperature=0.5, repulsion=0.9):.4f}")
    -0.7517
    """
    a = prepare(pos, neg, temperature, where, weights, extra_positives=True)
    dtype = a.pos.dtype
    repulsion = per_anchor("repulsion", repulsion, a.pos.shape, dtype)
    t_pos = jnp.broadcast_to(a.temperature, a.pos.shape)
    if pos_temperature is not None:
        t_pos = per_anchor("pos_temperature", pos_temperature, a.pos.shape, dtype)
    attraction = a.pos / t_pos
    if a.extra is not None:
        attraction = log_mean_exp(all_positives(a) / expand_anchor_axis(t_pos))
    log_mean = log_mean_exp(a.neg / a.temperature, where=a.where)
    if a.valid is not None:  # the log-mean-exp of an empty set is -inf
        log_mean = jnp.where(a.valid, log_mean, 0)
    return finish(repulsion * log_mean - attraction, a, reduce_fn)


@per_anchor_loss
@check_arguments
def info_nce_plus(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    inclusion: hp.NonNegative = 0.0,
    repulsion: hp.NonNegative = 1.1,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""InfoNCE+ and MINE+ losses: InfoNCE with weights of the positive and of the denominator.

    .. math:: \ell = -\frac{s^+}t + \lambda \log\Bigl(\epsilon\,e^{s^+/t} + \sum_j e^{s_j/t}\Bigr)

    With :math:`\epsilon = \lambda = 1`, equal to :func:`info_nce`; with
    :math:`\epsilon = 0, \lambda = 1` to :func:`decoupled_contrastive`. MINE+ is the default
    :math:`\epsilon = 0` with the mean in place of the sum, which subtracts the constant
    :math:`\lambda \log N`: the value of :func:`bilateral_softmax` with one positive.

    Unless :math:`\epsilon = \lambda = 1`, the loss is bounded below only if the scores are, as
    cosine similarities are.

    Args:
      inclusion: Weight :math:`\epsilon \ge 0` of the positive in the denominator; a scalar or an
        array that broadcasts to ``[*batch]``.
      repulsion: Weight :math:`\lambda \ge 0` of the log-denominator; a scalar or an array that
        broadcasts to ``[*batch]``. Published values are 1.1 to 1.2.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Li et al., `Revisiting Recommendation Loss Functions through Contrastive Learning
      <https://arxiv.org/abs/2312.08520>`_, 2023.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{info_nce_plus(pos, neg, temperature=0.5):.4f}")
    0.3612
    """
    a = prepare(pos, neg, temperature, where, weights)
    batch, dtype = a.pos.shape, a.pos.dtype
    inclusion = per_anchor("inclusion", inclusion, batch, dtype)
    repulsion = per_anchor("repulsion", repulsion, batch, dtype)
    positive = a.pos / a.temperature
    log_g = _estimators.biased_log_sum(a.neg, temperature=a.temperature, where=a.where)
    if a.valid is not None:
        log_g = jnp.where(a.valid, log_g, 0)
    # The log-denominator minus the positive's logit: with epsilon = lambda = 1, nothing cancels.
    excluded = inclusion == 0
    log_inclusion = jnp.log(jnp.where(excluded, 1, inclusion))
    behind = log_g - positive
    # log(e^behind + epsilon). At epsilon = 0, the product has its derivative and is 0 itself.
    slope = jnp.exp(jnp.minimum(-behind, _LARGEST_EXPONENT))
    behind = jnp.where(
        excluded, behind + inclusion * slope, log_inclusion + softplus(behind - log_inclusion)
    )
    return finish(repulsion * behind + (repulsion - 1) * positive, a, reduce_fn)


@per_anchor_loss
@check_arguments
def cosine_contrastive(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    margin: hp.NonNegative = 0.4,
    repulsion: hp.NonNegative = 1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Cosine contrastive loss (CCL), with a hinge on the negatives.

    .. math:: \ell = 1 - \frac{s^+}t + \lambda \frac1N \sum_j \max\Bigl(\frac{s_j}t - m,\, 0\Bigr)

    Negatives below the margin have no effect. Intended for cosine similarities; with unbounded
    scores the loss has no lower bound. The published loss has no temperature.

    Args:
      margin: Score :math:`m \ge 0` above which a negative contributes; a scalar or an array that
        broadcasts to ``[*batch]``.
      repulsion: Weight :math:`\lambda \ge 0` of the negative term; a scalar or an array that
        broadcasts to ``[*batch]``. Typically in the hundreds with many negatives.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Mao et al., `SimpleX: A Simple and Strong Baseline for Collaborative Filtering
      <https://arxiv.org/abs/2109.12613>`_, 2021.

    >>> pos, neg = jnp.array([0.75]), jnp.array([[0.5, -0.5]])
    >>> print(cosine_contrastive(pos, neg, margin=0.25, repulsion=2.0))
    0.5
    """
    a = prepare(pos, neg, temperature, where, weights)
    batch, dtype = a.pos.shape, a.pos.dtype
    margin = expand_anchor_axis(per_anchor("margin", margin, batch, dtype))
    repulsion = per_anchor("repulsion", repulsion, batch, dtype)
    excess = jnp.maximum(a.neg / a.temperature - margin, 0)
    return finish(1 - a.pos / a.temperature + repulsion * row_mean(excess, a.where), a, reduce_fn)


@per_anchor_loss
@check_arguments
def debiased_cosine_contrastive(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: hp.TauPlus = 0.05,
    margin: hp.NonNegative = 0.4,
    repulsion: hp.NonNegative = 1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Debiased cosine contrastive loss (debiased CCL); corrects CCL for false negatives.

    .. math::
        \ell = 1 - \frac{s^+}t + \frac{\lambda}{\tau^-} \Bigl[
            \frac1N \sum_j h(s_j) - \tau^+ \frac1K \sum_k h(s^+_k)\Bigr],
        \qquad h(s) = \max\Bigl(\frac st - m,\, 0\Bigr)

    :func:`cosine_contrastive` with an unbiased estimate of its mean over true negatives. The loss
    is pointwise, so that the correction is linear and needs no floor. Equal to
    :func:`cosine_contrastive` for ``tau_plus=0``.

    Args:
      pos: Scores of the positives. With shape ``[*batch]``, the positive is also the single
        sample, :math:`K = 1`, that estimates the false-negative term. With shape
        ``[*batch, 1 + M]`` (same rank as ``neg``), column 0 is the positive and the other M
        columns are the samples, :math:`K = M`.
      tau_plus: Prior probability :math:`\tau^+` in [0, 1) of a false negative; a scalar or an
        array that broadcasts to ``[*batch]``.

    Other arguments and the result are those of :func:`cosine_contrastive`, the errors those of
    :func:`bpr`.

    References:
      Li et al., `Revisiting Recommendation Loss Functions through Contrastive Learning
      <https://arxiv.org/abs/2312.08520>`_, 2023; Jin and Li, `(Debiased) Contrastive Learning Loss
      for Recommendation <https://arxiv.org/abs/2312.08517>`_, 2023.

    >>> pos, neg = jnp.array([[0.75, 0.5, 0.25]]), jnp.array([[0.5, -0.5]])
    >>> loss = debiased_cosine_contrastive(pos, neg, tau_plus=0.5, margin=0.25, repulsion=2.0)
    >>> print(loss)  # 0.25 + 4 (0.125 - 0.5 0.125)
    0.5
    """
    a = prepare(pos, neg, temperature, where, weights, extra_positives=True)
    batch, dtype = a.pos.shape, a.pos.dtype
    tau_plus = per_anchor("tau_plus", tau_plus, batch, dtype)
    margin = expand_anchor_axis(per_anchor("margin", margin, batch, dtype))
    repulsion = per_anchor("repulsion", repulsion, batch, dtype)

    def mean_excess(scores: Array, where: Array | None) -> Array:
        return row_mean(jnp.maximum(scores / a.temperature - margin, 0), where)

    false = tau_plus * mean_excess(sampled_positives(a), None)
    true = (mean_excess(a.neg, a.where) - false) / (1 - tau_plus)
    return finish(1 - a.pos / a.temperature + repulsion * true, a, reduce_fn)


def _contrastive(
    log_sum: Callable[..., Array], a: Anchors, reduce_fn: ReduceFn | None, *args: Any, **prior: Any
) -> Array:
    """Contrastive loss with an estimator of the sum over negatives."""
    log_g = log_sum(a.neg, *args, temperature=a.temperature, where=a.where, **prior)
    # softplus(a - b), not logaddexp(a, b) - b: the latter cancels to 0 in float32 once the
    # margin of the positive exceeds about 17.
    return finish(softplus(log_g - a.pos / a.temperature), a, reduce_fn)
