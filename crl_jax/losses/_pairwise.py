"""Pairwise losses, which compare a positive with individual negatives."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._hyperparams import (
    NonNegative,
    Share,
    TauPlus,
    Temperature,
    check_arguments,
    expand_anchor_axis,
    per_anchor,
)
from .._reduce import ReduceFn, masked_mean
from ._common import finish, lead, prepare, row_mean
from ._logspace import log_debiased, log_mean_sigmoid, softplus
from ._protocols import per_anchor_loss


@per_anchor_loss
@check_arguments
def bpr(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Bayesian personalised ranking (BPR) loss, averaged over the negatives per anchor.

    .. math::
        \ell = \frac1N \sum_j -\log \sigma\bigl((s^+ - s_j)/t\bigr)

    The loss is a mean over negatives, not a sum, so the number of negatives affects the variance
    of the gradient but not its scale.

    Args:
      pos: Scores :math:`s^+` of anchor-positive pairs, shape ``[*batch]``.
      neg: Scores :math:`s_j` of anchor-negative pairs, shape ``[*batch, n_neg]``.
      temperature: Temperature :math:`t > 0`, the divisor of all scores.
      where: Mask of valid negatives, shape ``[*batch, n_neg]``. Masked scores affect neither
        the loss nor the gradient. Anchors without a valid negative have loss 0 and are
        excluded from the reduction.
      weights: Weights of the anchors, shape ``[*batch]``; differentiable. ``None`` means 1.
      reduce_fn: Reduction, called as ``reduce_fn(losses, where=anchors_with_negatives)``.
        ``None`` returns per-anchor losses.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. At least float32.

    Raises:
      ValueError: If shapes are incompatible or ``temperature`` is not positive.

    References:
      Rendle et al., `BPR: Bayesian Personalized Ranking from Implicit Feedback
      <https://arxiv.org/abs/1205.2618>`_, 2009, section 4.1.

    >>> print(f"{bpr(jnp.array([2.0, 0.0]), jnp.array([[1.0], [0.5]])):.4f}")
    0.6437
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    return finish(row_mean(softplus(-lead(a, a.neg)), a.where), a, reduce_fn)


@per_anchor_loss
@check_arguments
def bce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Binary cross-entropy, averaged over the negatives per anchor (NT-Logistic).

    .. math::
        \ell = -\log \sigma(s^+/t) - \frac1N \sum_j \log \sigma(-s_j/t)

    The mean over negatives, rather than the sum, balances the two classes: the loss is the
    average over N triplets of an anchor, its positive and one negative. Applied to embedding
    similarities it is the NT-Logistic loss; `nt_logistic` is an alias.

    Args:
      pos: Scores :math:`s^+` of anchor-positive pairs, shape ``[*batch]``.
      neg: Scores :math:`s_j` of anchor-negative pairs, shape ``[*batch, n_neg]``.
      temperature: As in :func:`bpr`.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`.
      reduce_fn: As in :func:`bpr`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. At least float32.

    Raises:
      ValueError: If shapes are incompatible or ``temperature`` is not positive.

    References:
      He et al., `Neural Collaborative Filtering <https://arxiv.org/abs/1708.05031>`_, 2017,
      Eq. 7; Chen et al., `A Simple Framework for Contrastive Learning of Visual
      Representations <https://arxiv.org/abs/2002.05709>`_, 2020, Table 2.

    >>> print(f"{bce(jnp.array([2.0, 0.0]), jnp.array([[1.0], [0.5]])):.4f}")
    1.5537
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    false_alarm = row_mean(softplus(a.neg / a.temperature), a.where)
    return finish(softplus(-a.pos / a.temperature) + false_alarm, a, reduce_fn)


nt_logistic = bce


@per_anchor_loss
@check_arguments
def debiased_pairwise(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: TauPlus = 0.05,
    floor: Share = 1e-2,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Debiased pairwise loss, which corrects BPR for false negatives.

    .. math::
        \ell = -\log \max\Bigl(\frac{1}{\tau^-}\Bigl[
            \frac1N \sum_j \sigma\bigl((s^+ - s_j)/t\bigr)
            - \tau^+ \frac1M \sum_m \sigma\bigl((s^+ - s^+_m)/t\bigr)\Bigr],\;
            \text{floor}\Bigr)

    The argument of the logarithm estimates the probability that a positive is ranked above a
    true negative. Equivalent to :func:`bpr` for ``tau_plus=0``, ``floor=0`` and one negative.

    Args:
      pos: Scores of anchor-positive pairs. Shape ``[*batch, 1 + M]`` (same rank as ``neg``):
        column 0 is the positive :math:`s^+`, the others are further positives
        :math:`s^+_m`. Shape ``[*batch]``: the mean over further positives is replaced by ½,
        its exact expectation for two independent positives.
      neg: Scores :math:`s_j` of anchor-negative pairs, shape ``[*batch, n_neg]``.
      tau_plus: Prior probability :math:`\tau^+` in [0, 1) that a negative is a false negative;
        a scalar or an array that broadcasts to ``[*batch]``.
      floor: Lower bound of the estimated probability, in [0, 1]; the gradient is zero below
        it. For 0, the bound is the rounding error of the first term, so that non-positive
        estimates give a large but finite loss.
      temperature: As in :func:`bpr`.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`.
      reduce_fn: As in :func:`bpr`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. At least float32.
      Negative if the estimate exceeds 1, which an unbiased estimate may.

    Raises:
      ValueError: If shapes are incompatible or a hyper-parameter is out of range.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 5.17 and 5.18.

    >>> pos, neg = jnp.array([[1.0, 0.5, 2.0]]), jnp.array([[0.2, -0.3, 0.9]])
    >>> print(f"{debiased_pairwise(pos, neg, tau_plus=0.1):.4f}")
    0.3689
    """
    a = prepare(
        pos, neg, temperature=temperature, where=where, weights=weights, extra_positives=True
    )
    batch, dtype = a.pos.shape, a.pos.dtype
    tau_plus = per_anchor("tau_plus", tau_plus, batch, dtype)
    floor = per_anchor("floor", floor, batch, dtype)

    log_mixed = log_mean_sigmoid(lead(a, a.neg), a.where)
    if a.extra is None:
        log_false = jnp.asarray(np.log(0.5), dtype)
    else:
        log_false = log_mean_sigmoid(lead(a, a.extra), None)
    log_true = log_debiased(log_mixed, log_false, tau_plus)

    # Relative to log_mixed: with floor = 0, the smallest float would clip BPR losses near 100.
    rounding = jax.lax.stop_gradient(log_mixed) + float(np.log(np.finfo(dtype).eps))
    bounded = floor != 0
    log_floor = jnp.where(bounded, jnp.log(jnp.where(bounded, floor, 1)), rounding)
    return finish(-jnp.maximum(log_true, log_floor), a, reduce_fn)


