"""Ranking metrics of one list per user, from hits and numbers of relevant items.

Each function takes the relevance ``hits`` of the items at ranks 1, 2, ... and the total number
``n_relevant`` of relevant items of the user, ranked or not, and returns one value per user.
Average over users with ``n_relevant > 0``; for all others the value is 0.

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
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int | Int[Array, ""]
) -> Float[Array, "*batch"]:
    r"""Computes the precision of the top k, :math:`P@k = \#hits / k`.

    Args:
      hits: Relevance :math:`h_i` of the items at ranks 1 to ``ranks``, shape ``[*batch, ranks]``.
      n_relevant: Number of relevant items, shape ``[*batch]``. Unused here: it gives all metrics
        one signature. (Some libraries divide by ``min(k, n_relevant)``.)
      k: The cutoff, ``1 <= k <= ranks``; static. Or a scalar array, to map over cutoffs by one
        program; its value is not checked.

    Returns:
      Shape ``[*batch]``, float32, in [0, 1].

    Raises:
      ValueError: If ``k`` leaves its range or the shapes do not fit.
    """
    return _count(hits, n_relevant, k) / jnp.asarray(k, jnp.float32)


def recall_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int | Int[Array, ""]
) -> Float[Array, "*batch"]:
    r"""Computes the recall of the top k, :math:`R@k = \#hits / n_{relevant}`.

    Arguments, shape and range of the result, and errors are those of :func:`precision_at`.
    """
    return _count(hits, n_relevant, k) / _as_divisor(n_relevant)


def f1_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int | Int[Array, ""]
) -> Float[Array, "*batch"]:
    r"""Computes the F1 score of the top k, :math:`F_1@k = 2\,\#hits / (k + n_{relevant})`.

    The harmonic mean of precision and recall per user differs from that of their averages.

    Arguments, shape and range of the result, and errors are those of :func:`precision_at`.
    """
    return 2 * _count(hits, n_relevant, k) / (k + n_relevant.astype(jnp.int32)).astype(jnp.float32)


def ndcg_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int | Int[Array, ""]
) -> Float[Array, "*batch"]:
    r"""Computes the normalised discounted cumulative gain with binary gains.

    Exactly 1 for an ideal ranking.

    .. math::
        NDCG@k = \frac{\sum_{i \le k} h_i / \log_2(i + 1)}
                      {\sum_{i \le \min(k, n_{relevant})} 1 / \log_2(i + 1)}

    Arguments, shape and range of the result, and errors are those of :func:`precision_at`.

    References:
      Järvelin and Kekäläinen, `Cumulated Gain-Based Evaluation of IR Techniques
      <https://doi.org/10.1145/582415.582418>`_, 2002.
    """
    hits = _top(hits, n_relevant, k)
    discounts = _broadcast_ranks(1 / np.log2(np.arange(2, hits.shape[-1] + 2)), hits)
    ranks = lax.broadcasted_iota(jnp.int32, hits.shape, hits.ndim - 1)
    ideal = ranks < jnp.minimum(n_relevant.astype(jnp.int32), k)[..., None]
    gain, best = (jnp.sum(jnp.where(mask, discounts, 0), -1) for mask in (hits, ideal))
    ratio = jnp.minimum(gain / jnp.where(n_relevant > 0, best, 1), 1)
    # A compiled program may add the terms of equal sums in different orders.
    return jnp.where((hits == ideal).all(-1) & (n_relevant > 0), 1, ratio)


def average_precision_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int | Int[Array, ""]
) -> Float[Array, "*batch"]:
    r"""Computes the average precision of the top k; its mean over users is MAP@k.

    .. math::
        AP@k = \frac{1}{\min(k, n_{relevant})} \sum_{i \le k} h_i \, P@i

    With the divisor :math:`\min(k, n_{relevant})` an ideal ranking gets 1, as in ``implicit`` and
    RecBole. trec_eval and ``ranx`` divide by :math:`n_{relevant}`: multiply by
    ``min(k, n_relevant) / n_relevant`` for that convention.

    Arguments, shape and range of the result, and errors are those of :func:`precision_at`.
    """
    hits = _top(hits, n_relevant, k)
    precisions = _precisions(hits)
    divisor = _as_divisor(jnp.minimum(k, n_relevant.astype(jnp.int32)))
    return jnp.sum(jnp.where(hits, precisions, 0), -1) / divisor


def hit_precision_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int | Int[Array, ""]
) -> Float[Array, "*batch"]:
    r"""Computes the mean interpolated precision at the hits; 0 without a hit.

    .. math::
        \frac{1}{\sum_{i \le k} h_i} \sum_{i \le k} h_i \max_{i \le j \le k} P@j

    Called MAP in chapter 3 of the dissertation. Normalised by the number of hits, it does not
    penalise missed relevant items; :func:`average_precision_at` does.

    Arguments, shape and range of the result, and errors are those of :func:`precision_at`.

    References:
      "Contrastive Learning for Personalized Recommendation", table 3.3.
    """
    hits = _top(hits, n_relevant, k)
    precisions = _precisions(hits)
    best = lax.cummax(precisions, axis=hits.ndim - 1, reverse=True)
    return jnp.sum(jnp.where(hits, best, 0), -1) / _as_divisor(jnp.sum(hits, -1))


def reciprocal_rank_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int | Int[Array, ""]
) -> Float[Array, "*batch"]:
    """Computes the reciprocal rank of the first relevant item; 0 if the top k has none.

    Its mean over users is MRR@k.

    Arguments, shape and range of the result, and errors are those of :func:`precision_at`.
    """
    hits = _top(hits, n_relevant, k)
    return jnp.max(
        jnp.where(hits, 1 / _broadcast_ranks(np.arange(1, hits.shape[-1] + 1), hits), 0), -1
    )


def hit_rate_at(
    hits: Bool[Array, "*batch ranks"], n_relevant: Int[Array, "*batch"], *, k: int | Int[Array, ""]
) -> Float[Array, "*batch"]:
    """Computes the hit rate: 1 if any item of the top k is relevant, else 0.

    Arguments, shape and range of the result, and errors are those of :func:`precision_at`.
    """
    return (_count(hits, n_relevant, k) > 0).astype(jnp.float32)


def auc(
    inversions: Float[Array, "*batch"],
    n_relevant: Int[Array, "*batch"],
    n_irrelevant: Int[Array, "*batch"],
) -> Float[Array, "*batch"]:
    r"""Computes the probability that a relevant item scores above an irrelevant one.

    .. math::
        AUC = 1 - \frac{\#inversions}{n_{relevant}\, n_{irrelevant}}

    It covers all candidates, without a cutoff. Its mean over users, the macro AUC, estimates the
    α of the debiased losses.

    Args:
      inversions: Number of pairs (relevant, irrelevant) in which the irrelevant item scores
        higher, plus half the number of tied pairs, shape ``[*batch]``.
      n_relevant: Number of relevant items, shape ``[*batch]``.
      n_irrelevant: Number of irrelevant candidates, shape ``[*batch]``.

    Returns:
      Shape ``[*batch]``, at least float32, in [0, 1]; 0.5 if there is no pair to compare.

    Raises:
      ValueError: If the shapes differ.
    """
    check_shape("n_relevant", n_relevant, inversions.shape)
    check_shape("n_irrelevant", n_irrelevant, inversions.shape)
    (inversions,) = at_least_float32(inversions)
    # Multiplied as floats: the number of pairs may exceed int32.
    pairs = n_relevant.astype(inversions.dtype) * n_irrelevant.astype(inversions.dtype)
    return jnp.where(pairs > 0, 1 - inversions / jnp.maximum(pairs, 1), 0.5)


def _top(hits: Array, n_relevant: Array, k: int | Array) -> Bool[Array, "*batch ranks"]:
    """Returns the hits of the top k; an array ``k`` masks the ranks beyond it."""
    check_shape("n_relevant", n_relevant, hits.shape[:-1])
    if isinstance(k, Array):
        return hits & (lax.broadcasted_iota(jnp.int32, hits.shape, hits.ndim - 1) < k)
    if not 1 <= k <= hits.shape[-1]:
        raise ValueError(
            f"`k` must lie in [1, {hits.shape[-1]}], the number of ranks in `hits`, got {k}."
        )
    return hits[..., :k]


def _count(hits: Array, n_relevant: Array, k: int | Array) -> Float[Array, "*batch"]:
    return jnp.sum(_top(hits, n_relevant, k), -1).astype(jnp.float32)


def _precisions(hits: Array) -> Float[Array, "*batch ranks"]:
    """Computes the precision at every rank."""
    ranks = _broadcast_ranks(np.arange(1, hits.shape[-1] + 1), hits)
    return jnp.cumsum(hits, -1).astype(jnp.float32) / ranks


def _as_divisor(count: Array) -> Float[Array, "*batch"]:
    """Converts a count to a divisor."""
    return jnp.maximum(count, 1).astype(jnp.float32)


def _broadcast_ranks(values: np.ndarray, hits: Array) -> Array:
    """Broadcasts one constant per rank to the number of dimensions of ``hits``."""
    return jnp.asarray(values, jnp.float32).reshape((1,) * (hits.ndim - 1) + (-1,))
