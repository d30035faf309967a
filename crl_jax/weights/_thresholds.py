"""Thresholds of scores above which the negatives of an anchor are considered false."""

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._checks import check_negatives, check_shape
from .._floats import at_least_float32, multiply_share
from .._hyperparams import Range, check_arguments, per_anchor
from .._reduce import count_unmasked

FalseShare = Annotated[hp.PerAnchor, Range(0.0, 1.0, high_open=True)]


@check_arguments
def update_threshold(
    threshold: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    share: FalseShare,
    learning_rate: hp.NonNegative = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Step of a threshold towards the quantile of all negatives of an anchor (GloFND).

    .. math::
        \lambda \leftarrow \lambda - \eta \Bigl(a - \frac1N \sum_j [s_j > \lambda]\Bigr)

    This is stochastic gradient descent on :math:`a\lambda + \mathbb{E} \max(s - \lambda, 0)`,
    whose minimum is exceeded by a share :math:`a` of the scores of the whole dataset: few negatives
    per step suffice, and the cost does not depend on the size of the data. Negatives above the
    threshold are considered false.

    Differs from the published code, which starts all thresholds at 1 and uses Adam.

    Args:
      threshold: The :math:`\lambda` of earlier steps, shape ``[*batch]``; NaN before the first
        step, which then returns the threshold that :math:`\lfloor aN \rfloor` of its scores exceed
        (fewer if there are ties).
      neg: Scores :math:`s_j` of the negatives of this step, shape ``[*batch, n_neg]``.
      share: Share :math:`a` in [0, 1) of false negatives; a scalar or an array that broadcasts to
        ``[*batch]``.
      learning_rate: Step size :math:`\eta \ge 0`, in units of scores; likewise.
      where: Mask of the :math:`N` valid negatives, shape ``[*batch, n_neg]``; anchors without any
        keep their threshold.

    Returns:
      The new thresholds, shape ``[*batch]``, at least float32, without a gradient.

    Raises:
      ValueError: If a shape does not match or a hyper-parameter is out of range.

    References:
      Balmaseda et al., `Discovering Global False Negatives On the Fly for Self-supervised
      Contrastive Learning <https://arxiv.org/abs/2502.20612>`_, 2025, algorithm 1.

    >>> neg = jnp.array([[0.1, 0.2, 0.3, 0.4]])
    >>> first = update_threshold(jnp.array([jnp.nan]), neg, share=0.25)
    >>> second = update_threshold(first, neg + 0.15, share=0.25, learning_rate=0.1)
    >>> print(f"{first[0]:.3f} {second[0]:.3f}")  # three of four exceed the first
    0.300 0.350
    """
    check_negatives(neg)
    batch = neg.shape[:-1]
    check_shape("threshold", threshold, batch)
    check_shape("where", where, neg.shape)
    neg, threshold = at_least_float32(jax.lax.stop_gradient(neg), jax.lax.stop_gradient(threshold))
    share = per_anchor("share", share, batch, neg.dtype)
    learning_rate = per_anchor("learning_rate", learning_rate, batch, neg.dtype)

    count = count_unmasked(neg, where)
    above = neg > threshold[..., None]
    above = jnp.sum(above if where is None else above & where, axis=-1, dtype=neg.dtype)
    moved = threshold - learning_rate * (share - above / count.astype(neg.dtype))
    unknown = jnp.isnan(threshold)
    # Functions of the module, which are compiled once where the step itself is not.
    first = jax.lax.cond(
        jnp.any(unknown), _upper_quantile, _no_quantile, threshold, neg, share, count, where
    )
    new = jnp.where(unknown, first, moved)
    return new if where is None else jnp.where(jnp.any(where, axis=-1), new, threshold)


def _no_quantile(threshold: Array, *_: Array | None) -> Array:
    return threshold


def _upper_quantile(
    threshold: Array, neg: Array, share: Array, count: Array, where: Array | None
) -> Array:
    """The score of each row that ``floor(share * count)`` others exceed, without ties."""
    del threshold
    ordered = jnp.sort(neg if where is None else jnp.where(where, neg, -jnp.inf), axis=-1)
    exceeding = jnp.floor(multiply_share(share, count)).astype(count.dtype)
    exceeding = jnp.minimum(exceeding, count - 1)
    index = neg.shape[-1] - 1 - exceeding
    index = jnp.broadcast_to(index, neg.shape[:-1])[..., None]
    return jnp.take_along_axis(ordered, index, axis=-1)[..., 0]
