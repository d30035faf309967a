"""Estimates of what the weights assume: the encoder's quality and the class prior."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import at_least_float32, check_range, check_shape
from .._reduce import masked_mean
from ..stats._ecdf import count_below

# The share by which the margin of `estimate_tau_plus` exceeds the one of its theorem.
_SLACK = 0.01


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

    They differ because :func:`bayesian_weights` means by :math:`\alpha` the order of a
    true and a false negative that were drawn *as a pair*. Labelled samples are drawn
    independently: each is the lower or the higher of a pair of its own, of two lower (or two
    higher) ones either is the larger with probability 1/2, and a higher one exceeds a lower one
    of another pair with probability 5/6, so

    .. math::
        \mathrm{AUC} = \tfrac56\alpha^2 + \alpha(1-\alpha) + \tfrac16(1-\alpha)^2
                     = \tfrac12 + \tfrac13(2\alpha - 1).

    Use ``"model"`` to sort out false negatives (``beta=0.5``): the posterior and the
    weighted mean are then right where the densities are, and near for Gaussian scores,
    while ``"auc"`` leaves about half of the bias. Use ``"auc"`` where published settings of
    :math:`\alpha` are to be compared with, and for hardness (``beta > 0.5``), which needs
    :math:`\alpha < 1` to have something to stress. The densities cannot have an AUC above
    5/6: from there on ``"model"`` gives 1, by which the best-scoring sample counts nothing and
    ``beta`` does not matter (:func:`bayesian_weights` then refuses ``beta=1``).

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
    pos, where_pos, n_pos = _kept("where_pos", pos, where_pos)
    neg, where_neg, n_neg = _kept("where_neg", neg, where_neg)
    pos, neg = _same_dtype(pos, neg)

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


def estimate_tau_plus(
    pos: Float[Array, "*batch n_pos"],
    unlabelled: Float[Array, "*batch n_unlabelled"],
    *,
    confidence: float | Float[Array, ""] = 0.9,
    where_pos: Bool[Array, "*batch n_pos"] | None = None,
    where_unlabelled: Bool[Array, "*batch n_unlabelled"] | None = None,
) -> TauPlusEstimate:
    r"""The share :math:`\tau^+` of positives among unlabelled samples, from scores alone.

    With :math:`\hat q_u(c), \hat q_p(c)` the shares of the unlabelled and of the positives
    that score at least :math:`c`,

    .. math::
        \hat\tau^+ = \frac{\hat q_u(\hat c)}{\hat q_p(\hat c)}, \qquad
        \hat c = \arg\min_c \frac{\hat q_u(c) + 1.01\,(\epsilon_u + \epsilon_p)}{\hat q_p(c)},
        \qquad \epsilon = \sqrt{\frac{\log(4/\delta)}{2n}}

    where :math:`1-\delta` is the confidence: the best-scoring samples of the unlabelled are the
    positives among them, and :math:`\hat c` goes down as far as this holds and the shares
    are no longer noise.

    **Assumptions.** The positives are drawn from the same distribution as those among the
    unlabelled (SCAR); positives that the encoder was trained on score higher and make the estimate
    *too low*, so hold some out. And some threshold has positives and no true negatives above
    it (irreducibility). Where it has some, the estimate is *too high*: it tends to
    :math:`\min_c q_u/q_p = \tau^+ + \tau^- \min_c q_n/q_p`, the largest prior that the
    scores allow. For the densities of :func:`bayesian_weights` that is
    :math:`\tau^+ + \tau^-(1-\alpha)/\alpha`, so there it is an upper bound alone.

    **Margin.** By the inequality of Dvoretzky, Kiefer, Wolfowitz and Massart, with probability
    :math:`1-\delta` no share is off by more than its :math:`\epsilon`; then

    .. math::
        \hat\tau^+ - \tau^+ \le
            \frac{\epsilon_u + \tau^+\epsilon_p + 1.01\,(\epsilon_u + \epsilon_p)}
                 {\hat q_p(c^*)}

    for every :math:`c^*` without true negatives above it. ``upper`` is
    :math:`\min_c (\hat q_u + \epsilon_u)/(\hat q_p - \epsilon_p)`, which holds without
    irreducibility. There is no such bound from below: the data alone cannot exclude that every
    unlabelled sample is a true negative.

    Args:
      pos: Scores of known positives, shape ``[*batch, n_pos]``. Hundreds are needed.
      unlabelled: Scores of unlabelled samples, shape ``[*batch, n_unlabelled]``. Anchors with
        few samples are better pooled: bring their scores to one scale (:func:`crl_jax.stats.ecdf`
        over an anchor's samples does) and flatten.
      confidence: The :math:`1-\delta` in (0, 1).
      where_pos: True keeps a positive, shape ``[*batch, n_pos]``.
      where_unlabelled: True keeps an unlabelled sample, shape ``[*batch, n_unlabelled]``.
        Others are never read.

    Returns:
      ``tau_plus`` and ``upper``, each of shape ``[*batch]``, at least float32. Both are 1,
      excluding nothing, where there are no positives or no unlabelled samples, and NaN
      where a kept score is NaN. :func:`bayesian_weights` asks for less than 1. Only the order of
      the scores matters; the gradient is zero.

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
    pos, where_pos, n_pos = _kept("where_pos", pos, where_pos)
    unlabelled, where_unlabelled, n_unlabelled = _kept(
        "where_unlabelled", unlabelled, where_unlabelled
    )
    pos, unlabelled = _same_dtype(pos, unlabelled)
    dtype = pos.dtype
    check_range("confidence", confidence, 0.0, 1.0, low_open=True, high_open=True, dtype=dtype)
    soiled = jnp.any(where_pos & jnp.isnan(pos), axis=-1) | jnp.any(
        where_unlabelled & jnp.isnan(unlabelled), axis=-1
    )

    def share_above(scores: Array, count: Array) -> tuple[Array, Array]:
        """Share of ``scores`` at or above each positive, and its uniform error."""
        n = jnp.maximum(count, 1)
        above = (n[..., None] - count_below(scores, pos, "left")).astype(dtype)
        n = n.astype(dtype)
        error = jnp.sqrt(jnp.log(4 / (1 - jnp.asarray(confidence, dtype))) / (2 * n))
        return above / n[..., None], error[..., None]

    # Between two positives only the larger threshold can be best: it has the smaller q_u.
    q_p, error_p = share_above(pos, n_pos)
    q_u, error_u = share_above(unlabelled, n_unlabelled)
    bound = (q_u + (1 + _SLACK) * (error_u + error_p)) / q_p
    best = jnp.argmin(jnp.where(where_pos, bound, jnp.inf), axis=-1, keepdims=True)
    ratio = jnp.take_along_axis(q_u / q_p, best, axis=-1)[..., 0]
    sure = where_pos & (q_p > error_p)
    room = jnp.where(sure, q_p - error_p, 1)
    upper = jnp.min(jnp.where(sure, (q_u + error_u) / room, 1), axis=-1, initial=1)

    unknown = (n_pos == 0) | (n_unlabelled == 0)
    ratio, upper = (jnp.where(unknown, 1, value) for value in (ratio, upper))
    ratio, upper = (jnp.where(soiled, jnp.nan, value) for value in (ratio, upper))
    return TauPlusEstimate(ratio, upper)


def _kept(name: str, scores: Array, where: Array | None) -> tuple[Array, Array, Array]:
    """Scores without gradient, NaN where not kept; which are kept; how many of each row."""
    check_shape(name, where, scores.shape)
    (scores,) = at_least_float32(scores)
    where = jnp.ones(scores.shape, bool) if where is None else where
    scores = jnp.where(where, jax.lax.stop_gradient(scores), jnp.nan)
    return scores, where, jnp.sum(where, axis=-1, dtype=jnp.int32)


def _same_dtype(a: Array, b: Array) -> tuple[Array, Array]:
    dtype = jnp.promote_types(a.dtype, b.dtype)
    return a.astype(dtype), b.astype(dtype)
