"""Loss-based weights of noisy positives."""

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
    r"""Truncated-loss weights: 0 for the largest losses of a batch, 1 for all others.

    .. math::
        w_i = \mathbb 1\bigl[\ell_i \text{ is none of the }
            \lfloor \epsilon n \rfloor \text{ largest}\bigr]

    Ties are broken in favour of earlier elements, so that exactly
    :math:`\lfloor \epsilon n \rfloor` losses are dropped. The batch is the array of one call:
    under ``jax.vmap`` or ``jax.shard_map`` each example or shard is truncated separately.

    Args:
      losses: Losses :math:`\ell_i`, shape ``[*batch]``; all axes form one batch. NaN counts as
        the largest value.
      drop_rate: Fraction :math:`\epsilon` in [0, 1] to drop. A product :math:`\epsilon n` within
        rounding error of an integer is treated as that integer.
      where: Boolean mask of valid losses, shape ``[*batch]``; :math:`n` is their number. Masked
        values are ignored and have weight 0.

    Returns:
      Weights :math:`w_i` in {0, 1}, shape ``[*batch]``, at least float32.

    Raises:
      ValueError: If a shape does not match or ``drop_rate`` is out of range.

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
    ascending = jnp.lexsort((losses.ravel(), ~kept.ravel()))  # stable; NaN sorts last
    counts = jnp.arange(losses.size) < n - dropped
    counts = jnp.zeros(losses.size, bool).at[ascending].set(counts, unique_indices=True)
    return counts.reshape(losses.shape).astype(losses.dtype)


@check_arguments
def reliability_weights(
    logits: Float[Array, "*shape"], *, exponent: NonNegative
) -> Float[Array, "*shape"]:
    r"""Reweighted-loss weights: a power of the predicted probability of the observed label.

    .. math:: w_i = \sigma(s_i)^b

    Labels that the model considers improbable, which have a large loss, are down-weighted.

    Args:
      logits: Logits :math:`s_i`, any shape: scores of positives, negated scores of negatives.
      exponent: Exponent :math:`b \ge 0`, a scalar or an array that broadcasts to ``logits``; 0
        gives weights of 1.

    Returns:
      Weights :math:`w_i` in [0, 1], shape of ``logits``, at least float32. Gradients are finite
      for all finite logits.

    Raises:
      ValueError: If a shape does not match or ``exponent`` is out of range.

    References:
      Wang et al., `Denoising Implicit Feedback for Recommendation
      <https://arxiv.org/abs/2006.04153>`_, 2021, the reweighted loss.

    >>> [f"{w:.3f}" for w in reliability_weights(jnp.array([-2.0, 0.0, 2.0]), exponent=0.5)]
    ['0.345', '0.707', '0.939']
    """
    (logits,) = at_least_float32(logits)
    exponent = per_anchor("exponent", exponent, logits.shape, logits.dtype)
    # Not `σ ** b`: where σ underflows to 0, its gradient is infinite for b < 1, and the gradient
    # with respect to b contains log 0.
    return jnp.exp(exponent * jax.nn.log_sigmoid(logits))
