"""How credible an interaction is: the latent variable of BPRAC."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import check_range
from .._hyperparams import PerAnchor
from ..data import Interactions
from ..stats import Distribution


def credibility_prior(train: Interactions) -> Float[Array, "n_items"]:
    r"""Popular items are bought by mistake less often: :math:`P(c_{ui} = 1)` by popularity.

    .. math::
        P(c_{ui} = 1) = \sigma\Bigl(\frac{n_i - \bar n}{\operatorname{std}(n)}\Bigr)

    with :math:`n_i` the share of users that took item :math:`i`.

    Args:
      train: Training interactions.

    Returns:
      Values in (0, 1), float32 ``[n_items]``; ½ for all if all are equally popular.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 3.28.
    """
    # The number of users cancels.
    counts = np.asarray(train.item_counts, np.float64)
    spread = counts.std()
    standard = (counts - counts.mean()) / (spread if spread > 0 else 1)
    return jax.nn.sigmoid(jnp.asarray(standard, jnp.float32))


def confidence_density(
    scores: Float[Array, "*batch"], *, prior: PerAnchor, distribution: Distribution
) -> Float[Array, "*batch"]:
    r"""How credible interactions are, given their scores, up to a common factor.

    .. math::
        \hat c_{ui} = 2\, F(s_{ui})\, f(s_{ui}) \; P(c_{ui} = 1)

    :math:`2 F f` is the density of the larger of two independent scores: what a user likes should
    beat what it does not. It rises with the score, up to where scores get improbable, and falls
    beyond. What it would be divided by to make it a probability, the density of the score, is
    taken for a constant; :func:`confidence_posterior` divides by it.

    Args:
      scores: Scores :math:`s_{ui}` of users with the items they took, any shape.
      prior: The :math:`P(c_{ui} = 1)` in [0, 1], of a shape that broadcasts with ``scores``; for
        instance :func:`credibility_prior` at the items.
      law: Distribution of one of the two scores, :math:`F` and :math:`f`, such as
        :class:`crl_jax.stats.VarianceGamma`.

    Returns:
      Values :math:`\ge 0`, of the common shape, at least float32. An ordinary differentiable
      function: a loss that takes it as a constant says so itself.

    Raises:
      ValueError: If ``prior`` leaves its range.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 3.22 and 3.27.

    >>> from crl_jax.stats import VarianceGamma
    >>> distribution = VarianceGamma(dim=27, scale=0.6)
    >>> print(confidence(jnp.array([-2.0, 0.0, 2.0, 9.0]), prior=0.5,
    distribution=distribution).round(4))
    [0.0268 0.0658 0.0779 0.0023]
    """
    check_range("prior", prior, 0.0, 1.0)
    density = distribution.pdf(scores)
    return 2 * distribution.cdf(scores) * density * jnp.asarray(prior, density.dtype)


def confidence_posterior(
    scores: Float[Array, "*batch"], *, prior: PerAnchor, distribution: Distribution
) -> Float[Array, "*batch"]:
    r"""The probability that interactions are credible, given their scores.

    .. math::
        P(c_{ui} = 1 \mid s_{ui}) = \frac{2 F f\, P}{2 F f\, P + 2 (1-F) f\, (1-P)}
            = \frac{F P}{F P + (1 - F)(1 - P)}

    The score of a credible interaction is the larger of two, that of another the smaller: the
    density :math:`f` cancels. So no law in closed form is needed: the distribution function of the
    scores of interactions, which any encoder has, gives :math:`F`, that of one of the two, by
    :class:`crl_jax.stats.OrderStatisticMixture`. It rises with the score and with the prior.

    Args:
      scores: As in :func:`confidence_density`.
      prior: As in :func:`confidence_density`.
      law: Distribution of one of the two scores, of which :math:`F` alone counts.

    Returns:
      Values in [0, 1], of the common shape, at least float32; ½ where score and prior exclude
      each other. An ordinary differentiable function.

    Raises:
      ValueError: If ``prior`` leaves its range.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 3.25 with its denominator; the
      counterpart for positives of the posterior of chapter 4.

    >>> from crl_jax.stats import SmoothedEmpirical
    >>> scores = jnp.linspace(-1.0, 1.0, 101)
    >>> distribution = SmoothedEmpirical().fit(scores)
    >>> print(np.asarray(confidence_posterior(scores[::25], prior=0.7,
    distribution=distribution)).round(2))
    [0.1  0.44 0.7  0.87 0.98]
    """
    check_range("prior", prior, 0.0, 1.0)
    below = distribution.cdf(scores)
    prior = jnp.asarray(prior, below.dtype)
    credible, other = below * prior, (1 - below) * (1 - prior)
    total = credible + other
    excluded = total == 0
    return jnp.where(excluded, 0.5, credible / jnp.where(excluded, 1, total))
