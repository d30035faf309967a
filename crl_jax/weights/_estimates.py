"""Estimators of the encoder quality and the class prior."""

from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32
from .._hyperparams import Range, Scalar, check_arguments
from .._reduce import masked_mean
from .._search import count_below

# Relative slack of the confidence margin in `estimate_tau_plus` (γ in Garg et al.).
_SLACK = 0.01


@check_arguments
def estimate_alpha(
    pos: Float[Array, "*batch n_pos"],
    neg: Float[Array, "*batch n_neg"],
    *,
    rule: Literal["auc", "model"] = "auc",
    where_pos: Bool[Array, "*batch n_pos"] | None = None,
    where_neg: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, ""]:
    r"""Estimates the encoder quality :math:`\alpha` from a few labelled anchors.

    .. math::
        \mathrm{AUC} = \frac1{|A|} \sum_{x \in A} \frac1{P_x N_x} \sum_{j, k}
            \mathbb{1}[s^+_{xk} > s^-_{xj}] + \tfrac12\,\mathbb{1}[s^+_{xk} = s^-_{xj}]

    over the anchors :math:`A` that have at least one positive and one negative. Then

    * ``rule="auc"``: :math:`\alpha = \mathrm{AUC}`, as published;
    * ``rule="model"``: :math:`\alpha = \tfrac12 + \tfrac32(\mathrm{AUC} - \tfrac12)`, the value
      for which the model densities have this AUC.

    The rules differ because :math:`\alpha` in :func:`bayesian_weights` is the probability that a
    true and a false negative drawn *as a pair* are ordered correctly, whereas labelled samples are
    drawn independently, each the lower or the higher score of a separate pair:

    .. math:: \mathrm{AUC} = \tfrac56\alpha^2 + \alpha(1-\alpha) + \tfrac16(1-\alpha)^2.

    **Assumptions.** ``"auc"`` equates the two probabilities. ``"model"`` is consistent if scores
    follow the model densities, whose AUC is at most 5/6; above, it returns 1. Scores of trained
    encoders do not: from an AUC of about 0.75, the most likely :math:`\alpha` is nearer to the AUC,
    and ``"model"`` removes more than the bias, several times as much above 5/6. Prefer ``"auc"``
    there, and where :math:`\alpha < 1` is required (``beta > 0.5``), and ``"model"`` for weak
    encoders, where ``"auc"`` leaves a third of the bias or more. The user guide has measurements.

    Args:
      pos: Scores of the known positives of each anchor, shape ``[*batch, n_pos]``. Use held-out
        positives: scores of training positives are biased upwards.
      neg: Scores of the known negatives of the same anchors, shape ``[*batch, n_neg]``.
      rule: Conversion from the AUC to :math:`\alpha`.
      where_pos, where_neg: Masks of valid scores, of the shapes of ``pos`` and ``neg``.

    Returns:
      Scalar clipped to [0.5, 1], since the model excludes encoders below chance level; at least
      float32. 0.5 if no anchor has both a positive and a negative, NaN if an unmasked score is
      NaN. The gradient is zero.

    Raises:
      ValueError: If a shape does not match or ``rule`` is unknown.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.14, 6.15 and 6.21.

    >>> pos, neg = jnp.array([[0.9, 0.4]]), jnp.array([[0.1, 0.5, -0.2, 0.3]])
    >>> print(estimate_alpha(pos, neg))  # 7 of 8 pairs in order
    0.875
    >>> print(estimate_alpha(pos, neg, rule="model"))
    1.0
    """
    check_shape("neg", neg, (*pos.shape[:-1], *neg.shape[-1:]))
    pos, neg = at_least_float32(pos, neg)
    pos, where_pos, n_pos = _unmasked("where_pos", pos, where_pos)
    neg, where_neg, n_neg = _unmasked("where_neg", neg, where_neg)

    below = count_below(neg, pos, "left") + count_below(neg, pos, "right")  # ties count one half
    share = below.astype(pos.dtype) / (2 * jnp.maximum(n_neg, 1))[..., None].astype(pos.dtype)
    share = jnp.where(jnp.isnan(pos), jnp.nan, share)
    auc = jnp.sum(jnp.where(where_pos, share, 0), axis=-1)
    auc = auc / jnp.maximum(n_pos, 1).astype(auc.dtype)
    auc = jnp.where(jnp.any(where_neg & jnp.isnan(neg), axis=-1), jnp.nan, auc)

    lead = masked_mean(auc - 0.5, where=(n_pos > 0) & (n_neg > 0))
    return jnp.clip(0.5 + (lead if rule == "auc" else 1.5 * lead), 0.5, 1.0)


