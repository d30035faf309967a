"""Pairwise losses that distrust positives with a large loss (DenoiseRec)."""

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._hyperparams import (
    NonNegative,
    Range,
    Scalar,
    Temperature,
    check_arguments,
    expand_anchor_axis,
    per_anchor,
)
from .._reduce import ReduceFn, masked_mean
from ..weights import reliability_weights, small_loss_weights
from ._common import Anchors, finish, lead, prepare, row_mean
from ._logspace import softplus
from ._protocols import per_anchor_loss


@check_arguments
def truncated_bce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    drop_rate: Annotated[Scalar, Range(0.0, 1.0)],
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Binary cross-entropy without the positives whose loss is among a batch's largest; T-CE.

    .. math::
        \ell = -w \log \sigma(s^+/t) - \frac1N \sum_j \log \sigma(-s_j/t)

    The :math:`w` are the :func:`crl_jax.weights.small_loss_weights` of
    :math:`-\log \sigma(s^+/t)` over the batch; negatives stay. A dropped positive still
    counts in the mean, with loss 0, where the published code divides by the terms that are
    left. That code takes the rate of positives and negatives together: its rate is half of
    this one where there are as many of both. It raises the rate from 0 along the training,
    as :func:`crl_jax.weights.ramp_drop_rate` does. With ``drop_rate=0`` it is :func:`bce`.

    Args:
      pos: Scores :math:`s^+` of anchors with their positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      drop_rate: Share in [0, 1] of positives to drop, of the anchors that keep a negative.
      temperature: As in :func:`bpr`.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`. They do not influence which positives are dropped.
      reduce_fn: As in :func:`bpr`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

    References:
      Wang et al., `Denoising Implicit Feedback for Recommendation
      <https://arxiv.org/abs/2006.04153>`_, 2021, the truncated loss; "Contrastive Learning
      for Personalized Recommendation", section 3.5.1.

    >>> pos, neg = jnp.array([2.0, -1.0]), jnp.array([[1.0], [0.5]])
    >>> print(f"{truncated_bce(pos, neg, drop_rate=0.5):.4f}")  # -1 is dropped
    1.2071
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    missed = _truncated(softplus(-a.pos / a.temperature), drop_rate, a)
    false_alarm = row_mean(softplus(a.neg / a.temperature), a.where)
    return finish(missed + false_alarm, a, reduce_fn)


@check_arguments
def truncated_bpr(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    drop_rate: Annotated[Scalar, Range(0.0, 1.0)],
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Bayesian personalised ranking without the anchors whose loss is among a batch's largest.

    .. math::
        \ell = w\, \frac1N \sum_j -\log \sigma\bigl((s^+ - s_j)/t\bigr)

    The :math:`w` are the :func:`crl_jax.weights.small_loss_weights` over the batch of what
    they multiply. A dropped anchor still counts in the mean, with loss 0: the mean shrinks
    by the share dropped. With ``drop_rate=0`` it is :func:`bpr`.

    Args:
      pos: Scores :math:`s^+` of anchors with their positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      drop_rate: Share in [0, 1] of anchors to drop, of those that keep a negative.
      temperature: As in :func:`bpr`.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`. They do not influence which anchors are dropped.
      reduce_fn: As in :func:`bpr`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

    References:
      As for :func:`truncated_bce`, here for pairs, as in "Contrastive Learning for
      Personalized Recommendation", section 3.5.1.

    >>> pos, neg = jnp.array([2.0, -1.0]), jnp.array([[1.0], [0.5]])
    >>> print(f"{truncated_bpr(pos, neg, drop_rate=0.5):.4f}")
    0.1566
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    each = row_mean(softplus(-lead(a, a.neg)), a.where)
    return finish(_truncated(each, drop_rate, a), a, reduce_fn)


@per_anchor_loss
@check_arguments
def reweighted_bce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    exponent: NonNegative,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Binary cross-entropy that counts a label less the less the model believes it; R-CE.

    .. math::
        \ell = -\sigma(s^+/t)^b \log \sigma(s^+/t)
            - \frac1N \sum_j \sigma(-s_j/t)^b \log \sigma(-s_j/t)

    The powers are :func:`crl_jax.weights.reliability_weights`, and constants to the gradient,
    as in the published code. With ``exponent=0`` it is :func:`bce`.

    Args:
      pos: Scores :math:`s^+` of anchors with their positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      exponent: The :math:`b \ge 0`; a scalar or an array that broadcasts to ``[*batch]``.
      temperature: As in :func:`bpr`.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`.
      reduce_fn: As in :func:`bpr`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

    References:
      Wang et al., `Denoising Implicit Feedback for Recommendation
      <https://arxiv.org/abs/2006.04153>`_, 2021, the reweighted loss; "Contrastive Learning
      for Personalized Recommendation", section 3.5.1.

    >>> pos, neg = jnp.array([2.0, -1.0]), jnp.array([[1.0], [0.5]])
    >>> print(f"{reweighted_bce(pos, neg, exponent=0.5):.4f}")
    1.0399
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    exponent = per_anchor("exponent", exponent, a.pos.shape, a.pos.dtype)
    missed = _reweighted(a.pos / a.temperature, exponent)
    false_alarm = row_mean(
        _reweighted(-a.neg / a.temperature, expand_anchor_axis(exponent)), a.where
    )
    return finish(missed + false_alarm, a, reduce_fn)


@per_anchor_loss
@check_arguments
def reweighted_bpr(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    exponent: NonNegative,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Bayesian personalised ranking that counts a pair less the less the model believes it.

    .. math::
        \ell = \frac1N \sum_j -\sigma(d_j)^b \log \sigma(d_j), \qquad d_j = (s^+ - s_j)/t

    The powers are :func:`crl_jax.weights.reliability_weights`, and constants to the gradient.
    With ``exponent=0`` it is :func:`bpr`.

    Args:
      pos: Scores :math:`s^+` of anchors with their positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      exponent: As in :func:`reweighted_bce`.
      temperature: As in :func:`bpr`.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`.
      reduce_fn: As in :func:`bpr`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

    References:
      As for :func:`reweighted_bce`, here for pairs, as in "Contrastive Learning for
      Personalized Recommendation", section 3.5.1.

    >>> pos, neg = jnp.array([2.0, -1.0]), jnp.array([[1.0], [0.5]])
    >>> print(f"{reweighted_bpr(pos, neg, exponent=0.5):.4f}")
    0.4973
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    exponent = expand_anchor_axis(per_anchor("exponent", exponent, a.pos.shape, a.pos.dtype))
    return finish(row_mean(_reweighted(lead(a, a.neg), exponent), a.where), a, reduce_fn)


def _truncated(losses: Array, drop_rate: Scalar, anchors: Anchors) -> Array:
    """The losses, those to be dropped as 0; a NaN, which would be the first, stays visible."""
    order = jax.lax.stop_gradient(losses)
    kept = small_loss_weights(order, drop_rate=drop_rate, where=anchors.kept) > 0
    # Not a product: compilers may make it a selection, and 0 · nan a 0.
    return jnp.where(kept | jnp.isnan(order), losses, 0)


def _reweighted(logits: Array, exponent: Array) -> Array:
    r""":math:`-\sigma^b \log \sigma` of logits, the power a constant."""
    trust = jax.lax.stop_gradient(reliability_weights(logits, exponent=exponent))
    return trust * softplus(-logits)
