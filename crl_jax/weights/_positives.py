"""Weights of observed positives: confidence, as in BPRAC, and weights by loss."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_shape
from .._floats import at_least_float32, multiply_share
from .._hyperparams import DropRate, NonNegative, Share, check_arguments, per_anchor
from ..stats import Distribution


def credibility_prior(
    item_counts: Int[np.ndarray | Array, "n_items"],
) -> Float[Array, "n_items"]:
    r"""Prior probability :math:`P(c_{ui} = 1)` of a credible interaction, from item popularity.

    .. math:: P(c_{ui} = 1) = \sigma\Bigl(\frac{n_i - \bar n}{\operatorname{std}(n)}\Bigr)

    where :math:`n_i` is the fraction of users who interacted with item :math:`i`: interactions with
    popular items are assumed to be accidental less often.

    Args:
      item_counts: Training interactions of each item, as in :class:`crl_jax.data.Interactions`.

    Returns:
      Probabilities in [0, 1], float32 ``[n_items]``; ½ for all if all items are equally popular.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 3.28.
    """
    # The number of users cancels.
    counts = np.asarray(item_counts, np.float64)
    spread = counts.std()
    standard = (counts - counts.mean()) / (spread if spread > 0 else 1)
    return jax.nn.sigmoid(jnp.asarray(standard, jnp.float32))


@check_arguments
def confidence_density(
    scores: Float[Array, "*batch"], *, prior: Share, distribution: Distribution
) -> Float[Array, "*batch"]:
    r"""Unnormalised confidence in observed interactions, given their scores.

    .. math:: \hat c_{ui} = 2\, F(s_{ui})\, f(s_{ui}) \; P(c_{ui} = 1)

    :math:`2 F f` is the density of the maximum of two i.i.d. scores: a credible positive should
    outscore a negative. The value decreases in the upper tail. The marginal density of the score,
    which normalises it, is treated as constant; :func:`confidence_posterior` includes it.

    Args:
      scores: Scores :math:`s_{ui}` of observed user-item interactions, any shape.
      prior: Prior :math:`P(c_{ui} = 1)` in [0, 1], such as :func:`credibility_prior` of the items;
        broadcast with ``scores``.
      distribution: Distribution of a single score, with CDF :math:`F` and density :math:`f`,
        such as :class:`crl_jax.stats.VarianceGamma`.

    Returns:
      Values :math:`\ge 0`, of the broadcast shape, at least float32; differentiable.

    Raises:
      ValueError: If ``prior`` is out of range.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 3.22 and 3.27.

    >>> from crl_jax.stats import VarianceGamma
    >>> distribution = VarianceGamma(dim=27, scale=0.6)
    >>> scores = jnp.array([-2.0, 0.0, 2.0, 9.0])
    >>> print(confidence_density(scores, prior=0.5, distribution=distribution).round(4))
    [0.0268 0.0658 0.0779 0.0023]
    """
    density = distribution.pdf(scores)
    return 2 * distribution.cdf(scores) * density * jnp.asarray(prior, density.dtype)


@check_arguments
def confidence_posterior(
    scores: Float[Array, "*batch"], *, prior: Share, distribution: Distribution
) -> Float[Array, "*batch"]:
    r"""Posterior probability that observed interactions are credible, given their scores.

    .. math::
        P(c_{ui} = 1 \mid s_{ui}) = \frac{2 F f\, P}{2 F f\, P + 2 (1-F) f\, (1-P)}
            = \frac{F P}{F P + (1 - F)(1 - P)}

    The score of a credible interaction is modelled as the maximum of two i.i.d. scores, that of
    any other interaction as the minimum; the density :math:`f` cancels. :math:`F` may therefore be
    empirical, see :class:`crl_jax.stats.OrderStatisticMixture`. The posterior increases with the
    score and with the prior.

    Args:
      scores, prior: As in :func:`confidence_density`.
      distribution: Distribution of a single score; only its CDF :math:`F` is used.

    Returns:
      Probabilities in [0, 1], of the broadcast shape, at least float32; ½ where both terms of the
      denominator are 0. Differentiable.

    Raises:
      ValueError: If ``prior`` is out of range.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 3.25 with its denominator.

    >>> from crl_jax.stats import SmoothedEmpirical
    >>> scores = jnp.linspace(-1.0, 1.0, 101)
    >>> distribution = SmoothedEmpirical().fit(scores)
    >>> posterior = confidence_posterior(scores[::25], prior=0.7, distribution=distribution)
    >>> print(np.asarray(posterior).round(2))
    [0.1  0.44 0.7  0.87 0.98]
    """
    below = distribution.cdf(scores)
    prior = jnp.asarray(prior, below.dtype)
    credible, other = below * prior, (1 - below) * (1 - prior)
    total = credible + other
    excluded = total == 0
    return jnp.where(excluded, 0.5, credible / jnp.where(excluded, 1, total))


@check_arguments
def small_loss_weights(
    losses: Float[Array, "*batch"],
    *,
    drop_rate: DropRate,
    where: Bool[Array, "*batch"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Truncated-loss weights: 0 for the largest losses of a batch, 1 for all others.

    .. math::
        w_i = \mathbb 1\bigl[\ell_i \text{ is none of the }
            \lfloor \epsilon n \rfloor \text{ largest}\bigr]

    Ties are broken in favour of earlier elements, so that exactly
    :math:`\lfloor \epsilon n \rfloor` losses are dropped. The batch is the array of one call:
    under ``jax.vmap`` or ``jax.shard_map`` each example or shard is truncated separately.

    Args:
      losses: Losses :math:`\ell_i`, shape ``[*batch]``; all axes form one batch. NaN counts as
        the largest value.
      drop_rate: Fraction :math:`\epsilon` in [0, 1] to drop. A product :math:`\epsilon n` within
        rounding error of an integer is treated as that integer.
      where: Mask of the :math:`n` valid losses, shape ``[*batch]``; others have weight 0.

    Returns:
      Weights :math:`w_i` in {0, 1}, shape ``[*batch]``, at least float32.

    Raises:
      ValueError: If a shape does not match or ``drop_rate`` is out of range.

    References:
      Wang et al., `Denoising Implicit Feedback for Recommendation
      <https://arxiv.org/abs/2006.04153>`_, 2021, the truncated loss; the published code takes its
      threshold from the order of a batch, as here.

    >>> print(small_loss_weights(jnp.array([0.1, 2.0, 0.3, 0.9]), drop_rate=0.5))
    [1. 0. 1. 0.]
    """
    check_shape("where", where, losses.shape)
    check_shape("drop_rate", drop_rate, ())
    (losses,) = at_least_float32(losses)
    keep = jnp.ones(losses.shape, bool) if where is None else where

    n = jnp.sum(keep)
    dropped = jnp.floor(multiply_share(jnp.asarray(drop_rate, losses.dtype), n)).astype(n.dtype)
    ascending = jnp.lexsort((losses.ravel(), ~keep.ravel()))  # stable; NaN sorts last
    counts = jnp.arange(losses.size) < n - dropped
    counts = jnp.zeros(losses.size, bool).at[ascending].set(counts, unique_indices=True)
    return counts.reshape(losses.shape).astype(losses.dtype)