class TauPlusEstimate(NamedTuple):
    """Estimate and upper confidence bound of the class prior, see :func:`estimate_tau_plus`."""

    tau_plus: Float[Array, "*batch"]
    """Point estimate, in [0, 1]."""
    upper: Float[Array, "*batch"]
    """Upper confidence bound, in [0, 1]."""


@check_arguments
def estimate_tau_plus(
    pos: Float[Array, "*batch n_pos"],
    unlabelled: Float[Array, "*batch n_unlabelled"],
    *,
    confidence: Annotated[Scalar, Range(0.0, 1.0, low_open=True, high_open=True)] = 0.9,
    where_pos: Bool[Array, "*batch n_pos"] | None = None,
    where_unlabelled: Bool[Array, "*batch n_unlabelled"] | None = None,
) -> TauPlusEstimate:
    r"""Estimates the class prior :math:`\tau^+` from scores of positive and unlabelled samples.

    With the fractions :math:`\hat q_u(c), \hat q_p(c)` of the unlabelled samples and positives
    whose scores are at least :math:`c`, and the confidence level :math:`1-\delta`,

    .. math::
        \hat\tau^+ = \frac{\hat q_u(\hat c)}{\hat q_p(\hat c)}, \qquad
        \hat c = \arg\min_c \frac{\hat q_u(c) + 1.01\,(\epsilon_u + \epsilon_p)}{\hat q_p(c)},
        \qquad \epsilon = \sqrt{\frac{\log(4/\delta)}{2n}}

    All unlabelled samples above the threshold :math:`\hat c` are treated as positives.

    **Assumptions.** Labelled positives are selected completely at random (SCAR). Training
    positives score higher and bias the estimate *downwards*; use held-out positives. There is a
    threshold above which there are no true negatives (irreducibility). Otherwise the estimate is
    biased *upwards*: it converges to :math:`\tau^+ + \tau^- \min_c q_n/q_p`, which under the
    densities of :func:`bayesian_weights` is :math:`\tau^+ + \tau^-(1-\alpha)/\alpha`.

    **Error bound.** With probability :math:`1-\delta` the error of each fraction is at most its
    :math:`\epsilon`; then, for every :math:`c^*` without true negatives above it,

    .. math::
        \hat\tau^+ - \tau^+ \le
            \frac{\epsilon_u + \tau^+\epsilon_p + 1.01\,(\epsilon_u + \epsilon_p)}
                 {\hat q_p(c^*)}

    ``upper`` is :math:`\min_c (\hat q_u + \epsilon_u)/(\hat q_p - \epsilon_p)` and is valid without
    irreducibility; the estimate is clipped to it, as its threshold may be another one. No lower
    bound exists: all unlabelled samples may be true negatives.

    **When the estimate says little.** Where positives and negatives overlap, which is the rule for
    recommenders, the second term dominates unless :math:`\tau^+` is large: with
    :math:`\alpha = 0.99` and :math:`\tau^+ = 0.002` the limit is 0.012. Estimates on simulated data
    were 0.8 to 1.9 times the truth with an AUC above 0.94 and :math:`\tau^+ > 0.008`, but 4 and 16
    times for :math:`\tau^+ = 0.004`, and 9 and 22 times with an AUC up to 0.6 (see the user
    guide). An estimate far above the density of the training data is thus mostly overlap.
    Start a training with that density as :math:`\tau^+`: it is at most :math:`\tau^+` if users
    have interacted with less than half of the items that they like.

    Args:
      pos: Scores of known positives, shape ``[*batch, n_pos]``. Hundreds are needed.
      unlabelled: Scores of unlabelled samples, shape ``[*batch, n_unlabelled]``. To pool anchors
        with few samples, normalise their scores with :func:`crl_jax.stats.ecdf` and flatten.
      confidence: Confidence level :math:`1-\delta` in (0, 1).
      where_pos, where_unlabelled: Masks of valid scores, of the shapes of ``pos`` and
        ``unlabelled``.

    Returns:
      ``tau_plus`` and ``upper``, each of shape ``[*batch]``, at least float32; 1 without positives
      or without unlabelled samples, NaN where an unmasked score is NaN. They depend on the order of
      scores only; the gradient is zero.

    Raises:
      ValueError: If a shape does not match or ``confidence`` is out of range.

    References:
      Garg et al., `Mixture Proportion Estimation and PU Learning: A Modern Approach
      <https://arxiv.org/abs/2111.00980>`_, 2021, Algorithm 1; for ``upper`` Blanchard et al.,
      *Semi-Supervised Novelty Detection*, 2010.

    >>> pos, neg = jnp.linspace(1.0, 3.0, 1000), jnp.linspace(-2.0, 1.5, 9000)
    >>> estimate = estimate_tau_plus(pos, jnp.concatenate([neg, pos]))  # 1,000 of 10,000
    >>> print(f"{estimate.tau_plus:.3f} {estimate.upper:.3f}")
    0.100 0.125
    """
    check_shape("unlabelled", unlabelled, (*pos.shape[:-1], *unlabelled.shape[-1:]))
    pos, unlabelled = at_least_float32(pos, unlabelled)
    dtype = pos.dtype
    valid_pos = _unmasked("where_pos", pos, where_pos)
    valid_unlabelled = _unmasked("where_unlabelled", unlabelled, where_unlabelled)
    estimate = _least_ratio(valid_pos, valid_unlabelled, jnp.asarray(confidence, dtype))

    is_empty = (valid_pos.n == 0) | (valid_unlabelled.n == 0)
    has_nan = _has_nan(valid_pos) | _has_nan(valid_unlabelled)
    return TauPlusEstimate(
        *(jnp.where(has_nan, jnp.nan, jnp.where(is_empty, 1, value)) for value in estimate)
    )


