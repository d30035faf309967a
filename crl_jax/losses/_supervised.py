"""Contrastive losses that use labels."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._checks import check_shape
from .._hyperparams import Temperature, check_arguments, per_anchor
from .._reduce import ReduceFn, masked_mean
from . import _estimators
from ._common import finish, margins, per_anchor_loss, prepare, row_mean
from ._logspace import log_mean_sigmoid, log_sum_exp, softplus


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
    true = _true_negatives(true_negative, where, neg)
    a = prepare(pos, neg, temperature, true, weights)
    log_g = _estimators.oracle_log_sum(
        a.neg, true_negative=true, temperature=a.temperature, where=where
    )
    return finish(softplus(log_g - a.pos / a.temperature), a, reduce_fn)


@per_anchor_loss
@check_arguments
def oracle_pairwise(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    true_negative: Bool[Array, "*batch n_neg"],
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Pairwise loss over labelled true negatives, the target of the debiased pairwise loss.

    .. math:: \ell = -\log \frac{1}{|T|} \sum_{j \in T} \sigma\bigl((s^+ - s_j)/t\bigr)

    :func:`debiased_pairwise` converges to this loss as the numbers of unlabelled samples and of
    further positives grow. By Jensen's inequality the loss is at most that of :func:`bpr` over
    the true negatives, where the logarithm is inside the mean; with one true negative they are
    equal.

    Args:
      true_negative: Mask of the set :math:`T` of true negatives, shape ``[*batch, n_neg]``;
        other scores are ignored. An anchor without true negatives has loss 0 and is excluded
        from the reduction.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 5.27 and lemma 5.2.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> labels = jnp.array([[False, True, True]])
    >>> print(f"{oracle_pairwise(pos, neg, true_negative=labels):.4f}")
    0.3572
    """
    true = _true_negatives(true_negative, where, neg)
    a = prepare(pos, neg, temperature, true, weights)
    log_ranked = log_mean_sigmoid(margins(a, a.neg), a.where)
    return finish(-jnp.where(jnp.any(true, axis=-1), log_ranked, 0), a, reduce_fn)


def _true_negatives(true_negative: Array, where: Array | None, neg: Array) -> Array:
    """Mask of the valid true negatives, after checks of both shapes."""
    check_shape("true_negative", true_negative, neg.shape)
    check_shape("where", where, neg.shape)
    return true_negative if where is None else where & true_negative


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
    other_logits = jnp.concatenate([log_g[..., None], positives[..., 1:]], axis=-1)
    as_negative = softplus(log_sum_exp(other_logits, where=a.where_pos) - positives[..., 0])
    return finish(share * as_positive + (1 - share) * as_negative, a, reduce_fn)


def _mean_minus_log_share(logits: Array, where: Array | None, log_neg_sum: Array) -> Array:
    """Mean over m of ``log(Σ exp(logits) + exp(log_neg_sum)) - logits_m``; 0 for an empty set."""
    # Centring the logits avoids cancellation for large values, and equals InfoNCE exactly for
    # a single logit.
    mean = row_mean(logits, where)
    above_mean = log_sum_exp(logits - mean[..., None], where=where)
    above_mean = jnp.where(jnp.isneginf(above_mean), 0, above_mean)
    return softplus(log_neg_sum - mean - above_mean) + above_mean
