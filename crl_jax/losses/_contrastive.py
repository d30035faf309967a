r"""Contrastive losses: InfoNCE, its variants, and estimators of its sum over negatives.

.. math:: \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + G} = \mathrm{softplus}(\log G - s^+/t)
"""

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._checks import check_shape
from .._hyperparams import Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import ReduceFn, masked_mean
from . import _estimators
from ._common import (
    Anchors,
    broadcast_like,
    different_pairs,
    finish,
    per_anchor_loss,
    prepare,
    reduce_kept,
    row_mean,
)
from ._logspace import log_mean_exp, log_sum_exp, softplus


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
    return _contrastive(_estimators.debiased_log_sum, a, reduce_fn, _draws(a), **prior)


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
    return _contrastive(_estimators.hard_log_sum, a, reduce_fn, _draws(a), **prior)


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
def oracle_contrastive(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    true_negative: Bool[Array, "*batch n_neg"],
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Contrastive loss over labelled true negatives, the target of the debiased losses.

    .. math::
        \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + G}, \qquad
        G = \frac{N}{|T|} \sum_{j \in T} e^{s_j/t}

    The mean over the true negatives :math:`T` is rescaled to N samples, the scale of
    :func:`debiased_contrastive` and :func:`bayesian_contrastive`, which converge to this loss
    as N grows. For the unscaled sum over :math:`T`, pass the labels as ``where`` to
    :func:`info_nce`.

    Args:
      true_negative: Mask of the set :math:`T` of true negatives, shape ``[*batch, n_neg]``;
        other scores are ignored. An anchor without true negatives has loss 0 and is excluded
        from the reduction.
      where: Mask of valid samples, whose number is :math:`N`.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.1, 6.45 and theorem 6.2.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> labels = jnp.array([[False, True, True]])
    >>> print(f"{oracle_contrastive(pos, neg, true_negative=labels):.4f}")
    0.8315
    """
    check_shape("true_negative", true_negative, neg.shape)
    check_shape("where", where, neg.shape)
    true = true_negative if where is None else where & true_negative
    a = prepare(pos, neg, temperature, true, weights)
    log_g = _estimators.oracle_log_sum(
        a.neg, true_negative=true, temperature=a.temperature, where=where
    )
    return finish(softplus(log_g - a.pos / a.temperature), a, reduce_fn)


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
def proto_nce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    pos_concentration: hp.Positive = 1.0,
    neg_concentration: hp.Positive = 1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""ProtoNCE loss: InfoNCE between anchors and cluster centroids.

    .. math::
        \ell = -\log \frac{e^{s^+/\phi^+ t}}
                          {e^{s^+/\phi^+ t} + \sum_j e^{s_j/\phi_j t}}

    Cluster term only; add the instance-level :func:`info_nce` for the full objective of the
    paper. Stack several clusterings along a batch axis, over which the default reduction
    averages; mask padded centroids with ``where``.

    Args:
      pos: Scores :math:`s^+` of the assigned centroids, shape ``[*batch]``.
      neg: Scores :math:`s_j` of the other centroids, shape ``[*batch, n_neg]``; or of all
        centroids, with ``where`` False at the assigned one.
      pos_concentration: Concentration :math:`\phi^+ > 0` of the assigned centroid, a
        per-cluster temperature; a scalar or an array that broadcasts to ``[*batch]``.
      neg_concentration: Concentrations :math:`\phi_j > 0` of the other centroids; a scalar
        or an array that broadcasts to ``[*batch, n_neg]``, such as ``[n_neg]`` if all
        anchors share the centroids. Both are differentiable and multiplied by the temperature.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Li et al., `Prototypical Contrastive Learning of Unsupervised Representations
      <https://arxiv.org/abs/2005.04966>`_, 2021, Eq. 11; "Contrastive Learning for
      Personalized Recommendation", section 2.2.4.4.

    >>> scores = jnp.array([[0.9, 0.1, 0.3], [0.2, 0.4, 0.6]])  # 2 anchors, 3 centres
    >>> own, phi = jnp.array([0, 2]), jnp.array([0.2, 0.5, 0.4])
    >>> loss = proto_nce(
    ...     scores[jnp.arange(2), own],
    ...     scores,
    ...     where=own[:, None] != jnp.arange(3)[None],
    ...     pos_concentration=phi[own],
    ...     neg_concentration=phi,
    ... )
    >>> print(f"{loss:.4f}")
    0.3899
    """
    a = prepare(pos, neg, temperature, where, weights)
    own = a.pos / broadcast_like("pos_concentration", pos_concentration, a.pos, a.kept, fill=1.0)
    others = a.neg / broadcast_like(
        "neg_concentration", neg_concentration, a.neg, a.where, fill=1.0
    )
    log_g = log_sum_exp(others / a.temperature, where=a.where)
    return finish(softplus(log_g - own / a.temperature), a, reduce_fn)


