"""Weighted nearest-neighbour classification of representations."""

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._blocks import map_blocks
from .._checks import check_count, check_shape
from .._floats import at_least_float32
from .._hyperparams import POSITIVE, Scalar, check_arguments
from .._reduce import masked_mean
from .._scaling import normalize_rows
from ._features import HIGHEST, class_labels, has_class
from ._top_k import top_k


@check_arguments
def knn_accuracy(
    queries: Float[Array, "n dim"],
    query_labels: Int[Array, "n"],
    bank: Float[Array, "m dim"],
    labels: Int[Array, "m"],
    *,
    n_classes: int,
    k: int = 200,
    temperature: Annotated[Scalar, POSITIVE] = 0.07,
    leave_out: Int[Array, "n"] | None = None,
    bank_where: Bool[Array, "m"] | None = None,
    where: Bool[Array, "n"] | None = None,
    block_size: int = 256,
) -> Float[Array, ""]:
    """Computes the accuracy of :func:`knn_predict`.

    Precision: products are in full float32 on every platform.

    Args:
      queries: Representations to classify, shape ``[n, dim]``.
      query_labels: Their classes, integers below ``n_classes``, shape ``[n]``; queries with
        negative labels are excluded.
      bank, labels, n_classes, k, temperature, bank_where, block_size: As for :func:`knn_predict`.
      leave_out: As for :func:`knn_predict`. ``jnp.arange(len(bank))`` gives the leave-one-out
        accuracy of the bank.
      where: Mask of the queries to include, shape ``[n]``.

    Returns:
      A float32 in [0, 1]; 0 without queries. Queries predicted as -1 (NaN, or no votes) count
      as wrong.

    Raises:
      ValueError: As :func:`knn_predict`; if ``query_labels`` or ``where`` has another shape, or a
        concrete query label is not below ``n_classes``.

    >>> bank, labels = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), jnp.array([0, 0, 1])
    >>> print(knn_accuracy(bank, labels, bank, labels, n_classes=2, k=1))
    1.0
    >>> own = jnp.arange(3)
    >>> print(knn_accuracy(bank, labels, bank, labels, n_classes=2, k=1, leave_out=own))
    0.6666667
    """
    check_count("n_classes", n_classes)
    query_labels = class_labels("query_labels", query_labels, n_classes)
    check_shape("query_labels", query_labels, queries.shape[:1])
    check_shape("where", where, queries.shape[:1])
    predicted = knn_predict(
        queries, bank, labels, n_classes=n_classes, k=k, temperature=temperature,
        leave_out=leave_out, bank_where=bank_where, block_size=block_size,
    )  # fmt: skip
    keep = query_labels >= 0
    correct = (predicted == query_labels).astype(jnp.float32)
    return masked_mean(correct, where=keep if where is None else keep & where)


