"""What weights do to a sample."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import at_least_float32, check_shape


def effective_sample_size(
    weights: Float[Array, "*batch n"],
    *,
    where: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Number of equally weighted samples that are worth as much as these.

    .. math::
        \mathrm{ESS} = \frac{(\sum_j w_j)^2}{\sum_j w_j^2}

    Near the number of samples the weights hardly matter; near 1 a single one decides. The
    scale of the weights does not matter.

    Args:
      weights: The :math:`w_j \ge 0`, shape ``[*batch, n]``.
      where: True keeps a weight, shape ``[*batch, n]``. Others are never read.

    Returns:
      Shape ``[*batch]``, at least float32: from 1 to the number kept; 0 where no weight is
      positive.

    Raises:
      ValueError: If ``where`` has not the shape of ``weights``.

    References:
      Kish, *Survey Sampling*, 1965, section 11.2.

    >>> print(effective_sample_size(jnp.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])))
    [3. 1.]
    """
    check_shape("where", where, weights.shape)
    (weights,) = at_least_float32(weights)
    if where is not None:
        weights = jnp.where(where, weights, 0)
    top = jnp.max(weights, axis=-1, keepdims=True)  # or the squares may over- or underflow
    weights = weights / jnp.where(top > 0, top, 1)
    squares = jnp.sum(weights**2, axis=-1)
    return jnp.sum(weights, axis=-1) ** 2 / jnp.where(squares > 0, squares, 1)
