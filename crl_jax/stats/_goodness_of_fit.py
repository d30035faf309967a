"""Whether scores can be what a law says they are."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._floats import at_least_float32
from ._distributions import Distribution


def lack_of_fit(scores: Float[Array, "n"], *, distribution: Distribution) -> Float[Array, ""]:
    r"""How far scores are from every mixture of the larger and the smaller of two draws of a law.

    With :math:`u = F(s)`, the larger of two draws has the distribution function :math:`u^2`, the
    smaller :math:`2u - u^2`, and each mixture of them lies between. The result is the largest
    distance by which the eCDF :math:`G_n` of the scores leaves that band:

    .. math::
        \sup_s \max\bigl(F(s)^2 - G_n(s),\; G_n(s) - 2F(s) + F(s)^2,\; 0\bigr)

    A law that is much too narrow has all scores in its tails, where the density falls: that gives
    about ½, and up to 1 if they lie in one tail. To a law that is much too wide all scores look
    alike: that gives ¼. Of a law that fits, :math:`n` independent scores stay below
    :func:`dkw_error` of :math:`n`, nearly always.

    Args:
      scores: Scores of interactions, each the larger or the smaller of two, shape ``[n]``.
      law: Law of one of the two.

    Returns:
      A number in [0, 1], at least float32; NaN if a score is.

    Raises:
      ValueError: If ``scores`` is not one row of at least one score.

    References:
      The populations are those of "Contrastive Learning for Personalized Recommendation",
      section 3.4; the distance is Kolmogorov's, to the nearest of them.

    >>> from crl_jax.stats import VarianceGamma
    >>> scores = jnp.linspace(-1.0, 1.0, 101)
    >>> for scale in (0.01, 0.1, 10.0):
    ...     print(f"{lack_of_fit(scores, distribution=VarianceGamma(dim=27, scale=scale)):.2f}")
    0.43
    0.00
    0.24
    """
    (scores,) = at_least_float32(scores)
    if scores.ndim != 1 or not scores.size:
        raise ValueError(f"`scores` must be one row of scores, got the shape {scores.shape}.")
    below = jnp.sort(distribution.cdf(scores))
    n = scores.size
    # The eCDF leaps at each score: just before it the first bound counts, at it the second.
    before = jnp.arange(n, dtype=below.dtype) / n
    too_high = jnp.square(below) - before
    too_low = before + 1 / n - below * (2 - below)
    worst = jnp.maximum(jnp.max(too_high), jnp.max(too_low))
    return jnp.where(jnp.any(jnp.isnan(below)), jnp.nan, jnp.maximum(worst, 0))
