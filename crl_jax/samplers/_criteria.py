"""Criteria of Bayesian negative sampling: informativeness and unbiasedness."""

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_range
from .._floats import at_least_float32
from .._hyperparams import Range, Scalar, check_arguments


def informativeness(
    pos: Float[Array, "*batch 1"], neg: Float[Array, "*batch n"]
) -> Float[Array, "*batch n"]:
    r"""Gradient magnitude of BPR at a negative, :math:`1 - \sigma(\hat x_{ui} - \hat x_{ul})`.

    Args:
      pos: Scores :math:`\hat x_{ui}`, shape ``[*batch, 1]``.
      neg: Scores :math:`\hat x_{ul}`, shape ``[*batch, n]``.

    Returns:
      Values in [0, 1], shape ``[*batch, n]``.

    References:
      "Contrastive Learning for Personalized Recommendation", (4.4).
    """
    pos, neg = at_least_float32(pos, neg)
    return jax.nn.sigmoid(neg - pos)


def unbiasedness(ecdf: Float[Array, "..."], prior: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""Posterior probability that an unlabelled item is a true negative.

    .. math::
        P(\mathrm{tn} \mid l) = \frac{(1-F)(1-p)}{(1-F)(1-p) + F p}

    The model assumes that scores of true negatives are distributed as the minimum of two scores,
    and those of false negatives as the maximum. If both terms of the denominator are 0, which
    requires a prior of 0 or 1, the result is the prior :math:`1-p`.

    Args:
      ecdf: Empirical CDF :math:`F` at the item's score among the scores of the user's unseen items,
        in [0, 1], shape ``[*batch, n]``.
      prior: Prior :math:`p` of a false negative, in [0, 1], shape ``[*batch, n]``.

    Returns:
      Probabilities, shape ``[*batch, n]``, decreasing in ``ecdf`` and ``prior``.

    Raises:
      ValueError: If an argument is outside [0, 1].

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


@check_arguments
def sampling_risk(
    info: Float[Array, "*batch n"],
    unbias: Float[Array, "*batch n"],
    *,
    risk_lambda: Annotated[Scalar, Range(0)],
) -> Float[Array, "*batch n"]:
    r"""Conditional sampling risk of an item: the expected loss of AUC, which BNS minimises.

    .. math::
        R(l \mid i) = \text{info}(l) \cdot [1 - (1 + \lambda)\,\text{unbias}(l)]

    Args:
      info: :func:`informativeness`, shape ``[*batch, n]``.
      unbias: :func:`unbiasedness`, shape ``[*batch, n]``.
      risk_lambda: Gain :math:`\lambda \ge 0` of a true negative relative to the cost of a false
        one; ``ValueError`` if negative.

    Returns:
      Risks, shape ``[*batch, n]``.

    References:
      "Contrastive Learning for Personalized Recommendation", (4.25) and (4.26).
    """
    return info * (1 - (1 + jnp.asarray(risk_lambda, info.dtype)) * unbias)