@per_anchor_loss
@check_arguments
def triplet_margin(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    margin: NonNegative = 1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Triplet margin loss, averaged over the negatives per anchor.

    .. math::
        \ell = \frac1N \sum_j \max\bigl((s_j - s^+)/t + m,\, 0\bigr)

    Args:
      pos: Scores :math:`s^+` of anchor-positive pairs, shape ``[*batch]``; negated distances
        for a metric loss.
      neg: Scores :math:`s_j` of anchor-negative pairs, shape ``[*batch, n_neg]``.
      margin: Margin :math:`m \ge 0`; a scalar or an array that broadcasts to ``[*batch]``.
      temperature: As in :func:`bpr`.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`.
      reduce_fn: As in :func:`bpr`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. At least float32.

    Raises:
      ValueError: If shapes are incompatible or a hyper-parameter is out of range.

    References:
      Schroff et al., `FaceNet: A Unified Embedding for Face Recognition and Clustering
      <https://arxiv.org/abs/1503.03832>`_, 2015, Eq. 2; Chen et al., `A Simple Framework for
      Contrastive Learning of Visual Representations <https://arxiv.org/abs/2002.05709>`_,
      2020, Table 2.

    >>> print(triplet_margin(jnp.array([0.75]), jnp.array([[0.5, -2.0]]), margin=0.5))
    0.125
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    margin = expand_anchor_axis(per_anchor("margin", margin, a.pos.shape, a.pos.dtype))
    return finish(row_mean(jnp.maximum(margin - lead(a, a.neg), 0), a.where), a, reduce_fn)


@per_anchor_loss
@check_arguments
def linear_pairwise(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    repulsion: NonNegative = 1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Linear pairwise loss: mean score of the negatives minus the score of the positive.

    .. math::
        \ell = -s^+/t + \lambda \frac1N \sum_j s_j/t

    The loss is unbounded below unless the scores are bounded, as cosine similarities are.

    Args:
      pos: Scores :math:`s^+` of anchor-positive pairs, shape ``[*batch]``.
      neg: Scores :math:`s_j` of anchor-negative pairs, shape ``[*batch, n_neg]``.
      repulsion: Weight :math:`\lambda \ge 0` of the negatives; a scalar or an array that
        broadcasts to ``[*batch]``.
      temperature: As in :func:`bpr`.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`.
      reduce_fn: As in :func:`bpr`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. At least float32.

    Raises:
      ValueError: If shapes are incompatible or a hyper-parameter is out of range.

    References:
      Le-Khac et al., `Contrastive Representation Learning: A Framework and Review
      <https://arxiv.org/abs/2010.05113>`_, 2020.

    >>> print(linear_pairwise(jnp.array([2.0]), jnp.array([[1.0, 0.0]]), repulsion=0.5))
    -1.75
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    repulsion = per_anchor("repulsion", repulsion, a.pos.shape, a.pos.dtype)
    apart = repulsion * row_mean(a.neg, a.where) - a.pos
    return finish(apart / a.temperature, a, reduce_fn)
