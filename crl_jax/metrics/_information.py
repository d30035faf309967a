"""Bounds on mutual information from contrastive losses."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._checks import check_range
from .._floats import at_least_float32


def info_nce_bound(
    loss: Float[Array, "*shape"], n_neg: Int[Array, "*shape"] | int
) -> Float[Array, "*shape"]:
    r"""Computes the lower bound of the mutual information that an InfoNCE loss implies, in nats.

    .. math:: I(x; x^+) \ge \log(N + 1) - L

    Papers that write :math:`\log N - L` count the positive among the :math:`N` candidates.

    The bound holds for the expected :func:`crl_jax.losses.info_nce` with one positive among
    :math:`N + 1` candidates, if the :math:`N` others are drawn independently from the marginal
    distribution of :math:`x^+`. It cannot exceed :math:`\log(N + 1)`, and becomes tight, for the
    best score function, as :math:`N` grows.

    A debiased loss estimates the loss with negatives from another distribution, that of the true
    negatives. Its value in this formula estimates :math:`E \log(p^+ / p^-)`, which is larger than
    the mutual information if :math:`\tau^+ > 0`: it is no lower bound.

    Args:
      loss: Mean loss, in any shape.
      n_neg: Number :math:`N \ge 1` of negatives per anchor; broadcasts with ``loss``.

    Returns:
      Bound in nats, at least float32; negative for a loss above that of equal scores.

    Raises:
      ValueError: If ``n_neg`` is less than 1.

    References:
      van den Oord et al., `Representation Learning with Contrastive Predictive Coding
      <https://arxiv.org/abs/1807.03748>`_, 2018, section 2.3; "Contrastive Learning for
      Personalized Recommendation", section 6.2.

    >>> pos, neg = jnp.array([3.0]), jnp.array([[0.0, 0.0, 0.0]])
    >>> from crl_jax import losses
    >>> print(f"{info_nce_bound(losses.info_nce(pos, neg), 3):.3f}")
    1.247
    """
    check_range("n_neg", n_neg, 1, jnp.inf)
    (loss,) = at_least_float32(jnp.asarray(loss))
    return jnp.log1p(jnp.asarray(n_neg).astype(loss.dtype)) - loss