@check_arguments
def clip_contrastive(
    scores: Float[Array, "*batch n n"],
    *,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n"] | None = None,
    weights: Float[Array, "*batch n"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Symmetric CLIP loss: mean of row-wise and column-wise InfoNCE of a score matrix.

    .. math::
        \ell_i = -\frac12 \log \frac{e^{s_{ii}/t}}{\sum_j e^{s_{ij}/t}}
                 -\frac12 \log \frac{e^{s_{ii}/t}}{\sum_j e^{s_{ji}/t}}

    Args:
      scores: Scores :math:`s_{ij}` between row i (e.g. an image) and column j (e.g. a text),
        shape ``[*batch, n, n]``; matching pairs are on the diagonal.
      temperature: Temperature :math:`t > 0`; divides all scores. To learn it, pass
        ``jnp.exp(-log_scale)`` with a parameter ``log_scale``.
      where: Mask of valid pairs, shape ``[*batch, n]``; rows and columns of masked pairs are
        ignored. A pair without negatives has loss 0 and is excluded from the reduction.
      weights: Per-pair loss weights, shape ``[*batch, n]``.
      reduce_fn: Reduction, called as ``reduce_fn(losses, where=pairs_with_negatives)``.
        ``None`` returns per-pair losses.

    The result and errors are those of :func:`bpr`.

    References:
      Radford et al., `Learning Transferable Visual Models From Natural Language Supervision
      <https://arxiv.org/abs/2103.00020>`_, 2021, Figure 3.

    >>> print(f"{clip_contrastive(jnp.array([[2.0, 0.0], [1.0, 3.0]])):.4f}")
    0.1539
    """
    pairs = scores.shape[:-1]
    check_shape("scores", scores, (*pairs, *pairs[-1:]))
    check_shape("where", where, pairs)
    others = different_pairs(pairs, where)
    own = jnp.diagonal(scores, axis1=-2, axis2=-1)
    by_row, by_column = (
        info_nce(own, neg, temperature=temperature, where=others, weights=weights, reduce_fn=None)
        for neg in (scores, jnp.swapaxes(scores, -1, -2))
    )
    return reduce_kept((by_row + by_column) / 2, jnp.any(others, axis=-1), None, reduce_fn)


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
        positives = jnp.concatenate([a.pos[..., None], a.extra], axis=-1)
        attraction = log_mean_exp(positives / expand_anchor_axis(t_pos))
    crowd = log_mean_exp(a.neg / a.temperature, where=a.where)
    if a.kept is not None:  # the log-mean-exp of an empty set is -inf
        crowd = jnp.where(a.kept, crowd, 0)
    return finish(repulsion * crowd - attraction, a, reduce_fn)


@per_anchor_loss
@check_arguments
def supervised_contrastive(
    pos: Float[Array, "*batch n_pos"],
    neg: Float[Array, "*batch n_neg"],
    *,
    denominator: Literal["all", "own"] = "all",
    where_pos: Bool[Array, "*batch n_pos"] | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Supervised contrastive loss (SupCon): mean InfoNCE over several positives.

    .. math::
        \ell = \frac1M \sum_m -\log \frac{e^{s^+_m/t}}{P_m + \sum_j e^{s_j/t}}, \qquad
        P_m = \sum_l e^{s^+_l/t} \;\text{(all)} \quad\text{or}\quad e^{s^+_m/t}
        \;\text{(own)}

    Both denominators reduce to :func:`info_nce` with one positive.

    Args:
      pos: Scores :math:`s^+_m` of the M positives, shape ``[*batch, n_pos]``.
      denominator: ``"all"`` includes all positives, as published (:math:`L_{out}`); the loss
        is at least log M and equalizes the scores of the positives. ``"own"`` excludes the
        other positives, as SINCERE does; the loss tends to 0 as the margins of all positives
        grow.
      where_pos: Mask of valid positives, shape ``[*batch, n_pos]``; masked scores are
        ignored. An anchor without valid positives or negatives has loss 0 and is excluded
        from the reduction.

    Other arguments and the result are those of :func:`bpr`.

    Raises:
      ValueError: As :func:`bpr`, and if ``denominator`` is unknown.

    References:
      Khosla et al., `Supervised Contrastive Learning <https://arxiv.org/abs/2004.11362>`_,
      2020, Eq. 2; Feeney and Hughes, `SINCERE <https://arxiv.org/abs/2309.14277>`_, 2023.

    >>> pos, neg = jnp.array([[2.0, 1.0]]), jnp.array([[0.0, 0.5]])
    >>> for denominator in ("all", "own"):
    ...     print(f"{supervised_contrastive(pos, neg, denominator=denominator):.4f}")
    1.0460
    0.4933
    """
    a = prepare(pos, neg, temperature, where, weights, many_positives=True, where_pos=where_pos)
    log_g = _estimators.biased_log_sum(a.neg, temperature=a.temperature, where=a.where)
    positives = a.pos / a.temperature
    if denominator == "own":
        loss = row_mean(softplus(log_g[..., None] - positives), a.where_pos)
    else:
        loss = _mean_minus_log_share(positives, a.where_pos, log_g)
    return finish(loss, a, reduce_fn)


@per_anchor_loss
@check_arguments
def punce(
    pos: Float[Array, "*batch n_pos"],
    neg: Float[Array, "*batch n_neg"],
    *,
    labelled: Bool[Array, "*batch"],
    tau_plus: hp.TauPlus = 0.05,
    where_pos: Bool[Array, "*batch n_pos"] | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Positive-unlabelled contrastive loss (puNCE), with prior-weighted unlabelled anchors.

    .. math::
        \ell = -\pi \,\frac{1}{1 + M} \sum_{m=0}^M \log \frac{e^{s^+_m/t}}{Z}
               - (1 - \pi) \log \frac{e^{s^+_0/t}}{Z}, \qquad
        Z = \sum_{m=0}^M e^{s^+_m/t} + \sum_j e^{s_j/t}

    with :math:`s^+_0` the score of the anchor's other view, :math:`s^+_1, \dots, s^+_M` the
    scores of samples labelled positive, and :math:`\pi` equal to 1 for labelled anchors and
    ``tau_plus`` for unlabelled ones.

    Args:
      pos: Scores :math:`s^+_m`, shape ``[*batch, 1 + M]``: the anchor's other view in column
        0, followed by the samples labelled positive.
      neg: Scores :math:`s_j` of the unlabelled samples, shape ``[*batch, n_neg]``.
      labelled: Mask of anchors labelled positive, shape ``[*batch]``.
      tau_plus: Prior probability :math:`\tau^+` in [0, 1) that an unlabelled anchor is
        positive; a scalar or an array that broadcasts to ``[*batch]``.
      where_pos: Mask of valid positives, shape ``[*batch, 1 + M]``, for instance False where a
        labelled sample is the anchor itself; masked scores are ignored. An anchor whose
        other view is masked, or without valid negatives, has loss 0 and is excluded from the
        reduction.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Acharya et al., `Positive Unlabeled Contrastive Learning
      <https://arxiv.org/abs/2206.01206>`_, 2022.

    >>> pos, neg = jnp.array([[2.0, 1.0], [2.0, 1.0]]), jnp.array([[0.0, 0.5], [0.0, 0.5]])
    >>> labelled = jnp.array([True, False])
    >>> each = punce(pos, neg, labelled=labelled, tau_plus=0.2, reduce_fn=None)
    >>> [f"{loss:.4f}" for loss in each]
    ['1.0460', '0.6460']
    """
    batch = neg.shape[:-1]
    check_shape("where_pos", where_pos, pos.shape)
    check_shape("labelled", labelled, batch)
    if where_pos is not None:
        where_pos = where_pos & where_pos[..., :1]
    a = prepare(pos, neg, temperature, where, weights, many_positives=True, where_pos=where_pos)
    share = jnp.where(labelled, 1, per_anchor("tau_plus", tau_plus, batch, a.pos.dtype))
    log_g = _estimators.biased_log_sum(a.neg, temperature=a.temperature, where=a.where)
    positives = a.pos / a.temperature
    as_positive = _mean_minus_log_share(positives, a.where_pos, log_g)

    # The sum over negatives replaces column 0, whose mask is that of the anchor.
    rest = jnp.concatenate([log_g[..., None], positives[..., 1:]], axis=-1)
    as_negative = softplus(log_sum_exp(rest, where=a.where_pos) - positives[..., 0])
    return finish(share * as_positive + (1 - share) * as_negative, a, reduce_fn)


def _contrastive(
    log_sum: Callable[..., Array], a: Anchors, reduce_fn: ReduceFn | None, *args: Any, **prior: Any
) -> Array:
    """Contrastive loss with an estimator of the sum over negatives."""
    log_g = log_sum(a.neg, *args, temperature=a.temperature, where=a.where, **prior)
    # softplus(a - b), not logaddexp(a, b) - b: the latter cancels to 0 in float32 once the
    # margin of the positive exceeds about 17.
    return finish(softplus(log_g - a.pos / a.temperature), a, reduce_fn)


def _draws(a: Anchors) -> Array:
    """Scores ``[*batch, K]`` of the extra positives, or of the positive if there are none."""
    return a.pos[..., None] if a.extra is None else a.extra


def _mean_minus_log_share(logits: Array, where: Array | None, log_rest: Array) -> Array:
    """Mean over m of ``log(Σ exp(logits) + exp(log_rest)) - logits_m``; 0 for an empty set."""
    # Centring the logits avoids cancellation for large values, and equals InfoNCE exactly for
    # a single logit.
    mean = row_mean(logits, where)
    above_mean = log_sum_exp(logits - mean[..., None], where=where)
    above_mean = jnp.where(jnp.isneginf(above_mean), 0, above_mean)
    return softplus(log_rest - mean - above_mean) + above_mean
