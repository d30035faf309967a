"""Contrastive losses for data with labels, of the negatives or of several positives."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._hyperparams import TauPlus, Temperature, check_arguments, per_anchor
from .._reduce import ReduceFn, masked_mean
from ._common import Anchors, finish, prepare, prepare_many, row_mean
from ._contrastive import contrastive
from ._estimators import biased_log_sum, oracle_log_sum
from ._logspace import log_sum_exp, softplus
from ._protocols import per_anchor_loss


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
    r"""The supervised loss that the debiased losses estimate: labels pick the true negatives.

    .. math::
        \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + G}, \qquad
        G = \frac{N}{|T|} \sum_{j \in T} e^{s_j/t}

    The loss is of N true negatives, and where only those in :math:`T` are, their mean stands
    for the others. That is the scale of :func:`debiased_contrastive` and
    :func:`bayesian_contrastive`, which tend to this loss as N grows. For the plain sum over
    T give :func:`info_nce` the labels as ``where``.

    Args:
      pos: Scores :math:`s^+` of anchors with their positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` with N samples, shape ``[*batch, n_neg]``.
      true_negative: Which samples are in :math:`T`, shape ``[*batch, n_neg]``. The scores of
        others are never read; an anchor without any has loss 0 and leaves the reduction.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`: :math:`N` is the number it keeps.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or ``temperature`` is not positive.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.1, 6.45 and theorem 6.2.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> labels = jnp.array([[False, True, True]])
    >>> print(f"{oracle_contrastive(pos, neg, true_negative=labels):.4f}")
    0.8315
    """

    def log_sum(a: Anchors) -> Array:
        return oracle_log_sum(
            a.neg, true_negative=true_negative, temperature=a.temperature, where=where
        )

    check_shape("true_negative", true_negative, neg.shape)
    check_shape("where", where, neg.shape)
    true = true_negative if where is None else where & true_negative
    anchors = prepare(pos, neg, temperature=temperature, where=true, weights=weights)
    return contrastive(log_sum, anchors, reduce_fn)


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
    r"""Supervised contrastive loss (SupCon): the mean of InfoNCE over several positives.

    .. math::
        \ell = \frac1M \sum_m -\log \frac{e^{s^+_m/t}}{P_m + \sum_j e^{s_j/t}}, \qquad
        P_m = \sum_l e^{s^+_l/t} \;\text{(all)} \quad\text{or}\quad e^{s^+_m/t}
        \;\text{(own)}

    With one positive both are :func:`info_nce`.

    Args:
      pos: Scores :math:`s^+_m` of anchors with their M positives, ``[*batch, n_pos]``.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      denominator: ``"all"`` as published (:math:`L_{out}`), which is at least log M and
        evens out the scores of positives. ``"own"`` keeps the other positives out, as
        SINCERE does, and is 0 where all positives lead far.
      where_pos: True keeps a positive, shape ``[*batch, n_pos]``; others are never read. An
        anchor that keeps no positive, or no negative, has loss 0 and leaves the reduction.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit, ``temperature`` is not positive, or
        ``denominator`` is another word.

    References:
      Khosla et al., `Supervised Contrastive Learning <https://arxiv.org/abs/2004.11362>`_,
      2020, Eq. 2; Feeney and Hughes, `SINCERE <https://arxiv.org/abs/2309.14277>`_, 2023.

    >>> pos, neg = jnp.array([[2.0, 1.0]]), jnp.array([[0.0, 0.5]])
    >>> for denominator in ("all", "own"):
    ...     print(f"{supervised_contrastive(pos, neg, denominator=denominator):.4f}")
    1.0460
    0.4933
    """
    if denominator not in ("all", "own"):
        raise ValueError(f'`denominator` must be "all" or "own", got {denominator!r}.')
    a = prepare_many(
        pos, neg, temperature=temperature, where=where, where_pos=where_pos, weights=weights
    )
    log_g = biased_log_sum(a.neg, temperature=a.temperature, where=a.where)
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
    tau_plus: TauPlus,
    where_pos: Bool[Array, "*batch n_pos"] | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""puNCE: an unlabelled anchor counts in part as positive, in part as negative.

    .. math::
        \ell = -\pi \,\frac{1}{1 + M} \sum_{m=0}^M \log \frac{e^{s^+_m/t}}{Z}
               - (1 - \pi) \log \frac{e^{s^+_0/t}}{Z}, \qquad
        Z = \sum_{m=0}^M e^{s^+_m/t} + \sum_j e^{s_j/t}

    with :math:`s^+_0` for the anchor's own other view and :math:`s^+_1, \dots, s^+_M` for the
    samples labelled positive; :math:`\pi` is 1 for a labelled anchor and ``tau_plus`` for an
    unlabelled one.

    Args:
      pos: Scores :math:`s^+_m` of anchors with their own view, in column 0, and with the
        labelled samples, shape ``[*batch, 1 + M]``.
      neg: Scores :math:`s_j` with the unlabelled samples, shape ``[*batch, n_neg]``.
      labelled: Which anchors are labelled positive themselves, shape ``[*batch]``.
      tau_plus: Prior :math:`\tau^+` in [0, 1) that an unlabelled anchor is in truth a
        positive; a scalar or an array that broadcasts to ``[*batch]``.
      where_pos: True keeps a positive, shape ``[*batch, 1 + M]``; others, such as a labelled
        anchor itself, are never read. An anchor that does not keep its own view has loss 0
        and leaves the reduction, as one without a negative does.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

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
    a = prepare_many(
        pos, neg, temperature=temperature, where=where, where_pos=where_pos, weights=weights
    )
    share = jnp.where(labelled, 1, per_anchor("tau_plus", tau_plus, batch, a.pos.dtype))
    log_g = biased_log_sum(a.neg, temperature=a.temperature, where=a.where)
    positives = a.pos / a.temperature
    as_positive = _mean_minus_log_share(positives, a.where_pos, log_g)

    # In place of the own view, whose mask is that of the anchor, the sum over negatives.
    rest = jnp.concatenate([log_g[..., None], positives[..., 1:]], axis=-1)
    as_negative = softplus(log_sum_exp(rest, where=a.where_pos) - positives[..., 0])
    return finish(share * as_positive + (1 - share) * as_negative, a, reduce_fn)


def _mean_minus_log_share(logits: Array, where: Array | None, log_rest: Array) -> Array:
    """Mean over m of ``log(Σ exp(logits) + exp(log_rest)) - logits_m``; 0 without logits.

    As InfoNCE of the pooled logits plus the distance of their pool from their mean: a
    single one leaves InfoNCE to the last digit, and large ones keep theirs, where the
    difference as printed would cancel.
    """
    mean = row_mean(logits, where)
    above_mean = log_sum_exp(logits - mean[..., None], where=where)
    above_mean = jnp.where(jnp.isneginf(above_mean), 0, above_mean)
    return softplus(log_rest - mean - above_mean) + above_mean
