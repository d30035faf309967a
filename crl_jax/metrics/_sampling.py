"""Quality of sampled negatives."""

from typing import Annotated, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32
from .._hyperparams import Range, Scalar, check_arguments
from .._reduce import masked_mean


class SamplingQuality(NamedTuple):
    """True negative rate, informativeness and risk of sampled negatives."""

    tnr: Float[Array, ""]
    """True negative rate, in [0, 1]."""
    inf: Float[Array, ""]
    """Mean informativeness, with a negative sign for false negatives, in [-1, 1]."""
    risk: Float[Array, ""]
    """Empirical sampling risk, in [-λ, 1]; lower is better."""


@check_arguments
def sampling_quality(
    info: Float[Array, "*batch"],
    is_false: Bool[Array, "*batch"],
    *,
    risk_lambda: Annotated[Scalar, Range(0)] = 5.0,
    where: Bool[Array, "*batch"] | None = None,
) -> SamplingQuality:
    r"""Computes the true negative rate, signed informativeness and risk of negatives.

    .. math::
        \mathrm{TNR} = \frac{\#TN}{\#TN + \#FN} \qquad
        \mathrm{INF} = \frac{\sum_{j \in TN} \text{info}(j) - \sum_{j \in FN} \text{info}(j)}
                            {\#TN + \#FN} \qquad
        R = \frac{\sum_{j \in FN} \text{info}(j) - \lambda \sum_{j \in TN} \text{info}(j)}
                 {\#TN + \#FN}

    :math:`R` is the empirical sampling risk of the sampler that drew the negatives, with the labels
    in place of their posterior in :func:`crl_jax.samplers.sampling_risk`. With
    :math:`\lambda = 1` it is :math:`-\mathrm{INF}`.

    Args:
      info: Gradient magnitude of each negative, such as
        :func:`crl_jax.samplers.informativeness`.
      is_false: Mask of false negatives: held-out positives of the user.
      risk_lambda: Gain :math:`\lambda \ge 0` of a true negative relative to the cost of a false
        one, as of :class:`crl_jax.samplers.BNS`.
      where: Mask of the negatives to include.

    Returns:
      Three scalars; 0 if the mask is empty.

    Raises:
      ValueError: If a shape does not fit, or ``risk_lambda`` is negative.

    References:
      "Contrastive Learning for Personalized Recommendation", definition 4.2, (4.24),
      (4.27) and (4.28).

    >>> quality = sampling_quality(jnp.array([0.9, 0.1, 0.6]), jnp.array([True, False, False]))
    >>> print(f"{quality.tnr:.3f} {quality.inf:.3f} {quality.risk:.3f}")
    0.667 -0.067 -0.867
    """
    check_shape("is_false", is_false, info.shape)
    check_shape("where", where, info.shape)
    (info,) = at_least_float32(info)
    risk_lambda = jnp.asarray(risk_lambda, info.dtype)
    return SamplingQuality(
        masked_mean((~is_false).astype(info.dtype), where=where),
        masked_mean(jnp.where(is_false, -info, info), where=where),
        masked_mean(jnp.where(is_false, info, -risk_lambda * info), where=where),
    )
