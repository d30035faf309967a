"""Estimates of what the weights assume: the encoder's quality and the class prior."""

from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32
from .._hyperparams import Range, Scalar, check_arguments
from .._reduce import masked_mean
from .._search import count_below

# The share by which the margin of `estimate_tau_plus` exceeds the one of its theorem.
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
    r"""The encoder's quality :math:`\alpha`, measured on a few labelled anchors.

    .. math::
        \mathrm{AUC} = \frac1{|A|} \sum_{x \in A} \frac1{P_x N_x} \sum_{j, k}
            \mathbb{1}[s^+_{xk} > s^-_{xj}] + \tfrac12\,\mathbb{1}[s^+_{xk} = s^-_{xj}]

    over the anchors :math:`A` with a positive and a negative. Then

    * ``rule="auc"``: :math:`\alpha = \mathrm{AUC}`, as published;
    * ``rule="model"``: :math:`\alpha = \tfrac12 + \tfrac32(\mathrm{AUC} - \tfrac12)`, the
      one whose densities have this AUC.

    They differ because :func:`bayesian_weights` means by :math:`\alpha` the order of a true and a
    false negative that are drawn *as a pair*. Labelled samples are drawn independently. Each is
    the lower or the higher of its own pair, so

    .. math::
        \mathrm{AUC} = \tfrac56\alpha^2 + \alpha(1-\alpha) + \tfrac16(1-\alpha)^2
                     = \tfrac12 + \tfrac13(2\alpha - 1).

    Use ``"model"`` to sort out false negatives (``beta=0.5``). It is right where the densities of
    the model hold, and near for Gaussian scores; ``"auc"`` leaves about half of the bias. Use
    ``"auc"`` to compare with published settings, and for hardness (``beta > 0.5``), which needs
    :math:`\alpha < 1`. The model has no AUC above 5/6. From there on ``"model"`` gives 1: the
    best-scoring sample then counts nothing, and :func:`bayesian_weights` refuses ``beta=1``.

    Args:
      pos: Scores of each anchor with its known positives, shape ``[*batch, n_pos]``. Not
        those it was trained on: they score too high.
      neg: Scores of the same anchors with their known negatives, shape ``[*batch, n_neg]``.
      rule: How the AUC becomes an :math:`\alpha`.
      where_pos: True keeps a positive, shape ``[*batch, n_pos]``.
      where_neg: True keeps a negative, shape ``[*batch, n_neg]``. Others are never read.

    Returns:
      A scalar in [0.5, 1], at least float32: clipped there, as an encoder worse than chance
      has no place in the model. 0.5, knowing nothing, if no anchor has a positive and a negative.
      NaN if a kept score is NaN. Its gradient is zero. Costs a sort of the negatives and a
      search for each positive.

    Raises:
      ValueError: If a shape does not fit or there is no such rule.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.14, 6.15 and 6.21.

    >>> pos, neg = jnp.array([[0.9, 0.4]]), jnp.array([[0.1, 0.5, -0.2, 0.3]])
    >>> print(estimate_alpha(pos, neg))  # 7 of 8 pairs in order
    0.875
    >>> print(estimate_alpha(pos, neg, rule="model"))
    1.0
    """
    if rule not in ("auc", "model"):
        raise ValueError(f"`rule` must be 'auc' or 'model', got {rule!r}.")
    check_shape("neg", neg, (*pos.shape[:-1], *neg.shape[-1:]))
    pos, neg = at_least_float32(pos, neg)
    pos, where_pos, n_pos = _kept("where_pos", pos, where_pos)
    neg, where_neg, n_neg = _kept("where_neg", neg, where_neg)

    below = count_below(neg, pos, "left") + count_below(neg, pos, "right")  # ties half
    share = below.astype(pos.dtype) / (2 * jnp.maximum(n_neg, 1))[..., None].astype(pos.dtype)
    share = jnp.where(jnp.isnan(pos), jnp.nan, share)
    auc = jnp.sum(jnp.where(where_pos, share, 0), axis=-1)
    auc = auc / jnp.maximum(n_pos, 1).astype(auc.dtype)
    auc = jnp.where(jnp.any(where_neg & jnp.isnan(neg), axis=-1), jnp.nan, auc)

    lead = masked_mean(auc - 0.5, where=(n_pos > 0) & (n_neg > 0))
    return jnp.clip(0.5 + (lead if rule == "auc" else 1.5 * lead), 0.5, 1.0)


