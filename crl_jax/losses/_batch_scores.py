"""Scores of in-batch negatives."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_shape
from .._floats import at_least_float32
from .._pytree import serializable
from .._scaling import normalize_rows


@serializable
class BatchScores(NamedTuple):
    """Score arguments of a loss: ``loss(scores.pos, scores.neg, where=scores.where)``.

    Attributes:
      pos: Scores of anchor-positive pairs, ``[anchors]``.
      neg: Scores of anchors with all keys of the batch, ``[anchors, keys]``.
      where: Mask of valid negatives, ``[anchors, keys]``. Extracting the negatives instead would
        copy the scores in the forward and the backward pass.
    """

    pos: Float[Array, "anchors"]
    neg: Float[Array, "anchors keys"]
    where: Bool[Array, "anchors keys"]


def normalize(x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    """Normalizes embeddings to unit norm; zero rows stay 0, with zero gradient.

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
    r"""Scores of two views of B samples, with all 2B views as anchors (SimCLR).

    The positive of an anchor is the other view of the same sample; its negatives are the
    2(B - 1) views of the other samples. Anchors are the rows of ``z1``, then those of ``z2``.

    Precision: float32 products have the platform's default precision, as in all training; the
    products of bfloat16 embeddings are exact.

    Args:
      z1: Embeddings of the first views, shape ``[B, D]``; for cosine similarities, apply
        :func:`normalize` to both views.
      z2: Embeddings of the second views, shape ``[B, D]``.
      ids: Sample ids, shape ``[B]``; by default distinct. Samples with equal ids are not
        negatives of each other, so class labels as ids exclude all false negatives.

    Returns:
      ``pos`` of shape ``[2B]``, ``neg`` and ``where`` of shape ``[2B, 2B]``; at least float32.

    Raises:
      ValueError: If shapes are incompatible.

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
    return BatchScores(jnp.concatenate([pos, pos]), pairwise_scores(z, z), different(ids, ids))


def tower_scores(
    x: Float[Array, "batch dim"],
    y: Float[Array, "batch dim"],
    *,
    ids: Int[Array, "batch"] | None = None,
) -> BatchScores:
    """Scores of B pairs from two towers, with the rows of ``x`` as anchors.

    The positive of an anchor is the row of ``y`` with the same index; the other B - 1 rows are
    its negatives. Swap ``x`` and ``y`` for the opposite direction.

    Precision: float32 products have the platform's default precision, as in all training; the
    products of bfloat16 embeddings are exact.

    Args:
      x: Embeddings of the anchors, such as users, shape ``[B, D]``.
      y: Embeddings of their positives, such as items, shape ``[B, D]``.
      ids: Ids of the rows of ``y``, shape ``[B]``; by default distinct. Rows with the id of an
        anchor's positive are not its negatives, since a batch may contain an item repeatedly.

    Returns:
      ``pos`` of shape ``[B]``, ``neg`` and ``where`` of shape ``[B, B]``; at least float32.

    Raises:
      ValueError: If shapes are incompatible.

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
    return BatchScores(own_scores(x, y), pairwise_scores(x, y), different(ids, ids))


def sample_ids(ids: Array | None, n: int) -> Array:
    """Validates sample ids; distinct ids by default."""
    if ids is None:
        return jnp.arange(n, dtype=jnp.int32)
    check_shape("ids", ids, (n,))
    return ids


def different(ids: Array, key_ids: Array) -> Array:
    """Mask of anchor-key pairs with different ids, ``[anchors, keys]``."""
    return ids[:, None] != key_ids[None, :]


def own_scores(x: Array, y: Array) -> Array:
    """Row-wise inner products, at least float32."""
    x, y = at_least_float32(x, y)
    return jnp.sum(x * y, axis=-1)


def pairwise_scores(x: Array, y: Array) -> Array:
    """Computes all pairwise inner products of rows, accumulated in at least float32."""
    wide = at_least_float32(x[:0])[0].dtype
    return jnp.matmul(x, y.T, preferred_element_type=wide)


def check_pair(x_name: str, x: Array, y_name: str, y: Array) -> None:
    """Raises ``ValueError`` unless both arrays have the same two-dimensional shape."""
    if x.ndim != 2:
        raise ValueError(f"`{x_name}` must have shape (batch, dim), got {x.shape}.")
    check_shape(y_name, y, x.shape)
