"""Contrastive loss with a moving average per anchor in place of the mean over its negatives."""

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._checks import check_shape
from .._hyperparams import Range, Temperature, check_arguments, per_anchor
from .._reduce import ReduceFn, count_unmasked, masked_mean
from ._common import broadcast_like, finish, per_anchor_loss, prepare
from ._estimators import biased_log_sum
from ._logspace import log_count

Gamma = Annotated[hp.PerAnchor, Range(0.0, 1.0, low_open=True)]
# Largest log-ratio of a mean to its moving average; its exponential and gradients are finite.
_LARGEST = 60.0


@per_anchor_loss
@check_arguments
def global_contrastive(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    log_mean: Float[Array, "*batch"],
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Global contrastive loss (SogCLR), with moving averages of the denominators.

    .. math::
        \ell = \log u + \frac{g}{u} - 1 - \frac{s^+}t, \qquad g = \frac1N \sum_j e^{s_j/t}

    with the moving average :math:`u` of :func:`update_log_mean`, which includes this step. Few
    negatives estimate :math:`g` and its gradient without bias, but not :math:`\nabla g / g`, the
    gradient of :func:`decoupled_contrastive`. Here the gradient is :math:`\nabla g / u`, where
    :math:`u` is a mean over the negatives of many steps.

    The loss is the tangent of :math:`\log g - s^+/t` at :math:`g = u`, hence an upper bound of it,
    with equality for :math:`u = g`, where it equals :func:`decoupled_contrastive` minus
    :math:`\log N`. It has no lower bound. Ratios :math:`g/u` above :math:`e^{60}` are clipped; in
    training, :math:`g/u \le 1/\gamma`.

    Args:
      log_mean: The :math:`\log u` of each anchor, finite if it has negatives, shape ``[*batch]``.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Yuan et al., `Provable Stochastic Optimization for Global Contrastive Learning: Small Batch
      Does Not Harm Performance <https://arxiv.org/abs/2202.12387>`_, 2022, algorithm 1 and its
      published code, of which this is the gradient.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> u = update_log_mean(jnp.array([-jnp.inf]), neg)  # the first batch
    >>> print(f"{global_contrastive(pos, neg, log_mean=u):.4f}")
    -0.5280
    """
    a = prepare(pos, neg, temperature, where, weights)
    check_shape("log_mean", log_mean, a.pos.shape)
    log_u = broadcast_like("log_mean", log_mean, a.pos, a.valid)
    log_g = biased_log_sum(a.neg, temperature=a.temperature, where=a.where)
    log_g = log_g - log_count(a.neg, a.where)
    ratio = jnp.exp(jnp.minimum(log_g - log_u, _LARGEST))
    return finish(log_u + ratio - 1 - a.pos / a.temperature, a, reduce_fn)


@check_arguments
def update_log_mean(
    log_mean: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    gamma: Gamma = 0.9,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Moving average of the mean exponential score of each anchor's negatives, as a logarithm.

    .. math:: u \leftarrow (1 - \gamma)\,u + \gamma\,\frac1N \sum_j e^{s_j/t}

    Args:
      log_mean: The :math:`\log u` of earlier steps, shape ``[*batch]``; -inf before the first step,
        whose mean then counts in full.
      neg: Scores :math:`s_j` of the negatives of this step, shape ``[*batch, n_neg]``.
      gamma: Weight :math:`\gamma` in (0, 1] of this step; a scalar or an array that broadcasts to
        ``[*batch]``. 1 uses this step alone.
      temperature: Temperature :math:`t > 0`; it must be the same in all steps.
      where: Mask of valid negatives, shape ``[*batch, n_neg]``; anchors without any keep their
        average.

    Returns:
      The new :math:`\log u`, shape ``[*batch]``, at least float32, without a gradient.

    Raises:
      ValueError: If shapes are incompatible or a hyper-parameter is out of range.

    References:
      Yuan et al., `Provable Stochastic Optimization for Global Contrastive Learning: Small Batch
      Does Not Harm Performance <https://arxiv.org/abs/2202.12387>`_, 2022, algorithm 1.

    >>> u = update_log_mean(jnp.array([-jnp.inf]), jnp.log(jnp.array([[1.0, 3.0]])))
    >>> u = update_log_mean(u, jnp.log(jnp.array([[4.0, 8.0]])), gamma=0.5)
    >>> print(f"{jnp.exp(u)[0]:.4f}")  # the mean of 2 and 6
    4.0000
    """
    check_shape("log_mean", log_mean, neg.shape[:-1])
    log_g = biased_log_sum(neg, temperature=temperature, where=where)
    log_g = log_g - jnp.log(count_unmasked(neg, where).astype(log_g.dtype))
    log_mean = jnp.asarray(log_mean).astype(log_g.dtype)
    gamma = per_anchor("gamma", gamma, log_g.shape, log_g.dtype)
    mixed = jnp.logaddexp(jnp.log1p(-gamma) + log_mean, jnp.log(gamma) + log_g)
    mixed = jnp.where(jnp.isneginf(log_mean), log_g, mixed)
    return jax.lax.stop_gradient(jnp.where(jnp.isneginf(log_g), log_mean, mixed))