class TauPlusEstimate(NamedTuple):
    """What :func:`estimate_tau_plus` knows of the class prior."""

    tau_plus: Float[Array, "*batch"]
    """The estimate, in [0, 1]."""
    upper: Float[Array, "*batch"]
    """The prior is no larger than this with the confidence asked for, in [0, 1]."""


@check_arguments
def estimate_tau_plus(
    pos: Float[Array, "*batch n_pos"],
    unlabelled: Float[Array, "*batch n_unlabelled"],
    *,
    confidence: Annotated[Scalar, Range(0.0, 1.0, low_open=True, high_open=True)] = 0.9,
    where_pos: Bool[Array, "*batch n_pos"] | None = None,
    where_unlabelled: Bool[Array, "*batch n_unlabelled"] | None = None,
) -> TauPlusEstimate:
    r"""The share :math:`\tau^+` of positives among unlabelled samples, from scores alone.

    With :math:`\hat q_u(c), \hat q_p(c)` the shares of the unlabelled and of the positives
    that score at least :math:`c`, and :math:`1-\delta` the confidence,

    .. math::
        \hat\tau^+ = \frac{\hat q_u(\hat c)}{\hat q_p(\hat c)}, \qquad
        \hat c = \arg\min_c \frac{\hat q_u(c) + 1.01\,(\epsilon_u + \epsilon_p)}{\hat q_p(c)},
        \qquad \epsilon = \sqrt{\frac{\log(4/\delta)}{2n}}

    The best-scoring of the unlabelled are taken for the positives among them.

    **Assumptions.** Positives are drawn like those among the unlabelled (SCAR). Positives that the
    encoder was trained on score higher and make the estimate *too low*: hold some out. And above
    some threshold there are no true negatives (irreducibility). Otherwise the estimate is *too
    high*. It then tends to :math:`\tau^+ + \tau^- \min_c q_n/q_p`, for the densities of
    :func:`bayesian_weights` :math:`\tau^+ + \tau^-(1-\alpha)/\alpha`.

    **Margin.** With probability :math:`1-\delta` no share is off by more than its
    :math:`\epsilon`; then, for every :math:`c^*` without true negatives above it,

    .. math::
        \hat\tau^+ - \tau^+ \le
            \frac{\epsilon_u + \tau^+\epsilon_p + 1.01\,(\epsilon_u + \epsilon_p)}
                 {\hat q_p(c^*)}

    ``upper`` is :math:`\min_c (\hat q_u + \epsilon_u)/(\hat q_p - \epsilon_p)` and holds without
    irreducibility. No bound from below exists: every unlabelled sample may be a true negative.

    Args:
      pos: Scores of known positives, shape ``[*batch, n_pos]``. Hundreds are needed.
      unlabelled: Scores of unlabelled samples, shape ``[*batch, n_unlabelled]``. Pool anchors with
        few samples: bring their scores to one scale, by :func:`crl_jax.stats.ecdf`, and flatten.
      confidence: The :math:`1-\delta` in (0, 1).
      where_pos: True keeps a positive, shape ``[*batch, n_pos]``.
      where_unlabelled: True keeps an unlabelled sample, shape ``[*batch, n_unlabelled]``.
        Others are never read.

    Returns:
      ``tau_plus`` and ``upper``, each of shape ``[*batch]``, at least float32. Both are 1 without
      positives or without unlabelled samples, and NaN where a kept score is NaN. Only the order of
      scores matters; the gradient is zero. :func:`bayesian_weights` asks for less than 1.

    Raises:
      ValueError: If a shape does not fit or ``confidence`` leaves its range.

    References:
      Garg et al., `Mixture Proportion Estimation and PU Learning: A Modern Approach
      <https://arxiv.org/abs/2111.00980>`_, 2021, Algorithm 1; for ``upper`` Blanchard et al.,
      *Semi-Supervised Novelty Detection*, 2010.

    >>> pos, rest = jnp.linspace(1.0, 3.0, 1000), jnp.linspace(-2.0, 1.5, 9000)
    >>> found = estimate_tau_plus(pos, jnp.concatenate([rest, pos]))  # 1,000 of 10,000
    >>> print(f"{found.tau_plus:.3f} {found.upper:.3f}")
    0.100 0.125
    """
    check_shape("unlabelled", unlabelled, (*pos.shape[:-1], *unlabelled.shape[-1:]))
    pos, unlabelled = at_least_float32(pos, unlabelled)
    dtype = pos.dtype
    kept = _kept("where_pos", pos, where_pos)
    kept_unlabelled = _kept("where_unlabelled", unlabelled, where_unlabelled)
    estimate = _least_ratio(kept, kept_unlabelled, jnp.asarray(confidence, dtype))

    unknown = (kept.n == 0) | (kept_unlabelled.n == 0)
    soiled = _has_nan(kept) | _has_nan(kept_unlabelled)
    return TauPlusEstimate(
        *(jnp.where(soiled, jnp.nan, jnp.where(unknown, 1, value)) for value in estimate)
    )