class _UnmaskedScores(NamedTuple):
    """Scores without gradient (NaN where masked), their mask, and the valid count per row."""

    scores: Array
    where: Array
    n: Array


def _unmasked(name: str, scores: Array, where: Array | None) -> _UnmaskedScores:
    check_shape(name, where, scores.shape)
    where = jnp.ones(scores.shape, bool) if where is None else where
    scores = jnp.where(where, jax.lax.stop_gradient(scores), jnp.nan)
    return _UnmaskedScores(scores, where, jnp.sum(where, axis=-1, dtype=jnp.int32))


def _has_nan(sample: _UnmaskedScores) -> Array:
    """Whether a row has an unmasked NaN score."""
    return jnp.any(sample.where & jnp.isnan(sample.scores), axis=-1)


def _least_ratio(
    pos: _UnmaskedScores, unlabelled: _UnmaskedScores, confidence: Array
) -> tuple[Array, Array]:
    """Estimate and upper bound of rows that have positives and unlabelled samples."""
    q_p, error_p = _share_above(pos, pos.scores, confidence)
    q_u, error_u = _share_above(unlabelled, pos.scores, confidence)
    # Thresholds at the positive scores suffice: between two of them q_p is constant, and q_u is
    # smallest at the larger one.
    bound = (q_u + (1 + _SLACK) * (error_u + error_p)) / q_p
    best = jnp.argmin(jnp.where(pos.where, bound, jnp.inf), axis=-1, keepdims=True)
    ratio = jnp.take_along_axis(q_u / q_p, best, axis=-1)[..., 0]
    is_reliable = pos.where & (q_p > error_p)
    room = jnp.where(is_reliable, q_p - error_p, 1)
    upper = jnp.min(jnp.where(is_reliable, (q_u + error_u) / room, 1), axis=-1, initial=1)
    return jnp.minimum(ratio, upper), upper


def _share_above(
    sample: _UnmaskedScores, thresholds: Array, confidence: Array
) -> tuple[Array, Array]:
    """Fraction of valid scores at or above each threshold, and its uniform (DKW) error bound."""
    n = jnp.maximum(sample.n, 1)
    above = (n[..., None] - count_below(sample.scores, thresholds, "left")).astype(thresholds.dtype)
    n = n.astype(thresholds.dtype)
    error = jnp.sqrt(jnp.log(4 / (1 - confidence)) / (2 * n))
    return above / n[..., None], error[..., None]
