"""Metrics of one ranked list per user, from which of its items are relevant.

Every function takes the relevance ``hits`` of the items at ranks 1, 2, ... and the number
``n_relevant`` of relevant items the user has in all, whether ranked or not, and returns one
value per user. The mean over users is the caller's: over those with ``n_relevant > 0``, since
the others have nothing to find (their value is 0 here).

>>> hits = jnp.array([[True, False, True], [False, False, False]])
>>> n_relevant = jnp.array([2, 5])
>>> print(precision_at(hits, n_relevant, k=2), recall_at(hits, n_relevant, k=3))
[0.5 0. ] [1. 0.]
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_shape
from .._floats import at_least_float32


def precision_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int
) -> Float[Array, "*batch"]:
    r"""Share of the first k ranks that is relevant, :math:`P@k = \#hits / k`.

    Args:
      hits: Relevance of the items at ranks 1 to ``ranks``, shape ``[*batch, ranks]``.
      n_relevant: Number of relevant items, shape ``[*batch]``. Not used: it is here so that
        all metrics are called alike. (Some libraries divide by ``min(k, n_relevant)``.)
      k: The cutoff, ``1 <= k <= ranks``; static.

    Returns:
      Shape ``[*batch]``, float32, in [0, 1].

    Raises:
      ValueError: If ``k`` leaves its range or the shapes do not fit.
    """
    return _count(hits, n_relevant, k) / k


def recall_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int
) -> Float[Array, "*batch"]:
    r"""Share of the relevant items found, :math:`R@k = \#hits / n_{relevant}`.

    Args:
      hits: Relevance of the items at ranks 1 to ``ranks``, shape ``[*batch, ranks]``.
      n_relevant: Number of relevant items, shape ``[*batch]``.
      k: The cutoff, ``1 <= k <= ranks``; static.

    Returns:
      Shape ``[*batch]``, float32, in [0, 1].

    Raises:
      ValueError: If ``k`` leaves its range or the shapes do not fit.
    """
    return _count(hits, n_relevant, k) / _at_least_one(n_relevant)


def f1_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int
) -> Float[Array, "*batch"]:
    r"""Harmonic mean of precision and recall, :math:`F_1@k = 2\,\#hits / (k + n_{relevant})`.

    The harmonic mean is taken for each user; that of the two averages is another number.

    Args:
      hits: Relevance of the items at ranks 1 to ``ranks``, shape ``[*batch, ranks]``.
      n_relevant: Number of relevant items, shape ``[*batch]``.
      k: The cutoff, ``1 <= k <= ranks``; static.

    Returns:
      Shape ``[*batch]``, float32, in [0, 1].

    Raises:
      ValueError: If ``k`` leaves its range or the shapes do not fit.
    """
    return 2 * _count(hits, n_relevant, k) / (k + n_relevant).astype(jnp.float32)


def ndcg_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int
) -> Float[Array, "*batch"]:
    r"""Normalised discounted cumulative gain with binary gains.

    .. math::
        NDCG@k = \frac{\sum_{i \le k} h_i / \log_2(i + 1)}
                      {\sum_{i \le \min(k, n_{relevant})} 1 / \log_2(i + 1)}

    Args:
      hits: Relevance :math:`h_i` of the items at ranks 1 to ``ranks``, shape ``[*batch, ranks]``.
      n_relevant: Number of relevant items, shape ``[*batch]``.
      k: The cutoff, ``1 <= k <= ranks``; static.

    Returns:
      Shape ``[*batch]``, float32, in [0, 1]; exactly 1 for an ideal ranking.

    Raises:
      ValueError: If ``k`` leaves its range or the shapes do not fit.

    References:
      Järvelin and Kekäläinen, `Cumulated Gain-Based Evaluation of IR Techniques
      <https://doi.org/10.1145/582415.582418>`_, 2002.
    """
    _check(hits, n_relevant, k)
    discounts = _per_rank(1 / np.log2(np.arange(2, k + 2)), hits)
    # The ideal is summed like the gain itself, so that equal lists give exactly 1.
    ranks = lax.broadcasted_iota(jnp.int32, (*n_relevant.shape, k), n_relevant.ndim)
    ideal = ranks < n_relevant[..., None].astype(jnp.int32)
    gain, best = (jnp.sum(jnp.where(found, discounts, 0), -1) for found in (hits[..., :k], ideal))
    return gain / jnp.where(n_relevant > 0, best, 1)


def average_precision_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int
) -> Float[Array, "*batch"]:
    r"""Mean precision at the ranks of the relevant items; its mean over users is MAP@k.

    .. math::
        AP@k = \frac{1}{\min(k, n_{relevant})} \sum_{i \le k} h_i \, P@i

    Divided by :math:`\min(k, n_{relevant})`, an ideal ranking gets 1, as in the packages
    ``implicit`` and RecBole. The other convention (trec_eval, ``ranx``) divides by
    :math:`n_{relevant}`; multiply by ``min(k, n_relevant) / n_relevant`` for it.

    Args:
      hits: Relevance :math:`h_i` of the items at ranks 1 to ``ranks``, shape ``[*batch, ranks]``.
      n_relevant: Number of relevant items, shape ``[*batch]``.
      k: The cutoff, ``1 <= k <= ranks``; static.

    Returns:
      Shape ``[*batch]``, float32, in [0, 1].

    Raises:
      ValueError: If ``k`` leaves its range or the shapes do not fit.
    """
    _check(hits, n_relevant, k)
    hits = hits[..., :k]
    precisions = jnp.cumsum(hits, -1).astype(jnp.float32) / _per_rank(np.arange(1, k + 1), hits)
    return jnp.sum(jnp.where(hits, precisions, 0), -1) / _at_least_one(jnp.minimum(k, n_relevant))


def hit_precision_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int
) -> Float[Array, "*batch"]:
    r"""Mean interpolated precision at the relevant items found; 0 if none is.

    .. math::
        \frac{1}{\sum_{i \le k} h_i} \sum_{i \le k} h_i \max_{i \le j \le k} P@j

    What the dissertation's chapter 3 calls MAP. Divided by the number of hits, it does not ask how
    many relevant items were missed; :func:`average_precision_at` does.

    Args:
      hits: Relevance :math:`h_i` of the items at ranks 1 to ``ranks``, shape ``[*batch, ranks]``.
      n_relevant: Number of relevant items, shape ``[*batch]``; not used, see
        :func:`precision_at`.
      k: The cutoff, ``1 <= k <= ranks``; static.

    Returns:
      Shape ``[*batch]``, float32, in [0, 1].

    Raises:
      ValueError: If ``k`` leaves its range or the shapes do not fit.

    References:
      "Contrastive Learning for Personalized Recommendation", table 3.3.
    """
    _check(hits, n_relevant, k)
    hits = hits[..., :k]
    precisions = jnp.cumsum(hits, -1).astype(jnp.float32) / _per_rank(np.arange(1, k + 1), hits)
    best = lax.cummax(precisions, axis=hits.ndim - 1, reverse=True)
    return jnp.sum(jnp.where(hits, best, 0), -1) / _at_least_one(jnp.sum(hits, -1))


def reciprocal_rank_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int
) -> Float[Array, "*batch"]:
    """One over the rank of the first relevant item, 0 if the first k hold none.

    Its mean over users is MRR@k.

    Args:
      hits: Relevance of the items at ranks 1 to ``ranks``, shape ``[*batch, ranks]``.
      n_relevant: Number of relevant items, shape ``[*batch]``; not used, see
        :func:`precision_at`.
      k: The cutoff, ``1 <= k <= ranks``; static.

    Returns:
      Shape ``[*batch]``, float32, in [0, 1].

    Raises:
      ValueError: If ``k`` leaves its range or the shapes do not fit.
    """
    _check(hits, n_relevant, k)
    return jnp.max(jnp.where(hits[..., :k], 1 / _per_rank(np.arange(1, k + 1), hits), 0), -1)


def hit_rate_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int
) -> Float[Array, "*batch"]:
    """1 if any of the first k items is relevant, else 0.

    Args:
      hits: Relevance of the items at ranks 1 to ``ranks``, shape ``[*batch, ranks]``.
      n_relevant: Number of relevant items, shape ``[*batch]``; not used, see
        :func:`precision_at`.
      k: The cutoff, ``1 <= k <= ranks``; static.

    Returns:
      Shape ``[*batch]``, float32, 0 or 1.

    Raises:
      ValueError: If ``k`` leaves its range or the shapes do not fit.
    """
    return (_count(hits, n_relevant, k) > 0).astype(jnp.float32)


def auc(
    inversions: Float[Array, "*batch"],
    n_relevant: Int[Array, "*batch"],
    n_irrelevant: Int[Array, "*batch"],
) -> Float[Array, "*batch"]:
    r"""Probability that a relevant item scores above an irrelevant one.

    .. math::
        AUC = 1 - \frac{\#inversions}{n_{relevant}\, n_{irrelevant}}

    Over the whole list of candidates, with no cutoff. This is the α of the debiased losses,
    measured (its mean over users is the macro AUC).

    Args:
      inversions: Number of pairs (relevant, irrelevant) in which the irrelevant item scores
        higher, plus half the number of tied pairs, shape ``[*batch]``.
      n_relevant: Number of relevant items, shape ``[*batch]``.
      n_irrelevant: Number of irrelevant candidates, shape ``[*batch]``.

    Returns:
      Shape ``[*batch]``, at least float32, in [0, 1]; 0.5, no information, where there is no
      pair to compare.

    Raises:
      ValueError: If the shapes differ.
    """
    check_shape("n_relevant", n_relevant, inversions.shape)
    check_shape("n_irrelevant", n_irrelevant, inversions.shape)
    (inversions,) = at_least_float32(inversions)
    # Multiplied as floats: the number of pairs may pass the range of int32.
    pairs = n_relevant.astype(inversions.dtype) * n_irrelevant.astype(inversions.dtype)
    return jnp.where(pairs > 0, 1 - inversions / jnp.maximum(pairs, 1), 0.5)


def _check(hits: Array, n_relevant: Array, k: int) -> None:
    check_shape("n_relevant", n_relevant, hits.shape[:-1])
    if not 1 <= k <= hits.shape[-1]:
        raise ValueError(
            f"`k` must lie in [1, {hits.shape[-1]}], the number of ranks in `hits`, got {k}."
        )


def _count(hits: Array, n_relevant: Array, k: int) -> Float[Array, "*batch"]:
    _check(hits, n_relevant, k)
    return jnp.sum(hits[..., :k], -1).astype(jnp.float32)


def _at_least_one(count: Array) -> Float[Array, "*batch"]:
    """A count as a divisor."""
    return jnp.maximum(count, 1).astype(jnp.float32)


def _per_rank(values: np.ndarray, hits: Array) -> Array:
    """A constant for each rank, with the rank of ``hits`` so that it broadcasts openly."""
    return jnp.asarray(values, jnp.float32).reshape((1,) * (hits.ndim - 1) + (-1,))
