"""Losses that are linear in the scores, with a margin or without a bound."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_range
from .._reduce import ReduceFn, masked_mean
from ..weights._per_anchor import PerAnchor, Scalar, column, per_anchor
from ._anchors import finish, lead, prepare, row_mean
from ._anchorwise import anchorwise


@anchorwise
def triplet_margin(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    margin: PerAnchor = 1.0,
    temperature: Scalar = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Triplet loss: a positive has to lead each negative by a margin, and no further.

    .. math::
        \ell = \frac1N \sum_j \max\bigl((s_j - s^+)/t + m,\, 0\bigr)

    Args:
      pos: Scores :math:`s^+` of anchors with their positives, shape ``[*batch]``. Of
        distances, take the negative.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      margin: The :math:`m \ge 0`; a scalar or an array that broadcasts to ``[*batch]``.
      temperature: As in :func:`bpr`.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`.
      reduce_fn: As in :func:`bpr`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

    References:
      Schroff et al., `FaceNet: A Unified Embedding for Face Recognition and Clustering
      <https://arxiv.org/abs/1503.03832>`_, 2015, Eq. 2; Chen et al., `A Simple Framework for
      Contrastive Learning of Visual Representations <https://arxiv.org/abs/2002.05709>`_,
      2020, Table 2.

    >>> print(triplet_margin(jnp.array([0.75]), jnp.array([[0.5, -2.0]]), margin=0.5))
    0.125
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    check_range("margin", margin, 0.0, jnp.inf, high_open=True, dtype=a.pos.dtype)
    margin = column(per_anchor("margin", margin, a.pos.shape, a.pos.dtype))
    return finish(row_mean(jnp.maximum(margin - lead(a, a.neg), 0), a.where), a, reduce_fn)


@anchorwise
def linear_pairwise(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    repulsion: PerAnchor = 1.0,
    temperature: Scalar = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""The simple contrastive loss: scores of negatives minus that of the positive.

    .. math::
        \ell = -s^+/t + \lambda \frac1N \sum_j s_j/t

    What the other losses bend. Without a lower bound unless scores have one, as cosines do.

    Args:
      pos: Scores :math:`s^+` of anchors with their positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      repulsion: The :math:`\lambda \ge 0`; a scalar or an array that broadcasts to
        ``[*batch]``.
      temperature: As in :func:`bpr`.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`.
      reduce_fn: As in :func:`bpr`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

    References:
      Le-Khac et al., `Contrastive Representation Learning: A Framework and Review
      <https://arxiv.org/abs/2010.05113>`_, 2020.

    >>> print(linear_pairwise(jnp.array([2.0]), jnp.array([[1.0, 0.0]]), repulsion=0.5))
    -1.75
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    check_range("repulsion", repulsion, 0.0, jnp.inf, high_open=True, dtype=a.pos.dtype)
    repulsion = per_anchor("repulsion", repulsion, a.pos.shape, a.pos.dtype)
    apart = repulsion * row_mean(a.neg, a.where) - a.pos
    return finish(apart / a.temperature, a, reduce_fn)
