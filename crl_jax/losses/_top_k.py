"""Losses of the top K items: weights from the threshold of the top K, and from ranks."""

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._checks import check_shape
from .._hyperparams import Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import ReduceFn, count_unmasked, masked_mean
from ..stats import ranks
from ..weights import top_k_threshold
from ._common import all_positives, finish, margins, per_anchor_loss, prepare
from ._logspace import log_sum_exp, softplus


@per_anchor_loss
@check_arguments
def softmax_at_k(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    top_fraction: hp.Share = 0.05,
    weight_temperature: hp.Positive = 1.0,
    threshold: Float[Array, "*batch"] | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Softmax loss at K (SL@K): InfoNCE weighted by whether the positive is in the top K.

    .. math:: \ell = -\sigma\Bigl(\frac{s^+ - \beta}{t_w}\Bigr)
        \log \frac{e^{s^+/t}}{e^{s^+/t} + \sum_j e^{s_j/t}}

    The :func:`crl_jax.weights.top_k_threshold` :math:`\beta` is the K-th largest score of the
    anchor, by default estimated from the positives and negatives that are given. NDCG@K only counts
    items above it; without the weight, the softmax loss bounds NDCG. The weight is constant in the
    gradient.

    Args:
      pos: Scores of the positives. Shape ``[*batch]``, or ``[*batch, 1 + M]`` (same rank as
        ``neg``): column 0 is the positive :math:`s^+`, and the others only contribute to the
        threshold.
      top_fraction: Fraction in [0, 1] of the scores that are in the top K: K divided by the number
        of items, if the scores are a uniform sample. A scalar or an array that broadcasts to
        ``[*batch]``.
      weight_temperature: Temperature :math:`t_w > 0` of the weight; scores are not divided by
        ``temperature`` in it. A scalar or an array that broadcasts to ``[*batch]``.
      threshold: Thresholds :math:`\beta` of the anchors, shape ``[*batch]``, such as those of all
        items at the start of an epoch. ``None`` estimates them.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Yang et al., `Breaking the Top-K Barrier: Advancing Top-K Ranking Metrics Optimization in
      Recommender Systems <https://arxiv.org/abs/2508.05673>`_, 2025.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.9, 0.1, -0.2]])
    >>> print(f"{softmax_at_k(pos, neg, top_fraction=0.5):.4f}")  # ½ InfoNCE: 0.8 is the second
    0.5442
    """
    a = prepare(pos, neg, temperature, where, weights, extra_positives=True)
    top_fraction = per_anchor("top_fraction", top_fraction, a.pos.shape, a.pos.dtype)
    if threshold is None:
        positives, keep = all_positives(a), None
        if a.where is not None and a.valid is not None:
            pos_mask = jnp.broadcast_to(a.valid[..., None], positives.shape)
            keep = jnp.concatenate([pos_mask, a.where], axis=-1)
        beta = top_k_threshold(
            jnp.concatenate([positives, a.neg], axis=-1), top_fraction=top_fraction, where=keep
        )
    else:
        check_shape("threshold", threshold, a.pos.shape)
        beta = jnp.asarray(threshold, a.pos.dtype)
    t_w = per_anchor("weight_temperature", weight_temperature, a.pos.shape, a.pos.dtype)
    weight = jax.lax.stop_gradient(jax.nn.sigmoid((a.pos - beta) / t_w))
    if a.valid is not None:
        weight = jnp.where(a.valid, weight, 0)
    log_sum = log_sum_exp(a.neg / a.temperature, where=a.where)
    return finish(weight * softplus(log_sum - a.pos / a.temperature), a, reduce_fn)


@per_anchor_loss
@check_arguments
def lambda_loss_at_k(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    cutoff: Annotated[hp.PerAnchor, hp.Range(1.0, high_open=True)] = 20.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""LambdaLoss@K: pairwise loss weighted by the effect of a pair on NDCG@K.

    .. math:: \ell = \sum_j \mu_j \bigl[D(|r^+ - r_j|) - D(|r^+ - r_j| + 1)\bigr]
        \log_2\bigl(1 + e^{-(s^+ - s_j)/t}\bigr), \qquad D(r) = \frac1{\log_2(1 + r)}

    where :math:`r` are ranks among the positive and the negatives, from 1, and
    :math:`\mu_j = 1/(1 - D(\max(r^+, r_j)))` if the larger rank exceeds K, otherwise 1. The
    positive is ranked before equal negatives, and equal negatives share the best of their ranks.
    The weights are constant in the gradient. Pairs that are far from each other have little weight,
    except those across the border of the top K.

    Args:
      cutoff: Number K of top ranks, at least 1, among the positive and the negatives; a scalar or
        an array that broadcasts to ``[*batch]``.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Jagerman et al., `On Optimizing Top-K Metrics for Neural Ranking Models
      <https://doi.org/10.1145/3477495.3531849>`_, 2022, with one relevant item per anchor; Wang et
      al., `The LambdaLoss Framework for Ranking Metric Optimization
      <https://doi.org/10.1145/3269206.3271784>`_, 2018.

    >>> pos, neg = jnp.array([0.0]), jnp.array([[1.0, -1.0]])
    >>> print(f"{lambda_loss_at_k(pos, neg, cutoff=3.0):.4f}")
    0.8661
    """
    a = prepare(pos, neg, temperature, where, weights)
    dtype = a.pos.dtype
    cutoff = expand_anchor_axis(per_anchor("cutoff", cutoff, a.pos.shape, dtype))
    own = jax.lax.stop_gradient(a.pos)[..., None]
    leads = own >= a.neg
    above = jnp.sum(~leads, axis=-1, keepdims=True, where=a.where)
    own_rank = 1 + above.astype(dtype)
    n = expand_anchor_axis(count_unmasked(a.neg, a.where))
    neg_rank = (1 + n - ranks(a.neg, where=a.where)).astype(dtype) + leads.astype(dtype)
    difference = jnp.maximum(jnp.abs(own_rank - neg_rank), 1)  # may be 0 where masked
    last = jnp.maximum(own_rank, neg_rank)
    pair = _discount(difference) - _discount(difference + 1)
    weight = jnp.where(last > cutoff, pair / (1 - _discount(last)), pair)
    bits = softplus(-margins(a, a.neg)) / float(np.log(2))
    return finish(jnp.sum(weight * bits, axis=-1, where=a.where), a, reduce_fn)


def _discount(rank: Array) -> Array:
    return 1 / jnp.log2(1 + rank)
