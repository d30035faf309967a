"""Score thresholds of the top K items."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._checks import check_shape
from .._floats import at_least_float32, multiply_share
from .._hyperparams import check_arguments, expand_anchor_axis, per_anchor
from .._reduce import count_unmasked
from ..stats import ranks


@check_arguments
def top_k_threshold(
    scores: Float[Array, "*batch n"],
    *,
    top_fraction: hp.Share,
    where: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Score that separates the top K items of each row from the others.

    .. math:: \beta = s_{(k)}, \qquad k = \max(\lceil qn \rceil, 1)

    the :math:`k`-th largest of :math:`n` scores. For the scores of all items and
    :math:`q = K/n` it is the top-K threshold of a user; for those of sampled items it is the Monte
    Carlo estimate. Its gradient is zero.

    Args:
      scores: Scores of the items of each user, shape ``[*batch, n]``.
      top_fraction: Fraction :math:`q` in [0, 1] of the items in the top K; a scalar or an array
        that broadcasts to ``[*batch]``.
      where: Mask of the valid scores, shape ``[*batch, n]``.

    Returns:
      Thresholds, shape ``[*batch]``, at least float32; +inf for rows without a valid score. NaN
      scores are not valid.

    Raises:
      ValueError: If a shape does not match or ``top_fraction`` is out of range.

    References:
      Yang et al., `Breaking the Top-K Barrier: Advancing Top-K Ranking Metrics Optimization in
      Recommender Systems <https://arxiv.org/abs/2508.05673>`_, 2025.

    >>> print(top_k_threshold(jnp.array([0.1, 0.7, 0.4, -0.2]), top_fraction=0.5))
    0.4
    """
    check_shape("where", where, scores.shape)
    (scores,) = at_least_float32(jax.lax.stop_gradient(scores))
    dtype = scores.dtype
    is_number = ~jnp.isnan(scores)
    where = is_number if where is None else where & is_number
    n = count_unmasked(scores, where)
    q = per_anchor("top_fraction", top_fraction, scores.shape[:-1], dtype)
    k = jnp.ceil(multiply_share(q, n)).astype(jnp.int32)
    rank = ranks(scores, where=where)
    above = expand_anchor_axis(n) - rank
    is_top = (rank > 0) & (above < expand_anchor_axis(jnp.maximum(k, 1)))
    return jnp.min(scores, axis=-1, where=is_top, initial=jnp.inf)
