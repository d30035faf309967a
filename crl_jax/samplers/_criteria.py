"""How good a negative is: informative, and likely a true one."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_range
from .._floats import at_least_float32
from .._hyperparams import Scalar


def informativeness(
    pos: Float[Array, "*batch 1"], neg: Float[Array, "*batch n"]
) -> Float[Array, "*batch n"]:
    r"""Size of the gradient of BPR at a negative, :math:`1 - \sigma(\hat x_{ui} - \hat x_{ul})`.

    Args:
      pos: The :math:`\hat x_{ui}`, shape ``[*batch, 1]``.
      neg: The :math:`\hat x_{ul}`, shape ``[*batch, n]``.

    Returns:
      Values in [0, 1], shape ``[*batch, n]``.

    References:
      "Contrastive Learning for Personalized Recommendation", (4.4).
    """
    pos, neg = at_least_float32(pos, neg)
    return jax.nn.sigmoid(neg - pos)


def unbiasedness(ecdf: Float[Array, "..."], prior: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""Probability of a true negative, by where its score stands and by what was known before.

    .. math::
        P(\mathrm{tn} \mid l) = \frac{(1-F)(1-p)}{(1-F)(1-p) + F p}

    True negatives are taken to have the distribution of the lower of two scores, false ones that
    of the higher. Where both summands vanish, which only a prior of 0 or 1 allows, the prior
    decides: the result is :math:`1-p`.

    Args:
      ecdf: The :math:`F` of the score among the user's scores on what it has not taken, in
        [0, 1], shape ``[*batch, n]``.
      prior: The :math:`p` of a false negative, in [0, 1], shape ``[*batch, n]``.

    Returns:
      Probabilities, shape ``[*batch, n]``: they fall as ``ecdf`` or ``prior`` grows.

    Raises:
      ValueError: If an argument leaves [0, 1].

    References:
      "Contrastive Learning for Personalized Recommendation", (4.14).

    >>> print(unbiasedness(jnp.array([0.0, 0.5, 1.0]), jnp.array([0.1, 0.1, 0.1])))
    [1.  0.9 0. ]
    """
    check_range("ecdf", ecdf, 0, 1)
    check_range("prior", prior, 0, 1)
    ecdf, prior = at_least_float32(ecdf, prior)
    true, false = (1 - ecdf) * (1 - prior), ecdf * prior
    total = true + false
    excluded = total == 0
    return jnp.where(excluded, 1 - prior, true / jnp.where(excluded, 1, total))


def sampling_risk(
    info: Float[Array, "*batch n"],
    unbias: Float[Array, "*batch n"],
    *,
    risk_lambda: Scalar,
) -> Float[Array, "*batch n"]:
    r"""Expected loss of AUC from using an item as a negative; BNS minimises it.

    .. math::
        R(l \mid i) = \text{info}(l) \cdot [1 - (1 + \lambda)\,\text{unbias}(l)]

    Args:
      info: What :func:`informativeness` gives, shape ``[*batch, n]``.
      unbias: What :func:`unbiasedness` gives, shape ``[*batch, n]``.
      risk_lambda: The :math:`\lambda \ge 0`: what a true negative gains, a false one losing 1.

    Returns:
      Shape ``[*batch, n]``.

    Raises:
      ValueError: If ``risk_lambda`` is negative.

    References:
      "Contrastive Learning for Personalized Recommendation", (4.25) and (4.26).
    """
    check_range("risk_lambda", risk_lambda, 0, jnp.inf)
    return info * (1 - (1 + jnp.asarray(risk_lambda, info.dtype)) * unbias)
