"""Hard negative weights by exponential tilting."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32
from .._hyperparams import NonNegative, Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import count_kept
from .._scaling import subtract_row_max


@check_arguments
def hard_weights(
    neg: Float[Array, "*batch n_neg"],
    *,
    beta: NonNegative,
    temperature: Temperature = 1.0,
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
      where: Boolean mask of valid negatives, shape ``[*batch, n_neg]``; :math:`N` is their
        number. Masked values are ignored and have weight 0.

    Returns:
      Weights :math:`w_j` in [0, N], shape ``[*batch, n_neg]``, at least float32; finite for
      scores of any magnitude.

    Raises:
      ValueError: If a shape does not match or a hyper-parameter is out of range.

    References:
      Robinson et al., `Contrastive Learning with Hard Negative Samples
      <https://arxiv.org/abs/2010.04592>`_, 2021; "Contrastive Learning for Personalized
      Recommendation", Eq. 5.52.

    >>> print(jnp.round(hard_weights(jnp.array([0.0, 1.0, 2.0]), beta=1.0), 3))
    [0.27  0.734 1.996]
    """
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
    count = expand_anchor_axis(count_kept(neg, where)).astype(neg.dtype)
    return count * jax.nn.softmax(tilt, axis=-1, where=where)
