r"""Importance weights of negatives: Bayesian, from their ranks; exponential and Gaussian.

Score model of one anchor: two i.i.d. draws from a distribution :math:`\Phi` are the scores
of a true and a false negative, where the true negative has the lower score with probability
:math:`\alpha`. Relative to :math:`\Phi`, the density of true negatives is
:math:`2[\alpha(1-\Phi) + (1-\alpha)\Phi]` and that of false negatives
:math:`2[(1-\alpha)(1-\Phi) + \alpha\Phi]`. The density of unlabelled samples, their mixture
under the class prior, is :math:`2h` below; its distribution function :math:`u` is quadratic
in :math:`\Phi`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._checks import check_negatives, check_shape
from .._density_ratio import density_ratio, end_densities, target_proportions
from .._floats import at_least_float32, rounded
from .._gaussian import gaussian_exponents
from .._hyperparams import check_arguments, expand_anchor_axis, per_anchor
from .._reduce import count_unmasked
from .._scaling import subtract_row_max
from ..stats import map_binned_ranks, ranks


@check_arguments
def bayesian_weights(
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: hp.TauPlus,
    alpha: hp.Alpha,
    beta: hp.Beta,
    bins: int | None = None,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch n_neg"]:
    r"""Bayesian importance weights that correct for false negatives and emphasise hard ones.

    .. math::
        \omega_j = \frac{(1-\beta)\alpha\,(1-\Phi_j) + \beta(1-\alpha)\,\Phi_j}
                        {[(1-\beta)\alpha + \beta(1-\alpha)]\; h_j}
        \qquad
        h_j = \tau^-[\alpha(1-\Phi_j) + (1-\alpha)\Phi_j]
            + \tau^+[(1-\alpha)(1-\Phi_j) + \alpha\Phi_j]

    where :math:`\Phi_j` is the root in [0, 1] of
    :math:`u_j = \Phi^2 (1-2\alpha)(\tau^--\tau^+) + 2\Phi[\alpha\tau^- + (1-\alpha)\tau^+]`
    and :math:`u_j` is the empirical CDF of the anchor's negatives at :math:`s_j`. The mean
    weight is approximately 1. Weights depend on ranks only: they are invariant to increasing
    transforms of the scores, such as a temperature, and their gradient with respect to
    ``neg`` is zero.

    Special cases: ``beta=0.5, tau_plus=0`` gives uniform weights of 1; ``beta=0.5`` corrects
    for false negatives without emphasising hard negatives, and
    :math:`\tau^-\omega_j` is then the :func:`true_negative_posterior`.

    Args:
      neg: Scores of the unlabelled samples of each anchor, shape ``[*batch, n_neg]``.
      tau_plus: Class prior :math:`\tau^+` in [0, 1), the probability that an unlabelled sample
        is a positive: 1/C for C balanced classes; at least the density of an interaction matrix.
      alpha: Encoder quality :math:`\alpha` in [0.5, 1]: the probability that a positive scores
        higher than the negative it is paired with. (For independent draws from the two
        densities this probability is :math:`\tfrac12 + \tfrac13(2\alpha-1)`.)
      beta: Hardness :math:`\beta` in [0.5, 1]; 0.5 gives no emphasis to hard negatives.
        ``tau_plus``, ``alpha`` and ``beta`` are scalars or arrays that broadcast to ``[*batch]``.
      bins: Number of histogram bins: weights are evaluated at the ranks of the first and the last
        score of a bin and interpolated, see :func:`crl_jax.stats.map_binned_ranks`, in linear time;
        128 serve most rows. ``None`` uses exact ranks. Static.
      where: Mask of valid negatives, shape ``[*batch, n_neg]``; others have weight 0.

    Returns:
      Weights :math:`\omega_j \ge 0`, shape of ``neg``, at least float32; NaN for NaN scores.

    Raises:
      ValueError: If a shape does not match, a hyper-parameter is out of range, or an anchor
        has ``alpha = beta = 1``: a perfect encoder has no hard negatives. The last check is
        skipped for traced values, where the weights are the finite limit for ``beta`` to 1.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.25 to 6.30, with the
      root of (6.29) in a form that has no 0/0 at ``alpha = 0.5`` or ``tau_plus = 0.5``.

    >>> w = bayesian_weights(jnp.array([0.1, 0.7, 0.4]), tau_plus=0.1, alpha=0.8, beta=0.9)
    >>> print(np.asarray(w).round(3))
    [0.645 2.663 1.087]
    """
    (neg,) = at_least_float32(neg)
    traced = isinstance(alpha, Tracer) or isinstance(beta, Tracer)
    if not traced and np.any((rounded(alpha, neg.dtype) == 1) & (rounded(beta, neg.dtype) == 1)):
        raise ValueError(
            "`alpha` and `beta` must not both be 1: a perfect encoder (alpha = 1) leaves no "
            f"hard negatives for beta = 1 to ask for, got alpha={alpha}, beta={beta}."
        )
    alpha_ = per_anchor("alpha", alpha, neg.shape[:-1], neg.dtype)
    beta_ = per_anchor("beta", beta, neg.shape[:-1], neg.dtype)

    easy, hard = target_proportions(alpha_, beta_)
    return _relative_density(easy, hard, neg, tau_plus, alpha, bins, where)


@check_arguments
def true_negative_posterior(
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: hp.TauPlus,
    alpha: hp.Alpha,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch n_neg"]:
    r"""Posterior probability that an unlabelled sample is a true negative, given its rank.

    .. math::
        P(\mathrm{TN} \mid s_j)
        = \frac{\tau^-[\alpha(1-\Phi_j) + (1-\alpha)\Phi_j]}{h_j}
        = \tau^-\,\omega_j \text{ at } \beta = \tfrac12

    in the notation of :func:`bayesian_weights`. It decreases with the score, and its mean over
    an anchor's negatives is approximately :math:`\tau^-`.

    Args:
      neg, tau_plus, alpha, where: As in :func:`bayesian_weights`.

    Returns:
      Probabilities in [0, 1], shape ``[*batch, n_neg]``, at least float32; NaN for NaN scores.

    Raises:
      ValueError: If a shape does not match or a hyper-parameter is out of range.

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
    # Rounding can exceed 1 by an ulp.
    return jnp.minimum(expand_anchor_axis(1 - tau_plus_) * omega, 1)


