"""Worst-case weights of negatives within a Kullback-Leibler ball."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._checks import check_negatives, check_shape
from .._floats import at_least_float32
from .._hyperparams import check_arguments, expand_anchor_axis, per_anchor
from .._reduce import count_unmasked
from .._scaling import subtract_row_max


@check_arguments
def adversarial_weights(
    neg: Float[Array, "*batch n_neg"],
    *,
    radius: hp.NonNegative,
    temperature: hp.Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch n_neg"]:
    r"""Weights of negatives that maximise a contrastive loss within a Kullback-Leibler ball.

    .. math::
        w = N \arg\max_p \Bigl\{\sum_j p_j e^{s_j/t} :\;
            \sum_j p_j \log(N p_j) \le \eta\Bigr\}
        \quad\Longrightarrow\quad w_j \propto \exp\bigl(e^{s_j/t} / \lambda\bigr)

    over distributions :math:`p` of the :math:`N` negatives of an anchor, with the
    :math:`\lambda` for which the divergence from the uniform distribution is :math:`\eta`, found by
    bisection. Their mean is 1. For :math:`\eta = 0` all weights are 1; for
    :math:`\eta \ge \log N` the negative with the highest score has weight :math:`N`. The weights
    are constant with respect to gradients, see
    :func:`crl_jax.losses.adversarial_contrastive`.

    Args:
      neg: Scores :math:`s_j` of the negatives, shape ``[*batch, n_neg]``.
      radius: Radius :math:`\eta \ge 0` of the ball, in nats; a scalar or an array that broadcasts
        to ``[*batch]``.
      temperature: Temperature :math:`t > 0`.
      where: Mask of valid negatives, ``[*batch, n_neg]``; others have weight 0.

    Returns:
      Weights :math:`w_j` in [0, N], shape of ``neg``, at least float32; NaN in rows with NaN.

    Raises:
      ValueError: If a shape does not match or a hyper-parameter is out of range.

    References:
      Zhang et al., `Empowering Collaborative Filtering with Principled Adversarial Contrastive
      Loss <https://arxiv.org/abs/2310.18700>`_, 2023; Hu and Hong, `Kullback-Leibler Divergence
      Constrained Distributionally Robust Optimization
      <https://optimization-online.org/2012/11/3677/>`_, 2013, for the form of the maximum.

    >>> w = adversarial_weights(jnp.array([0.0, 1.0, 2.0]), radius=0.1)
    >>> [f"{x:.3f}" for x in w]
    ['0.586', '0.773', '1.640']
    """
    check_negatives(neg)
    check_shape("where", where, neg.shape)
    check_shape("temperature", temperature, ())
    neg, radius, temperature = jax.lax.stop_gradient((neg, radius, temperature))
    (neg,) = at_least_float32(neg)
    dtype = neg.dtype
    eta = expand_anchor_axis(per_anchor("radius", radius, neg.shape[:-1], dtype))
    return _maximizer(neg, eta, jnp.asarray(temperature, dtype), where)


@jax.jit  # the loop would be compiled in every call otherwise
def _maximizer(neg: Array, eta: Array, temperature: Array, where: Array | None) -> Array:
    """The weights of scores of a floating type."""
    dtype = neg.dtype
    if where is not None:
        neg = jnp.where(where, neg, -jnp.inf)
    below, _ = subtract_row_max(neg)
    # Distance of exp(s/t) from its maximum, relative to the largest distance: the ball is
    # invariant to the scale of the terms.
    gap = -jnp.expm1(below / temperature)
    if where is not None:
        gap = jnp.where(where, gap, 0)
    spread = jnp.max(gap, axis=-1, keepdims=True)
    gap = gap / jnp.where(spread == 0, 1, spread)
    count = expand_anchor_axis(count_unmasked(neg, where)).astype(dtype)

    def tilted(log_tilt: Array) -> tuple[Array, Array, Array]:
        """Weights before normalisation, less 1; their mean; and the logarithm of the weights."""
        falling = jnp.expm1(-jnp.exp(log_tilt) * gap)
        mean = jnp.sum(falling, axis=-1, keepdims=True, where=where) / count
        return falling, mean, -jnp.exp(log_tilt) * gap - jnp.log1p(mean)

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        each = _divergence(*tilted(middle))
        inside = jnp.sum(each, axis=-1, keepdims=True, where=where) / count <= eta
        return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

    # From weights that are 1 up to rounding to those without weight on the second largest score.
    log_eps = math.log(jnp.finfo(dtype).eps)
    start = 0 * spread + log_eps, 0 * spread - 2 * log_eps
    low, _ = jax.lax.fori_loop(0, jnp.finfo(dtype).nmant + 1, halve, start)
    weight = jnp.exp(tilted(low)[2])
    return weight if where is None else jnp.where(where, weight, 0)


def _divergence(falling: Array, mean: Array, log_weight: Array) -> Array:
    """Computes ``w log w - w + 1``, whose mean is the divergence of weights ``w`` of mean 1."""
    # A weight of 0 is exactly 0, whatever the rounding of the quotient.
    weight, excess = (1 + falling) / (1 + mean), (falling - mean) / (1 + mean)
    eps = float(jnp.finfo(log_weight.dtype).eps)
    small = jnp.abs(log_weight) < (15 * eps) ** 0.25  # where the difference loses more digits
    series = log_weight**2 * (1 / 2 + log_weight * (1 / 3 + log_weight / 8))
    return jnp.where(small, series, weight * log_weight - excess)
