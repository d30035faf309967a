r"""Bayesian weights of negatives: how likely a rank is under true negatives.

The model of one anchor: two equal draws from a distribution :math:`\Phi` become the scores
of a true and of a false negative, the lower being the true one with probability
:math:`\alpha`. Relative to :math:`\Phi`, true negatives then have the density
:math:`2[\alpha(1-\Phi) + (1-\alpha)\Phi]` and false ones
:math:`2[(1-\alpha)(1-\Phi) + \alpha\Phi]`. Their mixture with the prior, the density of the
unlabelled, is :math:`2h` below, and its distribution function :math:`u` a quadratic in
:math:`\Phi`.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32, rounded
from .._hyperparams import (
    Alpha,
    Beta,
    PerAnchor,
    TauPlus,
    check_arguments,
    expand_anchor_axis,
    per_anchor,
)
from .._reduce import count_kept
from ..stats import binned_ranks, ranks


@check_arguments
def bayesian_weights(
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: TauPlus,
    alpha: Alpha,
    beta: Beta,
    bins: int | None = None,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch n_neg"]:
    r"""Importance weights that turn unlabelled samples into (hard) true negatives.

    .. math::
        \omega_j = \frac{(1-\beta)\alpha\,(1-\Phi_j) + \beta(1-\alpha)\,\Phi_j}
                        {[(1-\beta)\alpha + \beta(1-\alpha)]\; h_j}
        \qquad
        h_j = \tau^-[\alpha(1-\Phi_j) + (1-\alpha)\Phi_j]
            + \tau^+[(1-\alpha)(1-\Phi_j) + \alpha\Phi_j]

    where :math:`\Phi_j` is the root in [0, 1] of
    :math:`u_j = \Phi^2 (1-2\alpha)(\tau^--\tau^+) + 2\Phi[\alpha\tau^- + (1-\alpha)\tau^+]`
    and :math:`u_j` the share of the anchor's negatives that score no higher. They average
    to about 1. Only ranks matter: any increasing transform of the scores, a temperature
    for one, leaves them as they are; the gradient with respect to ``neg`` is zero.

    Special cases: ``beta=0.5, tau_plus=0`` gives 1 for every negative; ``beta=0.5`` alone
    sorts out false negatives without preferring hard ones, and then
    :math:`\tau^-\omega_j` is the :func:`true_negative_posterior`.

    Args:
      neg: Scores of an anchor with its unlabelled samples, shape ``[*batch, n_neg]``.
      tau_plus: Prior :math:`\tau^+` in [0, 1) that a sample is in truth a positive: 1/C for
        C balanced classes, at least the density of the data for recommendation.
      alpha: Quality :math:`\alpha` of the encoder in [0.5, 1]: the probability that of a
        positive and a negative it scores the positive higher. (The two are a pair in this
        model. Drawn independently from its densities they are in order with probability
        :math:`\tfrac12 + \tfrac13(2\alpha-1)`.)
      beta: Hardness :math:`\beta` in [0.5, 1]; 0.5 prefers no negative for being hard.
        ``tau_plus``, ``alpha`` and ``beta`` may each be an array that broadcasts to
        ``[*batch]``, one value per anchor.
      bins: Takes :math:`u_j` from a histogram of so many bins, :func:`crl_jax.stats.binned_ecdf`:
        linear in the number of negatives. ``None`` takes exact ranks. Static.
      where: True keeps a negative, shape ``[*batch, n_neg]``. Others are never read and
        have weight 0.

    Returns:
      The :math:`\omega_j \ge 0`, shape ``[*batch, n_neg]``, at least float32; NaN for a score
      that is NaN.

    Raises:
      ValueError: If a shape does not fit, a hyper-parameter leaves its range, or an anchor
        has ``alpha = beta = 1``, which no population satisfies: a perfect encoder leaves
        no hard negatives. Traced values cannot be looked at; there that pair gives the
        limit of ``beta`` to 1, so the weights stay finite.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.25 to 6.30, with the
      root of (6.29) in a form that has no 0/0 at ``alpha = 0.5`` or ``tau_plus = 0.5``.

    >>> w = bayesian_weights(jnp.array([0.1, 0.7, 0.4]), tau_plus=0.1, alpha=0.8, beta=0.9)
    >>> print(np.asarray(w).round(3))
    [0.645 2.663 1.087]
    """
    (neg,) = at_least_float32(neg)
    _check_population(alpha, beta, neg.dtype)
    alpha_ = per_anchor("alpha", alpha, neg.shape[:-1], neg.dtype)
    beta_ = per_anchor("beta", beta, neg.shape[:-1], neg.dtype)

    # Shares of easy and hard samples among the true negatives that the loss should see.
    easy, hard = (1 - beta_) * alpha_, beta_ * (1 - alpha_)
    total = easy + hard
    nobody = total == 0
    total = jnp.where(nobody, 1, total)
    easy, hard = jnp.where(nobody, 1, easy / total), hard / total
    return _relative_density(easy, hard, neg, tau_plus, alpha, bins, where)


@check_arguments
def true_negative_posterior(
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: TauPlus,
    alpha: Alpha,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch n_neg"]:
    r"""Probability that a sample is a true negative, given how it ranks.

    .. math::
        P(\mathrm{TN} \mid s_j)
        = \frac{\tau^-[\alpha(1-\Phi_j) + (1-\alpha)\Phi_j]}{h_j}
        = \tau^-\,\omega_j \text{ at } \beta = \tfrac12

    in the notation of :func:`bayesian_weights`. It falls with the rank, and averages to
    about :math:`\tau^-` over an anchor's negatives.

    Args:
      neg: Scores of an anchor with its unlabelled samples, shape ``[*batch, n_neg]``.
      tau_plus: Prior :math:`\tau^+` in [0, 1) that a sample is in truth a positive.
      alpha: Quality :math:`\alpha` of the encoder in [0.5, 1]; like ``tau_plus`` a scalar
        or an array that broadcasts to ``[*batch]``.
      where: True keeps a negative, shape ``[*batch, n_neg]``. Others are never read and
        have probability 0.

    Returns:
      Values in [0, 1], shape ``[*batch, n_neg]``, at least float32; NaN for a score that is NaN.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

    References:
      "Contrastive Learning for Personalized Recommendation", theorem 6.1.

    >>> p = true_negative_posterior(jnp.array([0.1, 0.7, 0.4]), tau_plus=0.1, alpha=0.8)
    >>> print(np.asarray(p).round(3))
    [0.944 0.692 0.889]
    """
    (neg,) = at_least_float32(neg)
    alpha_ = per_anchor("alpha", alpha, neg.shape[:-1], neg.dtype)
    tau_plus_ = per_anchor("tau_plus", tau_plus, neg.shape[:-1], neg.dtype)
    omega = _relative_density(alpha_, 1 - alpha_, neg, tau_plus, alpha, None, where)
    return jnp.minimum(
        expand_anchor_axis(1 - tau_plus_) * omega, 1
    )  # rounding may end an ulp above


def _relative_density(
    easy: Array,
    hard: Array,
    neg: Array,
    tau_plus: PerAnchor,
    alpha: PerAnchor,
    bins: int | None,
    where: Array | None,
) -> Array:
    r"""``easy (1-Φ) + hard Φ``, relative to the density of the unlabelled, at each rank."""
    check_shape("where", where, neg.shape)
    batch, dtype = neg.shape[:-1], neg.dtype
    tau_plus = per_anchor("tau_plus", tau_plus, batch, dtype)
    alpha = per_anchor("alpha", alpha, batch, dtype)
    easy, hard = expand_anchor_axis(easy), expand_anchor_axis(hard)

    n = expand_anchor_axis(count_kept(neg, where)).astype(dtype)
    if bins is None:
        rank = ranks(neg, where=where).astype(dtype)
    else:
        rank = binned_ranks(neg, bins=bins, where=where)
    u, v = rank / n, (n - rank) / n  # v = 1 - u, exactly

    # Everything below is a sum of non-negative terms, so nothing cancels: neither where
    # the quadratic degenerates (alpha or tau_plus = 0.5) nor at its ends. With a + b = 1
    # of the published root, b/2 = big, and its discriminant b² + 4au is 4h².
    small = expand_anchor_axis((1 - alpha) * (1 - tau_plus) + alpha * tau_plus)
    big = expand_anchor_axis(alpha * (1 - tau_plus) + (1 - alpha) * tau_plus)  # small + big = 1
    gap = v - small  # = big - u
    last = v == 0  # the best score: h = small, to the last bit, though its square underflow
    h = jnp.where(last, small, jnp.sqrt(jnp.where(last, 1, gap * gap + u * v)))
    phi = u / (big + h)
    below = gap < 0
    h_plus_gap = jnp.where(below, u * v / jnp.where(below, h - gap, 1), h + gap)
    one_minus_phi = h_plus_gap / (big + h)

    # h = 0 only for a perfect encoder without false negatives at the best score, where the
    # weight, constant in u, goes on as 1.
    flat = h == 0
    weight = (easy * one_minus_phi + hard * phi) / jnp.where(flat, 1, h)
    weight = jnp.where(flat, 1, weight)
    weight = jnp.where(jnp.isnan(neg), jnp.nan, weight)  # which has no rank
    return weight if where is None else jnp.where(where, weight, 0)


def _check_population(alpha: PerAnchor, beta: PerAnchor, dtype: Any) -> None:
    if isinstance(alpha, Tracer) or isinstance(beta, Tracer):
        return
    if np.any((rounded(alpha, dtype) == 1) & (rounded(beta, dtype) == 1)):
        raise ValueError(
            "`alpha` and `beta` must not both be 1: a perfect encoder (alpha = 1) leaves no "
            f"hard negatives for beta = 1 to ask for, got alpha={alpha}, beta={beta}."
        )
