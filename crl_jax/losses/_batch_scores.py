"""Scores of a batch whose members are each other's negatives."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_shape
from .._floats import at_least_float32
from .._scaling import normalize_rows


class BatchScores(NamedTuple):
    """What a loss takes: ``loss(scores.pos, scores.neg, where=scores.where)``.

    Attributes:
      pos: Score of each anchor with its positive, ``[anchors]``.
      neg: Scores with the whole batch, ``[anchors, keys]``.
      where: Which of them are negatives, ``[anchors, keys]``. A mask, since cutting the others
        out would copy the scores twice, forward and backward.
    """

    pos: Float[Array, "anchors"]
    neg: Float[Array, "anchors keys"]
    where: Bool[Array, "anchors keys"]


def normalize(x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    """Embeddings of length 1, so that their products are cosines; 0 stays 0, with zero gradient.

    >>> print(normalize(jnp.array([[3.0, 4.0], [0.0, 0.0]])))
    [[0.6 0.8]
     [0.  0. ]]
    """
    return normalize_rows(x)


def view_scores(
    z1: Float[Array, "batch dim"],
    z2: Float[Array, "batch dim"],
    *,
    ids: Int[Array, "batch"] | None = None,
) -> BatchScores:
    r"""Scores of two views of each of B samples, all 2B of them anchors (SimCLR).

    The positive of an anchor is the other view of its sample; the 2(B - 1) views of the other
    samples are its negatives. Anchors are all of ``z1`` followed by all of ``z2``.

    Args:
      z1: Embeddings of the first views, shape ``[B, D]``; of length 1 for cosines, see
        :func:`normalize`.
      z2: Embeddings of the second views, shape ``[B, D]``.
      ids: What each sample is, shape ``[B]``. Samples with the same id are not each other's
        negatives: with the labels as ids, only true negatives remain.

    Returns:
      ``pos`` of shape ``[2B]``, ``neg`` and ``where`` of shape ``[2B, 2B]``; at least float32.

    Raises:
      ValueError: If a shape does not fit.

    References:
      Chen et al., `A Simple Framework for Contrastive Learning of Visual Representations
      <https://arxiv.org/abs/2002.05709>`_, 2020, algorithm 1.

    >>> z1, z2 = jnp.eye(2), jnp.array([[1.0, 0.0], [0.6, 0.8]])
    >>> scores = view_scores(z1, z2)
    >>> print(scores.pos)
    [1.  0.8 1.  0.8]
    >>> print(scores.where[0])  # the first sample's views are not its negatives
    [False  True False  True]
    >>> print(scores.neg[0])
    [1.  0.  1.  0.6]
    """
    check_pair("z1", z1, "z2", z2)
    ids = jnp.tile(sample_ids(ids, z1.shape[0]), 2)
    z = jnp.concatenate([z1, z2])
    pos = own_scores(z1, z2)
    return BatchScores(jnp.concatenate([pos, pos]), scores_of(z, z), different(ids, ids))


def tower_scores(
    x: Float[Array, "batch dim"],
    y: Float[Array, "batch dim"],
    *,
    ids: Int[Array, "batch"] | None = None,
) -> BatchScores:
    """Scores of B pairs from two towers, the B rows of ``x`` being the anchors.

    The positive of an anchor is its own row of ``y``, the other B - 1 rows are its negatives.
    Exchange ``x`` and ``y`` for the other direction.

    Args:
      x: Embeddings of the anchors, users for instance, shape ``[B, D]``.
      y: Embeddings of their positives, items for instance, shape ``[B, D]``.
      ids: What each row of ``y`` is, shape ``[B]``. A row with the id of an anchor's positive is
        not its negative: the same item may be drawn twice.

    Returns:
      ``pos`` of shape ``[B]``, ``neg`` and ``where`` of shape ``[B, B]``; at least float32.

    Raises:
      ValueError: If a shape does not fit.

    >>> x, y = jnp.eye(3), jnp.diag(jnp.array([1.0, 2.0, 3.0]))
    >>> scores = tower_scores(x, y, ids=jnp.array([7, 7, 8]))
    >>> print(scores.pos)
    [1. 2. 3.]
    >>> print(scores.where)
    [[False False  True]
     [False False  True]
     [ True  True False]]
    """
    check_pair("x", x, "y", y)
    ids = sample_ids(ids, x.shape[0])
    return BatchScores(own_scores(x, y), scores_of(x, y), different(ids, ids))


def sample_ids(ids: Array | None, n: int) -> Array:
    """The ids given, or each sample its own."""
    if ids is None:
        return jnp.arange(n, dtype=jnp.int32)
    check_shape("ids", ids, (n,))
    return ids


def different(ids: Array, key_ids: Array) -> Array:
    """Which keys are negatives of which anchors."""
    return ids[:, None] != key_ids[None, :]


def own_scores(x: Array, y: Array) -> Array:
    """Inner products of rows at the same place, at least float32."""
    x, y = at_least_float32(x, y)
    return jnp.sum(x * y, axis=-1)


def scores_of(x: Array, y: Array) -> Array:
    """All inner products of the rows, at least float32 whatever the rows are."""
    wide = at_least_float32(x[:0])[0].dtype
    return jnp.matmul(x, y.T, preferred_element_type=wide)


def check_pair(x_name: str, x: Array, y_name: str, y: Array) -> None:
    """Raises ``ValueError`` unless both have one shape, of two axes."""
    if x.ndim != 2:
        raise ValueError(f"`{x_name}` must have shape (batch, dim), got {x.shape}.")
    check_shape(y_name, y, x.shape)
