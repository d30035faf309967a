"""Confidence (credibility) of observed interactions, the latent variable of BPRAC."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._checks import check_range
from .._hyperparams import PerAnchor
from ..stats import Distribution


def credibility_prior(
    item_counts: Int[np.ndarray | Array, "n_items"],
) -> Float[Array, "n_items"]:
    r"""Prior probability :math:`P(c_{ui} = 1)` of a credible interaction, from item popularity.

    .. math:: P(c_{ui} = 1) = \sigma\Bigl(\frac{n_i - \bar n}{\operatorname{std}(n)}\Bigr)

    where :math:`n_i` is the fraction of users who interacted with item :math:`i`. Interactions
    with popular items are assumed to be accidental less often.

    Args:
      item_counts: Number of training interactions of each item, such as
        :attr:`crl_jax.data.Interactions.item_counts`.

    Returns:
      Probabilities in (0, 1), float32 ``[n_items]``; ½ for all if all items are equally popular.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 3.28.
    """
    # The number of users cancels.
    counts = np.asarray(item_counts, np.float64)
    spread = counts.std()
    standard = (counts - counts.mean()) / (spread if spread > 0 else 1)
    return jax.nn.sigmoid(jnp.asarray(standard, jnp.float32))


def confidence_density(
    scores: Float[Array, "*batch"], *, prior: PerAnchor, distribution: Distribution
) -> Float[Array, "*batch"]:
    r"""Unnormalised confidence in observed interactions, given their scores.

    .. math:: \hat c_{ui} = 2\, F(s_{ui})\, f(s_{ui}) \; P(c_{ui} = 1)

    :math:`2 F f` is the density of the maximum of two i.i.d. scores: a credible positive should
    outscore a negative. The value increases with the score and decreases in the upper tail. The
    marginal density of the score, which normalises it, is treated as constant;
    :func:`confidence_posterior` includes it.

    Args:
      scores: Scores :math:`s_{ui}` of observed user-item interactions, any shape.
      prior: Prior :math:`P(c_{ui} = 1)` in [0, 1], of a shape that broadcasts with ``scores``;
        for instance :func:`credibility_prior` of the items.
      distribution: Distribution of a single score, with CDF :math:`F` and density :math:`f`,
        such as :class:`crl_jax.stats.VarianceGamma`.

    Returns:
      Values :math:`\ge 0`, of the broadcast shape, at least float32. Differentiable; apply
      ``jax.lax.stop_gradient`` to use them as constants.

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
    check_range("prior", prior, 0.0, 1.0)
    density = distribution.pdf(scores)
    return 2 * distribution.cdf(scores) * density * jnp.asarray(prior, density.dtype)


def confidence_posterior(
    scores: Float[Array, "*batch"], *, prior: PerAnchor, distribution: Distribution
) -> Float[Array, "*batch"]:
    r"""Posterior probability that observed interactions are credible, given their scores.

    .. math::
        P(c_{ui} = 1 \mid s_{ui}) = \frac{2 F f\, P}{2 F f\, P + 2 (1-F) f\, (1-P)}
            = \frac{F P}{F P + (1 - F)(1 - P)}

    The score of a credible interaction is modelled as the maximum of two i.i.d. scores, that of
    any other interaction as the minimum; the density :math:`f` cancels. No closed-form
    distribution is therefore needed: :class:`crl_jax.stats.OrderStatisticMixture` derives
    :math:`F` from the empirical distribution of the interaction scores. The posterior increases
    with the score and with the prior.

    Args:
      scores: Scores of observed interactions, as in :func:`confidence_density`.
      prior: Prior probability, as in :func:`confidence_density`.
      distribution: Distribution of a single score; only its CDF :math:`F` is used.

    Returns:
      Probabilities in [0, 1], of the broadcast shape, at least float32; ½ where both terms of the
      denominator are 0. Differentiable.

    Raises:
      ValueError: If ``prior`` is out of range.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 3.25 with its denominator; the
      counterpart for positives of the posterior of chapter 4.

    >>> from crl_jax.stats import SmoothedEmpirical
    >>> scores = jnp.linspace(-1.0, 1.0, 101)
    >>> distribution = SmoothedEmpirical().fit(scores)
    >>> posterior = confidence_posterior(scores[::25], prior=0.7, distribution=distribution)
    >>> print(np.asarray(posterior).round(2))
    [0.1  0.44 0.7  0.87 0.98]
    """
    check_range("prior", prior, 0.0, 1.0)
    below = distribution.cdf(scores)
    prior = jnp.asarray(prior, below.dtype)
    credible, other = below * prior, (1 - below) * (1 - prior)
    total = credible + other
    excluded = total == 0
    return jnp.where(excluded, 0.5, credible / jnp.where(excluded, 1, total))
