"""Contrastive losses over score matrices (CLIP) and cluster centroids (ProtoNCE)."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._checks import check_shape
from .._hyperparams import Temperature, check_arguments
from .._reduce import ReduceFn, masked_mean
from ._common import (
    broadcast_like,
    different_pairs,
    finish,
    per_anchor_loss,
    prepare,
    reduce_valid,
)
from ._contrastive import info_nce
from ._logspace import log_sum_exp, softplus


@per_anchor_loss
@check_arguments
def proto_nce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    pos_concentration: hp.Positive = 1.0,
    neg_concentration: hp.Positive = 1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""ProtoNCE loss: InfoNCE between anchors and cluster centroids.

    .. math::
        \ell = -\log \frac{e^{s^+/\phi^+ t}}
                          {e^{s^+/\phi^+ t} + \sum_j e^{s_j/\phi_j t}}

    Cluster term only; add the instance-level :func:`info_nce` for the full objective of the
    paper. Stack several clusterings along a batch axis, over which the default reduction
    averages; mask padded centroids with ``where``.

    Args:
      pos: Scores :math:`s^+` of the assigned centroids, shape ``[*batch]``.
      neg: Scores :math:`s_j` of the other centroids, shape ``[*batch, n_neg]``; or of all
        centroids, with ``where`` False at the assigned one.
      pos_concentration: Concentration :math:`\phi^+ > 0` of the assigned centroid, a
        per-cluster temperature; a scalar or an array that broadcasts to ``[*batch]``.
      neg_concentration: Concentrations :math:`\phi_j > 0` of the other centroids; a scalar
        or an array that broadcasts to ``[*batch, n_neg]``, such as ``[n_neg]`` if all
        anchors share the centroids. Both are differentiable and multiplied by the temperature.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Li et al., `Prototypical Contrastive Learning of Unsupervised Representations
      <https://arxiv.org/abs/2005.04966>`_, 2021, Eq. 11; "Contrastive Learning for
      Personalized Recommendation", section 2.2.4.4.

    >>> scores = jnp.array([[0.9, 0.1, 0.3], [0.2, 0.4, 0.6]])  # 2 anchors, 3 centres
    >>> own, phi = jnp.array([0, 2]), jnp.array([0.2, 0.5, 0.4])
    >>> loss = proto_nce(
    ...     scores[jnp.arange(2), own],
    ...     scores,
    ...     where=own[:, None] != jnp.arange(3)[None],
    ...     pos_concentration=phi[own],
    ...     neg_concentration=phi,
    ... )
    >>> print(f"{loss:.4f}")
    0.3899
    """
    a = prepare(pos, neg, temperature, where, weights)
    scaled_pos = a.pos / broadcast_like(
        "pos_concentration", pos_concentration, a.pos, a.valid, fill=1.0
    )
    scaled_neg = a.neg / broadcast_like(
        "neg_concentration", neg_concentration, a.neg, a.where, fill=1.0
    )
    log_g = log_sum_exp(scaled_neg / a.temperature, where=a.where)
    return finish(softplus(log_g - scaled_pos / a.temperature), a, reduce_fn)


@check_arguments
def clip_contrastive(
    scores: Float[Array, "*batch n n"],
    *,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n"] | None = None,
    weights: Float[Array, "*batch n"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Symmetric CLIP loss: mean of row-wise and column-wise InfoNCE of a score matrix.

    .. math::
        \ell_i = -\frac12 \log \frac{e^{s_{ii}/t}}{\sum_j e^{s_{ij}/t}}
                 -\frac12 \log \frac{e^{s_{ii}/t}}{\sum_j e^{s_{ji}/t}}

    Args:
      scores: Scores :math:`s_{ij}` between row i (e.g. an image) and column j (e.g. a text),
        shape ``[*batch, n, n]``; matching pairs are on the diagonal.
      temperature: Temperature :math:`t > 0`; divides all scores. To learn it, pass
        ``jnp.exp(-log_scale)`` with a parameter ``log_scale``.
      where: Mask of valid pairs, shape ``[*batch, n]``; rows and columns of masked pairs are
        ignored. A pair without negatives has loss 0 and is excluded from the reduction.
      weights: Per-pair loss weights, shape ``[*batch, n]``.
      reduce_fn: Reduction, called as ``reduce_fn(losses, where=pairs_with_negatives)``.
        ``None`` returns per-pair losses.

    The result and errors are those of :func:`bpr`.

    References:
      Radford et al., `Learning Transferable Visual Models From Natural Language Supervision
      <https://arxiv.org/abs/2103.00020>`_, 2021, Figure 3.

    >>> print(f"{clip_contrastive(jnp.array([[2.0, 0.0], [1.0, 3.0]])):.4f}")
    0.1539
    """
    pairs = scores.shape[:-1]
    check_shape("scores", scores, (*pairs, *pairs[-1:]))
    check_shape("where", where, pairs)
    is_negative = different_pairs(pairs, where)
    pos = jnp.diagonal(scores, axis1=-2, axis2=-1)
    by_row, by_column = (
        info_nce(
            pos, neg, temperature=temperature, where=is_negative, weights=weights, reduce_fn=None
        )
        for neg in (scores, jnp.swapaxes(scores, -1, -2))
    )
    return reduce_valid((by_row + by_column) / 2, jnp.any(is_negative, axis=-1), None, reduce_fn)