@check_arguments
def knn_predict(
    queries: Float[Array, "n dim"],
    bank: Float[Array, "m dim"],
    labels: Int[Array, "m"],
    *,
    n_classes: int,
    k: int = 200,
    temperature: Annotated[Scalar, POSITIVE] = 0.07,
    leave_out: Int[Array, "n"] | None = None,
    bank_where: Bool[Array, "m"] | None = None,
    block_size: int = 256,
) -> Int[Array, "n"]:
    r"""Classifies queries by a weighted vote of their nearest neighbours in a labelled bank.

    .. math::
        \hat y = \arg\max_c \sum_{j \in N_k} \mathbb{1}[y_j = c]\; e^{s_j / \tau}

    where :math:`s_j` is the cosine of the query and entry j of the bank, and :math:`N_k` are the k
    entries with the greatest cosines. Ties of cosines are broken by the lower index, ties of votes
    by the lower class.

    The code published with the debiased, hard and Bayesian contrastive losses uses ``k=200,
    temperature=0.5`` on the features before the projection head.

    Precision: products are in full float32 on every platform.

    Args:
      queries: Representations of any norm, shape ``[n, dim]``.
      bank: Labelled representations of any norm, shape ``[m, dim]``.
      labels: Classes of the bank, integers below ``n_classes``, shape ``[m]``; entries with
        negative labels have no vote.
      n_classes: Number of classes; static.
      k: Number of neighbours, ``1 <= k <= m``; static.
      temperature: Temperature :math:`\tau > 0`; the lower, the more weight on the nearest.
      leave_out: Bank index to exclude per query, shape ``[n]``; -1 for none. ``jnp.arange(m)``
        allows the queries to be the bank itself.
      bank_where: Mask of the bank entries to include, shape ``[m]``.
      block_size: Queries per block; static. Memory is that of ``block_size * m`` cosines.

    Returns:
      Classes, int32 ``[n]``; -1 if there are no votes or a cosine is NaN.

    Raises:
      ValueError: If a shape does not fit, or ``k``, ``temperature`` or ``block_size`` leaves its
        range, or a concrete label is not below ``n_classes``.

    References:
      Wu et al., `Unsupervised Feature Learning via Non-Parametric Instance Discrimination
      <https://arxiv.org/abs/1805.01978>`_, 2018, section 3.4, with its k and temperature.

    >>> bank, labels = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]]), jnp.array([3, 5, 5])
    >>> queries = jnp.array([[2.0, 0.1], [0.2, 0.9]])
    >>> print(knn_predict(queries, bank, labels, n_classes=6, k=2))
    [3 5]
    """
    n, m = len(queries), len(bank)
    check_count("n_classes", n_classes)
    labels = class_labels("labels", labels, n_classes)
    check_shape("bank", bank, (m, *queries.shape[1:]))
    check_shape("labels", labels, (m,))
    check_shape("leave_out", leave_out, (n,))
    check_shape("bank_where", bank_where, (m,))
    check_count("block_size", block_size)
    if not 1 <= k <= m:
        raise ValueError(f"`k` must lie in [1, {m}], the size of the bank, got {k}.")
    queries, bank = at_least_float32(queries, bank)
    if leave_out is None:
        leave_out = jnp.full(n, -1, jnp.int32)
    voters = has_class(labels, n_classes)
    if bank_where is not None:
        voters = voters & bank_where
    tau = jnp.asarray(temperature, bank.dtype)
    return _predict(queries, bank, labels, voters, leave_out, tau, n_classes, k, block_size)


@partial(jax.jit, static_argnums=(6, 7, 8))
def _predict(
    queries: Array,
    bank: Array,
    labels: Array,
    voters: Array,
    leave_out: Array,
    temperature: Array,
    n_classes: int,
    k: int,
    block_size: int,
) -> Array:
    bank = normalize_rows(bank)
    positions = jnp.arange(len(bank), dtype=jnp.int32)[None]

    def classify_block(block: tuple[Array, Array]) -> Array:
        queries, leave_out = block
        cosines = jnp.matmul(normalize_rows(queries), bank.T, precision=HIGHEST)
        visible = voters[None] & (positions != leave_out[:, None])
        nearest, index = top_k(jnp.where(visible, cosines, -jnp.inf), k)
        return _vote(nearest, labels[index], n_classes, temperature)

    return map_blocks(classify_block, (queries, leave_out.astype(jnp.int32)), block_size)


def _vote(
    cosines: Float[Array, "n k"], classes: Int[Array, "n k"], n_classes: int, temperature: Array
) -> Int[Array, "n"]:
    """Returns the class with the maximum total weight; a cosine of -inf has weight 0."""
    is_masked = jnp.isneginf(cosines)
    # Relative to the nearest, whose weight is then 1, so that nothing overflows.
    shifted = jnp.where(is_masked, 0, cosines - cosines[:, :1])
    weights = jnp.where(is_masked, 0, jnp.exp(shifted / temperature))
    is_class = classes[:, :, None] == jnp.arange(n_classes, dtype=jnp.int32)[None, None]
    votes = jnp.sum(jnp.where(is_class, weights[:, :, None], 0), axis=1)
    winner = jnp.argmax(votes, axis=1).astype(jnp.int32)
    # Comparisons with NaN are false.
    return jnp.where(jnp.max(votes, axis=1) > 0, winner, -1)