@check_arguments
def reliability_weights(
    logits: Float[Array, "*shape"], *, exponent: NonNegative
) -> Float[Array, "*shape"]:
    r"""Reweighted-loss weights: a power of the predicted probability of the observed label.

    .. math:: w_i = \sigma(s_i)^b

    Labels that the model considers improbable, which have a large loss, are down-weighted.

    Args:
      logits: Logits :math:`s_i`, any shape: scores of positives, negated scores of negatives.
      exponent: Exponent :math:`b \ge 0`, a scalar or an array that broadcasts to ``logits``; 0
        gives weights of 1.

    Returns:
      Weights :math:`w_i` in [0, 1], shape of ``logits``, at least float32.

    Raises:
      ValueError: If a shape does not match or ``exponent`` is out of range.

    References:
      Wang et al., `Denoising Implicit Feedback for Recommendation
      <https://arxiv.org/abs/2006.04153>`_, 2021, the reweighted loss.

    >>> [f"{w:.3f}" for w in reliability_weights(jnp.array([-2.0, 0.0, 2.0]), exponent=0.5)]
    ['0.345', '0.707', '0.939']
    """
    (logits,) = at_least_float32(logits)
    exponent = per_anchor("exponent", exponent, logits.shape, logits.dtype)
    # Not `σ ** b`: where σ underflows to 0, its gradient is infinite for b < 1, and the gradient
    # with respect to b contains log 0.
    return jnp.exp(exponent * jax.nn.log_sigmoid(logits))
