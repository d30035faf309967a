"""Weights for positives that may be noise: those with a small loss count."""

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32
from .._hyperparams import NonNegative, Range, Scalar, check_arguments, per_anchor


@check_arguments
def small_loss_weights(
    losses: Float[Array, "*batch"],
    *,
    drop_rate: Annotated[Scalar, Range(0.0, 1.0)],
    where: Bool[Array, "*batch"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Weights of 0 for the largest losses of a batch and of 1 for the others.

    .. math::
        w_i = \mathbb 1\bigl[\ell_i \text{ is none of the }
            \lfloor \epsilon n \rfloor \text{ largest}\bigr]

    Of equal losses the later are dropped first, so that always as many are dropped as the
    formula says. The batch is what one call sees: under ``jax.vmap`` or ``jax.shard_map``
    each part drops its own share.

    Args:
      losses: The :math:`\ell_i`, shape ``[*batch]``; the batch is one whatever its axes. A
        NaN counts as the largest.
      drop_rate: Share :math:`\epsilon` in [0, 1] to drop. A product :math:`\epsilon n` that
        misses a whole number by rounding counts as that number.
      where: True keeps a loss, shape ``[*batch]``; :math:`n` counts these. Others are never
        read and have weight 0.

    Returns:
      The :math:`w_i`, shape ``[*batch]``, at least float32.

    Raises:
      ValueError: If a shape does not fit or ``drop_rate`` leaves its range.

    References:
      Wang et al., `Denoising Implicit Feedback for Recommendation
      <https://arxiv.org/abs/2006.04153>`_, 2021, the truncated loss; there a threshold,
      which the published code takes from the order of a batch, as here.

    >>> print(small_loss_weights(jnp.array([0.1, 2.0, 0.3, 0.9]), drop_rate=0.5))
    [1. 0. 1. 0.]
    """
    check_shape("where", where, losses.shape)
    check_shape("drop_rate", drop_rate, ())
    (losses,) = at_least_float32(losses)
    kept = jnp.ones(losses.shape, bool) if where is None else where

    n = jnp.sum(kept)
    share = jnp.asarray(drop_rate, losses.dtype) * n.astype(losses.dtype)
    dropped = jnp.floor(share * (1 + 2 * float(np.finfo(losses.dtype).eps))).astype(n.dtype)
    ascending = jnp.lexsort((losses.ravel(), ~kept.ravel()))  # stable; NaN after all numbers
    counts = jnp.arange(losses.size) < n - dropped
    counts = jnp.zeros(losses.size, bool).at[ascending].set(counts, unique_indices=True)
    return counts.reshape(losses.shape).astype(losses.dtype)


@check_arguments
def reliability_weights(
    logits: Float[Array, "*shape"], *, exponent: NonNegative
) -> Float[Array, "*shape"]:
    r"""A power of the probability that the model gives to what a label says.

    .. math::
        w_i = \sigma(s_i)^b

    A label that the model finds unlikely has a large loss, and counts less.

    Args:
      logits: The :math:`s_i`, any shape: scores of positives, negated ones of negatives.
      exponent: The :math:`b \ge 0`, a scalar or an array that broadcasts to ``logits``; 0
        gives weights of 1.

    Returns:
      The :math:`w_i` in [0, 1], in the shape of ``logits``, at least float32. Gradients are
      finite however unlikely the label.

    Raises:
      ValueError: If a shape does not fit or ``exponent`` leaves its range.

    References:
      Wang et al., `Denoising Implicit Feedback for Recommendation
      <https://arxiv.org/abs/2006.04153>`_, 2021, the reweighted loss.

    >>> [f"{w:.3f}" for w in reliability_weights(jnp.array([-2.0, 0.0, 2.0]), exponent=0.5)]
    ['0.345', '0.707', '0.939']
    """
    (logits,) = at_least_float32(logits)
    exponent = per_anchor("exponent", exponent, logits.shape, logits.dtype)
    # Not a power of σ: at an underflowed 0 its slope is infinite for b < 1, and log 0 for b.
    return jnp.exp(exponent * jax.nn.log_sigmoid(logits))