class _Kept(NamedTuple):
    """Scores without gradient, NaN where not kept; which are kept; how many of each row."""

    scores: Array
    where: Array
    n: Array


def _kept(name: str, scores: Array, where: Array | None) -> _Kept:
    check_shape(name, where, scores.shape)
    where = jnp.ones(scores.shape, bool) if where is None else where
    scores = jnp.where(where, jax.lax.stop_gradient(scores), jnp.nan)
    return _Kept(scores, where, jnp.sum(where, axis=-1, dtype=jnp.int32))


def _has_nan(kept: _Kept) -> Array:
    """Whether a kept score of the row is NaN."""
    return jnp.any(kept.where & jnp.isnan(kept.scores), axis=-1)


def _least_ratio(pos: _Kept, unlabelled: _Kept, confidence: Array) -> tuple[Array, Array]:
    """The estimate and its upper bound, of rows with positives and unlabelled samples."""
    q_p, error_p = _share_above(pos, pos.scores, confidence)
    q_u, error_u = _share_above(unlabelled, pos.scores, confidence)
    # Thresholds are the positives: between two of them the larger has the smaller q_u.
    bound = (q_u + (1 + _SLACK) * (error_u + error_p)) / q_p
    best = jnp.argmin(jnp.where(pos.where, bound, jnp.inf), axis=-1, keepdims=True)
    ratio = jnp.take_along_axis(q_u / q_p, best, axis=-1)[..., 0]
    sure = pos.where & (q_p > error_p)
    room = jnp.where(sure, q_p - error_p, 1)
    return ratio, jnp.min(jnp.where(sure, (q_u + error_u) / room, 1), axis=-1, initial=1)


def _share_above(among: _Kept, at: Array, confidence: Array) -> tuple[Array, Array]:
    """Share of the kept scores at or above each of ``at``, and its uniform error."""
    n = jnp.maximum(among.n, 1)
    above = (n[..., None] - count_below(among.scores, at, "left")).astype(at.dtype)
    n = n.astype(at.dtype)
    error = jnp.sqrt(jnp.log(4 / (1 - confidence)) / (2 * n))
    return above / n[..., None], error[..., None]
