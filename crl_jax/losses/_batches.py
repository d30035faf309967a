"""Scores of a batch whose members are each other's negatives."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._checks import at_least_float32, check_shape


class BatchScores(NamedTuple):
    """What a loss takes: ``loss(scores.pos, scores.neg, where=scores.where)``.

    Attributes:
      pos: Score of each anchor with its positive, ``[anchors]``.
      neg: Scores with the negatives, ``[anchors, n_neg]``.
      where: Which of them are negatives, or ``None`` for all.
    """

    pos: Float[Array, "anchors"]
    neg: Float[Array, "anchors n_neg"]
    where: Bool[Array, "anchors n_neg"] | None


def normalize(x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    """Embeddings of length 1, so that their products are cosines; 0 stays 0, with zero gradient.

    >>> print(normalize(jnp.array([[3.0, 4.0], [0.0, 0.0]])))
    [[0.6 0.8]
     [0.  0. ]]
    """
    (wide,) = at_least_float32(x)
    largest = jnp.max(jnp.abs(wide), axis=-1, keepdims=True)
    zero = largest == 0
    scaled = wide / jnp.where(zero, 1, largest)  # or the squares may over- or underflow
    length = jnp.sqrt(jnp.where(zero, 1, jnp.sum(scaled**2, axis=-1, keepdims=True)))
    return jnp.where(zero, 0, scaled / length).astype(x.dtype)


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
      ``pos`` of shape ``[2B]``, ``neg`` and, with ``ids``, ``where`` of shape ``[2B, 2(B - 1)]``;
      at least float32.

    Raises:
      ValueError: If a shape does not fit or B < 2.

    References:
      Chen et al., `A Simple Framework for Contrastive Learning of Visual Representations
      <https://arxiv.org/abs/2002.05709>`_, 2020, algorithm 1.

    >>> z1, z2 = jnp.eye(2), jnp.array([[1.0, 0.0], [0.6, 0.8]])
    >>> scores = view_scores(z1, z2)
    >>> print(scores.pos)
    [1.  0.8 1.  0.8]
    >>> print(scores.neg[0])  # the first sample's first view, against the second sample
    [0.  0.6]
    """
    z = jnp.concatenate(_pair("z1", z1, "z2", z2))
    n = z1.shape[0]
    products = scores_of(z, z).reshape(2, n, 2, n)
    across = products[0, :, 1, :]  # not symmetric in samples: rows are first views
    pos = jnp.diagonal(across)
    neg = jnp.concatenate(
        [
            jnp.concatenate([_others(products[view, :, other]) for other in (0, 1)], axis=1)
            for view in (0, 1)
        ]
    )
    where = None
    if ids is not None:
        check_shape("ids", ids, (n,))
        where = jnp.tile(_others(ids[:, None] != ids[None, :]), (2, 2))
    return BatchScores(jnp.concatenate([pos, pos]), neg, where)


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
      ``pos`` of shape ``[B]``, ``neg`` and, with ``ids``, ``where`` of shape ``[B, B - 1]``; at
      least float32.

    Raises:
      ValueError: If a shape does not fit or B < 2.

    >>> x, y = jnp.eye(3), jnp.diag(jnp.array([1.0, 2.0, 3.0]))
    >>> scores = tower_scores(x, y, ids=jnp.array([7, 7, 8]))
    >>> print(scores.pos)
    [1. 2. 3.]
    >>> print(scores.where)
    [[False  True]
     [False  True]
     [ True  True]]
    """
    x, y = _pair("x", x, "y", y)
    products = scores_of(x, y)
    where = None
    if ids is not None:
        check_shape("ids", ids, x.shape[:1])
        where = _others(ids[:, None] != ids[None, :])
    return BatchScores(jnp.diagonal(products), _others(products), where)


def scores_of(x: Array, y: Array) -> Array:
    """All inner products of the rows, at least float32 whatever the rows are."""
    wide = at_least_float32(x[:0])[0].dtype
    return jnp.matmul(x, y.T, preferred_element_type=wide)


def _pair(x_name: str, x: Array, y_name: str, y: Array) -> tuple[Array, Array]:
    if x.ndim != 2 or x.shape[0] < 2:
        raise ValueError(f"`{x_name}` must have shape (batch >= 2, dim), got {x.shape}.")
    check_shape(y_name, y, x.shape)
    return x, y


def _others(square: Array) -> Array:
    """A square matrix without its diagonal, ``[n, n - 1]``, by reshapes alone: no gather."""
    n = square.shape[0]
    behind_diagonal = square.reshape(-1)[1:].reshape(n - 1, n + 1)[:, :-1]
    return behind_diagonal.reshape(n, n - 1)
