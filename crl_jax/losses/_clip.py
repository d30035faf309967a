"""Variants of InfoNCE: decoupled (DCL), prototypical (ProtoNCE) and symmetric (CLIP)."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._hyperparams import Positive, Temperature, check_arguments
from .._reduce import ReduceFn, masked_mean
from ._common import beside, finish, prepare, reduce_kept
from ._contrastive import info_nce
from ._estimators import biased_log_sum
from ._logspace import log_sum_exp, softplus
from ._protocols import per_anchor_loss


@per_anchor_loss
@check_arguments
def decoupled_contrastive(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Decoupled contrastive loss: InfoNCE without the positive in the denominator.

    .. math::
        \ell = -\log \frac{e^{s^+/t}}{\sum_j e^{s_j/t}}

    The gradient does not vanish for easy positives and easy negatives, so that few negatives
    suffice. The loss has no lower bound. Not to be confused with
    :func:`debiased_contrastive`, also abbreviated "DCL".

    Args:
      pos: Scores :math:`s^+` of the positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` of the negatives, shape ``[*batch, n_neg]``.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. The dtype is at least float32.

    Raises:
      ValueError: If shapes do not match or ``temperature`` is not positive.

    References:
      Yeh et al., `Decoupled Contrastive Learning <https://arxiv.org/abs/2110.06848>`_, 2022,
      Eq. 6; "Contrastive Learning for Personalized Recommendation", section 2.2.4.3.

    >>> pos, neg = jnp.array([2.0]), jnp.array([[0.0, 1.0]])
    >>> print(f"{decoupled_contrastive(pos, neg):.4f}")  # log(1 + e) - 2
    -0.6867
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    log_g = biased_log_sum(a.neg, temperature=a.temperature, where=a.where)
    loss = jnp.where(jnp.isneginf(log_g), 0, log_g - a.pos / a.temperature)
    return finish(loss, a, reduce_fn)


@per_anchor_loss
@check_arguments
def proto_nce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    pos_concentration: Positive = 1.0,
    neg_concentration: Positive = 1.0,
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
        anchors share the centroids. Both concentrations are differentiable.
      temperature: As in :func:`info_nce`; multiplies the concentrations.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. The dtype is at least float32.

    Raises:
      ValueError: If shapes do not match, or a concentration or ``temperature`` is not
        positive.

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
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    own = a.pos / beside("pos_concentration", pos_concentration, a.pos, a.kept, fill=1.0)
    others = a.neg / beside("neg_concentration", neg_concentration, a.neg, a.where, fill=1.0)
    log_g = log_sum_exp(others / a.temperature, where=a.where)
    return finish(softplus(log_g - own / a.temperature), a, reduce_fn)


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

    Returns:
      Reduced loss, by default the mean over pairs; per-pair losses ``[*batch, n]`` if
      ``reduce_fn`` is None. The dtype is at least float32.

    Raises:
      ValueError: If shapes do not match or ``temperature`` is not positive.

    References:
      Radford et al., `Learning Transferable Visual Models From Natural Language Supervision
      <https://arxiv.org/abs/2103.00020>`_, 2021, Figure 3.

    >>> print(f"{clip_contrastive(jnp.array([[2.0, 0.0], [1.0, 3.0]])):.4f}")
    0.1539
    """
    pairs = scores.shape[:-1]
    check_shape("scores", scores, (*pairs, *pairs[-1:]))
    check_shape("where", where, pairs)
    others = jnp.broadcast_to(~jnp.eye(pairs[-1], dtype=bool), scores.shape)
    if where is not None:
        others = others & where[..., None, :] & where[..., :, None]
    own = jnp.diagonal(scores, axis1=-2, axis2=-1)
    by_row, by_column = (
        info_nce(own, neg, temperature=temperature, where=others, weights=weights, reduce_fn=None)
        for neg in (scores, jnp.swapaxes(scores, -1, -2))
    )
    return reduce_kept((by_row + by_column) / 2, jnp.any(others, axis=-1), None, reduce_fn)
