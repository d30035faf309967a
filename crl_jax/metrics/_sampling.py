"""Quality of sampled negatives."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32
from .._reduce import masked_mean


class SamplingQuality(NamedTuple):
    """True negative rate and informativeness of sampled negatives."""

    tnr: Float[Array, ""]
    """True negative rate, in [0, 1]."""
    inf: Float[Array, ""]
    """Mean informativeness, with a negative sign for false negatives, in [-1, 1]."""


def sampling_quality(
    info: Float[Array, "*batch"],
    is_false: Bool[Array, "*batch"],
    *,
    where: Bool[Array, "*batch"] | None = None,
) -> SamplingQuality:
    r"""Computes the true negative rate and the mean signed informativeness of negatives.

    .. math::
        \mathrm{TNR} = \frac{\#TN}{\#TN + \#FN} \qquad
        \mathrm{INF} = \frac{\sum_{j \in TN} \text{info}(j) - \sum_{j \in FN} \text{info}(j)}
                            {\#TN + \#FN}

    Args:
      info: Gradient magnitude of each negative, such as
        :func:`crl_jax.samplers.informativeness`.
      is_false: Mask of false negatives: held-out positives of the user.
      where: Mask of the negatives to include.

    Returns:
      Two scalars; 0 if the mask is empty.

    Raises:
      ValueError: If a shape does not fit.

    References:
      "Contrastive Learning for Personalized Recommendation", (4.27) and (4.28).

    >>> quality = sampling_quality(jnp.array([0.9, 0.1, 0.6]), jnp.array([True, False, False]))
    >>> print(f"{quality.tnr:.3f} {quality.inf:.3f}")
    0.667 -0.067
    """
    check_shape("is_false", is_false, info.shape)
    check_shape("where", where, info.shape)
    (info,) = at_least_float32(info)
    return SamplingQuality(
        masked_mean((~is_false).astype(info.dtype), where=where),
        masked_mean(jnp.where(is_false, -info, info), where=where),
    )