def _relative_density(
    easy: Array,
    hard: Array,
    neg: Array,
    tau_plus: hp.PerAnchor,
    alpha: hp.PerAnchor,
    bins: int | None,
    where: Array | None,
) -> Array:
    """The :func:`density_ratio` at the rank of each score."""
    check_shape("where", where, neg.shape)
    batch, dtype = neg.shape[:-1], neg.dtype
    tau_plus = per_anchor("tau_plus", tau_plus, batch, dtype)
    alpha = per_anchor("alpha", alpha, batch, dtype)
    easy, hard = expand_anchor_axis(easy), expand_anchor_axis(hard)

    n = expand_anchor_axis(count_unmasked(neg, where)).astype(dtype)
    small, big = map(expand_anchor_axis, end_densities(alpha, tau_plus))
    at = partial(density_ratio, n=n, easy=easy, hard=hard, small=small, big=big)
    if bins is None:
        weight = at(ranks(neg, where=where).astype(dtype))
    else:
        weight = map_binned_ranks(at, neg, bins=bins, where=where)
    weight = jnp.where(jnp.isnan(neg), jnp.nan, weight)  # NaN has no rank
    return weight if where is None else jnp.where(where, weight, 0)


@check_arguments
def hard_weights(
    neg: Float[Array, "*batch n_neg"],
    *,
    beta: hp.NonNegative,
    temperature: hp.Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch n_neg"]:
    r"""Hard negative weights, exponential in the score.

    .. math:: w_j = \frac{e^{\beta s_j/t}}{\frac1N \sum_i e^{\beta s_i/t}}

    Their mean is 1, and they are invariant to a shift of the scores. Gradients flow through the
    weights, as in the published method.

    Args:
      neg: Scores :math:`s_j` of the negatives, shape ``[*batch, n_neg]``.
      beta: Concentration :math:`\beta \ge 0`, a scalar or an array that broadcasts to
        ``[*batch]``; 0 gives weights of 1.
      temperature: Temperature :math:`t > 0`.
      where: Mask of the :math:`N` valid negatives, ``[*batch, n_neg]``; others have weight 0.

    Returns:
      Weights :math:`w_j` in [0, N], shape of ``neg``, at least float32; finite for all scores.

    Raises:
      ValueError: If a shape does not match or a hyper-parameter is out of range.

    References:
      Robinson et al., `Contrastive Learning with Hard Negative Samples
      <https://arxiv.org/abs/2010.04592>`_, 2021; "Contrastive Learning for Personalized
      Recommendation", Eq. 5.52.

    >>> print(jnp.round(hard_weights(jnp.array([0.0, 1.0, 2.0]), beta=1.0), 3))
    [0.27  0.734 1.996]
    """
    check_negatives(neg)
    check_shape("where", where, neg.shape)
    check_shape("temperature", temperature, ())
    (neg,) = at_least_float32(neg)
    beta = expand_anchor_axis(per_anchor("beta", beta, neg.shape[:-1], neg.dtype))
    if where is not None:  # mask first: 0 * NaN would reach the gradient of the temperature
        neg = jnp.where(where, neg, -jnp.inf)

    # Subtract the maximum before scaling, which could overflow. The lower bound avoids 0 * -inf.
    below, _ = subtract_row_max(neg)
    below = below / jnp.asarray(temperature, neg.dtype)
    tilt = beta * jnp.maximum(below, float(jnp.finfo(neg.dtype).min))
    count = expand_anchor_axis(count_unmasked(neg, where)).astype(neg.dtype)
    return count * jax.nn.softmax(tilt, axis=-1, where=where)


@check_arguments
def gaussian_weights(
    neg: Float[Array, "*batch n_neg"],
    *,
    mu: hp.Finite,
    sigma: hp.Positive,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch n_neg"]:
    r"""Gaussian negative weights (ADNCE), largest for scores near :math:`\mu`.

    .. math::
        w_j = \frac{\varphi_j}{\frac1N \sum_i \varphi_i},
        \qquad \varphi_j = \exp\Bigl(-\frac{(s_j - \mu)^2}{2 \sigma^2}\Bigr)

    Unlike :func:`hard_weights`, they decrease again above :math:`\mu`, where negatives are likely
    to be false. Their mean is 1; :math:`\sigma \to \infty` gives weights of 1. Gradients flow
    through the weights; :func:`crl_jax.losses.adjusted_contrastive` treats them as constants.

    Args:
      neg: Scores :math:`s_j` of the negatives, not divided by the temperature, shape
        ``[*batch, n_neg]``.
      mu: Score :math:`\mu` with the largest weight; a scalar or an array that broadcasts to
        ``[*batch]``. Published values for cosine similarities are 0.5 to 0.8.
      sigma: Width :math:`\sigma > 0`, in units of scores; a scalar or an array that broadcasts to
        ``[*batch]``. Published values are 0.5 and 1.
      where: Mask of the :math:`N` valid negatives, ``[*batch, n_neg]``; others have weight 0.

    Returns:
      Weights :math:`w_j` in [0, N], shape of ``neg``, at least float32; finite for all scores.

    Raises:
      ValueError: If a shape does not match or a hyper-parameter is out of range.

    References:
      Wu et al., `Understanding Contrastive Learning via Distributionally Robust Optimization
      <https://arxiv.org/abs/2310.11048>`_, 2023, ADNCE, and its published code.

    >>> w = gaussian_weights(jnp.array([-0.2, 0.7, 1.0]), mu=0.7, sigma=0.5)
    >>> print(np.asarray(w).round(3))
    [0.292 1.476 1.232]
    """
    check_negatives(neg)
    check_shape("where", where, neg.shape)
    (neg,) = at_least_float32(neg)
    exponents = gaussian_exponents(neg, mu, sigma, where)
    count = expand_anchor_axis(count_unmasked(neg, where)).astype(neg.dtype)
    return count * jax.nn.softmax(exponents, axis=-1, where=where)
