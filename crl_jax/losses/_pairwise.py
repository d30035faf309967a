"""Pairwise losses, which compare a positive with individual negatives."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._checks import check_shape
from .._hyperparams import Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import ReduceFn, masked_mean
from ._common import broadcast_like, finish, margins, per_anchor_loss, prepare, row_mean
from ._logspace import log_debiased, log_mean_sigmoid, softplus


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

    .. math:: \ell = \frac1N \sum_j -\log \sigma\bigl((s^+ - s_j)/t\bigr)

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
      The loss, reduced by ``reduce_fn``; at least float32.

    Raises:
      ValueError: If shapes are incompatible or a hyper-parameter is out of range.

    References:
      Rendle et al., `BPR: Bayesian Personalized Ranking from Implicit Feedback
      <https://arxiv.org/abs/1205.2618>`_, 2009, section 4.1.

    >>> print(f"{bpr(jnp.array([2.0, 0.0]), jnp.array([[1.0], [0.5]])):.4f}")
    0.6437
    """
    a = prepare(pos, neg, temperature, where, weights)
    return finish(row_mean(softplus(-margins(a, a.neg)), a.where), a, reduce_fn)


@per_anchor_loss
@check_arguments
def debiased_pairwise(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: hp.TauPlus = 0.05,
    floor: hp.Share = 1e-2,
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
      tau_plus: Prior probability :math:`\tau^+` in [0, 1) that a negative is a false negative;
        a scalar or an array that broadcasts to ``[*batch]``.
      floor: Lower bound of the estimated probability, in [0, 1]; the gradient is zero below
        it. For 0, the bound is the rounding error of the first term, so that non-positive
        estimates give a large but finite loss.

    Other arguments and errors are those of :func:`bpr`.

    Returns:
      As :func:`bpr`; negative if the estimate exceeds 1, which an unbiased estimate may.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 5.17 and 5.18.

    >>> pos, neg = jnp.array([[1.0, 0.5, 2.0]]), jnp.array([[0.2, -0.3, 0.9]])
    >>> print(f"{debiased_pairwise(pos, neg, tau_plus=0.1):.4f}")
    0.3689
    """
    a = prepare(pos, neg, temperature, where, weights, extra_positives=True)
    batch, dtype = a.pos.shape, a.pos.dtype
    tau_plus = per_anchor("tau_plus", tau_plus, batch, dtype)
    floor = per_anchor("floor", floor, batch, dtype)

    log_mixed = log_mean_sigmoid(margins(a, a.neg), a.where)
    if a.extra is None:
        log_false = jnp.asarray(np.log(0.5), dtype)
    else:
        log_false = log_mean_sigmoid(margins(a, a.extra), None)
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
    margin: hp.NonNegative = 1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Triplet margin loss, averaged over the negatives per anchor.

    .. math:: \ell = \frac1N \sum_j \max\bigl((s_j - s^+)/t + m,\, 0\bigr)

    Args:
      pos, neg: As in :func:`bpr`; negated distances for a metric loss.
      margin: Margin :math:`m \ge 0` of the positive over a negative; a scalar or an array that
        broadcasts to ``[*batch]``.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Schroff et al., `FaceNet: A Unified Embedding for Face Recognition and Clustering
      <https://arxiv.org/abs/1503.03832>`_, 2015, Eq. 2; Chen et al., `A Simple Framework for
      Contrastive Learning of Visual Representations <https://arxiv.org/abs/2002.05709>`_,
      2020, Table 2.

    >>> print(triplet_margin(jnp.array([0.75]), jnp.array([[0.5, -2.0]]), margin=0.5))
    0.125
    """
    a = prepare(pos, neg, temperature, where, weights)
    margin = expand_anchor_axis(per_anchor("margin", margin, a.pos.shape, a.pos.dtype))
    return finish(row_mean(jnp.maximum(margin - margins(a, a.neg), 0), a.where), a, reduce_fn)


@per_anchor_loss
@check_arguments
def linear_pairwise(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    repulsion: hp.NonNegative = 1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Linear pairwise loss: mean score of the negatives minus the score of the positive.

    .. math:: \ell = -s^+/t + \lambda \frac1N \sum_j s_j/t

    The loss is unbounded below unless the scores are bounded, as cosine similarities are.

    Args:
      repulsion: Weight :math:`\lambda \ge 0` of the negatives; a scalar or an array that
        broadcasts to ``[*batch]``.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Le-Khac et al., `Contrastive Representation Learning: A Framework and Review
      <https://arxiv.org/abs/2010.05113>`_, 2020.

    >>> print(linear_pairwise(jnp.array([2.0]), jnp.array([[1.0, 0.0]]), repulsion=0.5))
    -1.75
    """
    a = prepare(pos, neg, temperature, where, weights)
    repulsion = per_anchor("repulsion", repulsion, a.pos.shape, a.pos.dtype)
    difference = repulsion * row_mean(a.neg, a.where) - a.pos
    return finish(difference / a.temperature, a, reduce_fn)


@per_anchor_loss
@check_arguments
def gbpr(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    group: Float[Array, "*batch n_group"],
    rho: hp.Share = 0.4,
    where_group: Bool[Array, "*batch n_group"] | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Group Bayesian personalised ranking (GBPR) loss.

    .. math::
        \ell = \frac1N \sum_j -\log \sigma\Bigl(\Bigl[
            \frac{\rho}{|G|} \sum_{w \in G} s_{wi} + (1 - \rho)\, s^+ - s_j\Bigr] / t\Bigr)

    Averaging the positive score over a group of users reduces the effect of noisy positives.
    Equivalent to :func:`bpr` for ``rho=0``.

    Args:
      group: Scores :math:`s_{wi}` of a group of users with the positive item :math:`i`, shape
        ``[*batch, n_group]``; in the paper the group includes the anchor.
      rho: Weight :math:`\rho` in [0, 1] of the group mean; a scalar or an array that
        broadcasts to ``[*batch]``.
      where_group: Mask of valid group members, shape ``[*batch, n_group]``; masked scores are
        ignored. For anchors with an empty group, ``rho`` is 0.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Pan and Chen, `GBPR: Group Preference Based Bayesian Personalized Ranking for One-Class
      Collaborative Filtering <https://www.ijcai.org/Proceedings/13/Papers/396.pdf>`_, 2013,
      Eq. 3; "Contrastive Learning for Personalized Recommendation", section 3.5.1.

    >>> pos, neg, group = jnp.array([0.5]), jnp.array([[0.2]]), jnp.array([[1.0, 2.0]])
    >>> print(f"{gbpr(pos, neg, group=group, rho=0.4):.4f}")  # softplus(0.2 - 0.9)
    0.4032
    """
    check_shape("group", group, (*neg.shape[:-1], *group.shape[-1:]))
    check_shape("where_group", where_group, group.shape)
    a = prepare(pos, neg, temperature, where, weights)
    keep = jnp.ones(group.shape, bool) if where_group is None else where_group
    if a.valid is not None:
        keep = keep & a.valid[..., None]
    group_mean = row_mean(jnp.where(keep, jnp.asarray(group, a.pos.dtype), 0), keep)
    rho = jnp.where(jnp.any(keep, axis=-1), per_anchor("rho", rho, a.pos.shape, a.pos.dtype), 0)
    a = a._replace(pos=rho * group_mean + (1 - rho) * a.pos)
    return finish(row_mean(softplus(-margins(a, a.neg)), a.where), a, reduce_fn)


@per_anchor_loss
@check_arguments
def mpr(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    likely: Float[Array, "*batch"],
    balance: hp.Share = 0.5,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Multiple pairwise ranking (MPR) loss.

    .. math::
        \ell = \frac1N \sum_{j} -\log \sigma\bigl(\bigl[
            \lambda\,(s^+ - s_{j_1})
            + (1 - \lambda)\,\{(s_{j_1} - s_j) - (s_{i_1} - s_{i_2})\}\bigr] / t\bigr)

    The model assumption is :math:`s^+ - s_j \ge s_{j_1} - s_j \ge s_{i_1} - s_{i_2}`: an
    unobserved item :math:`j_1` that the user may like ranks between the positive and the negative,
    with a larger margin over the latter than between two positives. For ``balance=1`` it is
    :func:`bpr` with the likely item as the negative.

    Args:
      pos: Scores of anchor-positive pairs. Shape ``[*batch]``: only the positive :math:`s^+`;
        the margin :math:`s_{i_1} - s_{i_2}` is replaced by its expectation 0. Shape
        ``[*batch, 3]`` (same rank as ``neg``): :math:`s^+`, :math:`s_{i_1}` and
        :math:`s_{i_2}`.
      neg: Scores :math:`s_j` of negatives, such as unpopular items, ``[*batch, n_neg]``.
      likely: Scores :math:`s_{j_1}` of an unobserved item that the user may like, shape
        ``[*batch]``.
      balance: Weight :math:`\lambda` in [0, 1] of the first comparison; a scalar or an array that
        broadcasts to ``[*batch]``.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Yu et al., `Multiple Pairwise Ranking with Implicit Feedback
      <https://doi.org/10.1145/3269206.3269294>`_, 2018; "Contrastive Learning for
      Personalized Recommendation", section 3.5.1, whose :math:`j_2` is the same on both
      sides.

    >>> pos, neg, likely = jnp.array([2.0]), jnp.array([[0.0, -1.0]]), jnp.array([1.0])
    >>> print(f"{mpr(pos, neg, likely=likely, balance=0.5):.4f}")
    0.2573
    """
    check_shape("likely", likely, neg.shape[:-1])
    a = prepare(pos, neg, temperature, where, weights, extra_positives=True)
    if a.extra is not None:
        check_shape("pos", pos, (*neg.shape[:-1], 3))
    share = per_anchor("balance", balance, a.pos.shape, a.pos.dtype)
    between = broadcast_like("likely", likely, a.pos, a.valid)
    spread = 0 if a.extra is None else a.extra[..., 0] - a.extra[..., 1]
    anchor_margin = share * (a.pos - between) + (1 - share) * (between - spread)
    margin = anchor_margin[..., None] - expand_anchor_axis(1 - share) * a.neg
    return finish(row_mean(softplus(-margin / a.temperature), a.where), a, reduce_fn)
