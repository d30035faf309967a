"""Losses for noisy positives: truncated and reweighted BCE and BPR."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._hyperparams import Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import ReduceFn, masked_mean
from ..weights import reliability_weights, small_loss_weights
from ._common import Anchors, finish, margins, per_anchor_loss, prepare, row_mean
from ._logspace import softplus


@check_arguments
def truncated_bce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    drop_rate: hp.DropRate = 0.1,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Truncated binary cross-entropy (T-CE): drops the positives with the largest losses.

    .. math:: \ell = -w \log \sigma(s^+/t) - \frac1N \sum_j \log \sigma(-s_j/t)

    The weights :math:`w` are the :func:`crl_jax.weights.small_loss_weights` of
    :math:`-\log \sigma(s^+/t)` over the batch; negatives are never dropped. A dropped positive
    contributes 0 but still counts in the mean, whereas the published code divides by the number of
    remaining terms, applies its drop rate to positives and negatives jointly, and increases it from
    0, see :func:`crl_jax.weights.ramp_drop_rate`. Equivalent to :func:`bce` for ``drop_rate=0``.

    Args:
      drop_rate: Fraction in [0, 1] of positives to drop, among anchors with a valid negative.
      weights: As in :func:`bpr`; ignored in the order of losses.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Wang et al., `Denoising Implicit Feedback for Recommendation
      <https://arxiv.org/abs/2006.04153>`_, 2021, the truncated loss; "Contrastive Learning
      for Personalized Recommendation", section 3.5.1.

    >>> pos, neg = jnp.array([2.0, -1.0]), jnp.array([[1.0], [0.5]])
    >>> print(f"{truncated_bce(pos, neg, drop_rate=0.5):.4f}")  # -1 is dropped
    1.2071
    """
    a = prepare(pos, neg, temperature, where, weights)
    pos_loss = _truncate_losses(softplus(-a.pos / a.temperature), drop_rate, a)
    neg_loss = row_mean(softplus(a.neg / a.temperature), a.where)
    return finish(pos_loss + neg_loss, a, reduce_fn)


@check_arguments
def truncated_bpr(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    drop_rate: hp.DropRate = 0.1,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Truncated Bayesian personalised ranking: drops the anchors with the largest losses.

    .. math:: \ell = w\, \frac1N \sum_j -\log \sigma\bigl((s^+ - s_j)/t\bigr)

    The weights :math:`w` are the :func:`crl_jax.weights.small_loss_weights` of the BPR losses
    over the batch. A dropped anchor contributes 0 but still counts in the mean. Equivalent to
    :func:`bpr` for ``drop_rate=0``.

    Args:
      drop_rate: Fraction in [0, 1] of anchors to drop, among those with a valid negative.
      weights: As in :func:`bpr`; ignored in the order of losses.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      As for :func:`truncated_bce`; for pairs as in the second source.

    >>> pos, neg = jnp.array([2.0, -1.0]), jnp.array([[1.0], [0.5]])
    >>> print(f"{truncated_bpr(pos, neg, drop_rate=0.5):.4f}")
    0.1566
    """
    a = prepare(pos, neg, temperature, where, weights)
    each = row_mean(softplus(-margins(a, a.neg)), a.where)
    return finish(_truncate_losses(each, drop_rate, a), a, reduce_fn)


@per_anchor_loss
@check_arguments
def reweighted_bce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    exponent: hp.NonNegative = 0.25,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Reweighted binary cross-entropy (R-CE): down-weights labels with low model confidence.

    .. math::
        \ell = -\sigma(s^+/t)^b \log \sigma(s^+/t)
            - \frac1N \sum_j \sigma(-s_j/t)^b \log \sigma(-s_j/t)

    The powers are :func:`crl_jax.weights.reliability_weights`, with stopped gradients as in the
    published code. Equivalent to :func:`bce` for ``exponent=0``.

    Args:
      exponent: Exponent :math:`b \ge 0` of the confidence; a scalar or an array that
        broadcasts to ``[*batch]``.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Wang et al., `Denoising Implicit Feedback for Recommendation
      <https://arxiv.org/abs/2006.04153>`_, 2021, the reweighted loss; "Contrastive Learning
      for Personalized Recommendation", section 3.5.1.

    >>> pos, neg = jnp.array([2.0, -1.0]), jnp.array([[1.0], [0.5]])
    >>> print(f"{reweighted_bce(pos, neg, exponent=0.5):.4f}")
    1.0399
    """
    a = prepare(pos, neg, temperature, where, weights)
    b = per_anchor("exponent", exponent, a.pos.shape, a.pos.dtype)
    neg_loss = _reweighted(-a.neg / a.temperature, expand_anchor_axis(b))
    pos_loss = _reweighted(a.pos / a.temperature, b)
    return finish(pos_loss + row_mean(neg_loss, a.where), a, reduce_fn)


@per_anchor_loss
@check_arguments
def reweighted_bpr(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    exponent: hp.NonNegative = 0.25,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Reweighted Bayesian personalised ranking: down-weights pairs with low model confidence.

    .. math:: \ell = \frac1N \sum_j -\sigma(d_j)^b \log \sigma(d_j), \qquad d_j = (s^+ - s_j)/t

    The powers are :func:`crl_jax.weights.reliability_weights`, with stopped gradients.
    Equivalent to :func:`bpr` for ``exponent=0``.

    Arguments, result and errors are those of :func:`reweighted_bce`.

    References:
      As for :func:`reweighted_bce`; for pairs as in the second source.

    >>> pos, neg = jnp.array([2.0, -1.0]), jnp.array([[1.0], [0.5]])
    >>> print(f"{reweighted_bpr(pos, neg, exponent=0.5):.4f}")
    0.4973
    """
    a = prepare(pos, neg, temperature, where, weights)
    exponent = expand_anchor_axis(per_anchor("exponent", exponent, a.pos.shape, a.pos.dtype))
    return finish(row_mean(_reweighted(margins(a, a.neg), exponent), a.where), a, reduce_fn)


def _truncate_losses(losses: Array, drop_rate: hp.Scalar, anchors: Anchors) -> Array:
    """Sets the largest losses to 0, except NaN, which propagates."""
    order = jax.lax.stop_gradient(losses)
    keep = small_loss_weights(order, drop_rate=drop_rate, where=anchors.valid) > 0
    # jnp.where, not a product: compilers may turn the latter into a select that drops NaN.
    return jnp.where(keep | jnp.isnan(order), losses, 0)


def _reweighted(logits: Array, exponent: Array) -> Array:
    r"""Computes :math:`-\sigma^b \log \sigma` of logits with stopped gradient of the power."""
    trust = jax.lax.stop_gradient(reliability_weights(logits, exponent=exponent))
    return trust * softplus(-logits)
