"""Cross-modal retrieval and zero-shot classification."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._blocks import map_blocks
from .._checks import check_count, check_int32, check_shape
from .._floats import at_least_float32
from .._hyperparams import check_arguments
from .._scaling import normalize_rows
from ._features import HIGHEST, best_class


def retrieval_recall(
    first: Float[Array, "n dim"],
    second: Float[Array, "m dim"],
    relevant: tuple[Int[Array, "n"], Int[Array, "m"]] | None = None,
    ks: Sequence[int] = (1, 5, 10),
    *,
    block_size: int = 256,
) -> dict[str, Float[Array, ""]]:
    """Recall@k and median rank of cross-modal retrieval by cosine similarity, in both directions.

    Precision: products are in full float32 on every platform.

    Args:
      first: Embeddings of one modality, such as images, shape ``[n, dim]``; need not be normalised.
      second: Embeddings of the other modality, such as texts, shape ``[m, dim]``.
      relevant: Match ids of ``first`` and ``second``, ``[n]`` and ``[m]``: two embeddings match if
        their ids are equal and not negative, so that all captions of an image share its id. None
        matches ``first[i]`` with ``second[i]`` and requires ``n == m``.
      ks: Cutoffs, each >= 1; static.
      block_size: Number of queries per block; static. Peak memory is that of ``block_size * m``
        (or ``block_size * n``) similarities.

    Returns:
      Metrics over all queries with a match: ``first_recall@k``, the fraction of queries from
      ``first`` with a match among the top k of ``second``; ``first_median_rank``, the median of
      :func:`retrieval_ranks`; and the same with the prefix ``second`` for queries from ``second``.
      NaN if no query has a match.

    Raises:
      ValueError: If a shape does not match, or a cutoff or ``block_size`` is not positive.

    >>> images = jnp.eye(3)
    >>> texts = jnp.array([[1.0, 0.1, 0.0], [0.0, 1.0, 0.5], [0.9, 0.0, 0.0]])
    >>> metrics = retrieval_recall(images, texts, ks=(1, 2))
    >>> print({name: f"{value:.2f}" for name, value in metrics.items() if "first" in name})
    {'first_recall@1': '0.33', 'first_recall@2': '0.67', 'first_median_rank': '2.00'}
    """
    for k in ks:
        check_count("ks", k)
    if relevant is None:
        check_shape("second", second, first.shape)
        index = jnp.arange(len(first), dtype=jnp.int32)
        relevant = index, index
    ways = {
        "first": (first, second, *relevant),
        "second": (second, first, *relevant[::-1]),
    }
    metrics = {}
    for name, arrays in ways.items():
        ranks = retrieval_ranks(*arrays, block_size=block_size)
        n = jnp.sum(ranks > 0)
        for k in ks:
            hits = jnp.sum((ranks > 0) & (ranks <= k))
            metrics[f"{name}_recall@{k}"] = hits.astype(jnp.float32) / n.astype(jnp.float32)
        positive = jnp.where(ranks > 0, ranks.astype(jnp.float32), jnp.nan)
        metrics[f"{name}_median_rank"] = jnp.nanmedian(positive)
    return metrics


def retrieval_ranks(
    queries: Float[Array, "n dim"],
    answers: Float[Array, "m dim"],
    query_ids: Int[Array, "n"],
    answer_ids: Int[Array, "m"],
    *,
    block_size: int = 256,
) -> Int[Array, "n"]:
    """Rank of the best match of each query by cosine similarity, starting at 1.

    The rank is one plus the number of non-matching answers whose similarity is equal or higher.
    Ties are therefore resolved pessimistically, so that constant embeddings have the worst rank.
    Other matches do not increase the rank. NaN counts as a non-match with a higher similarity.

    Precision: products are in full float32 on every platform.

    Args:
      queries, answers: Embeddings, ``[n, dim]`` and ``[m, dim]``; need not be normalised.
      query_ids, answer_ids: Match ids, ``[n]`` and ``[m]``; negative for no match.
      block_size: Number of queries per block; static.

    Returns:
      Ranks, int32 ``[n]``; 0 for queries without a match.

    Raises:
      ValueError: If a shape does not match, an id does not fit into 32 bits, or ``block_size`` is
        not positive.

    >>> queries, answers = jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> print(retrieval_ranks(queries, answers, jnp.array([0]), jnp.array([0, 1, 2])))
    [2]
    """
    check_shape("answers", answers, (len(answers), *queries.shape[1:]))
    check_shape("query_ids", query_ids, (len(queries),))
    check_shape("answer_ids", answer_ids, (len(answers),))
    for name, ids in (("query_ids", query_ids), ("answer_ids", answer_ids)):
        check_int32(name, ids)
    check_count("block_size", block_size)
    queries, answers = at_least_float32(queries, answers)
    query_ids, answer_ids = (x.astype(jnp.int32) for x in (query_ids, answer_ids))
    return _ranks(queries, answers, query_ids, answer_ids, block_size)


@check_arguments
def zero_shot(
    embeddings: Float[Array, "n dim"],
    class_embeddings: Float[Array, "n_classes *prompts dim"],
    *,
    where: Bool[Array, "n_classes *prompts"] | None = None,
    block_size: int = 4096,
) -> Int[Array, "n"]:
    """Zero-shot classification: the class with the highest cosine similarity to each embedding.

    With prompt ensembling, the normalised embeddings of all prompts of a class, such as "a photo
    of a cat" and "a drawing of a cat", are averaged and normalised again.

    Precision: products are in full float32 on every platform.

    Args:
      embeddings: Embeddings to classify, shape ``[n, dim]``; need not be normalised.
      class_embeddings: Text embeddings of the classes, shape ``[n_classes, dim]`` or, with several
        prompts per class, ``[n_classes, n_prompts, dim]``.
      where: Boolean mask of valid prompts, for classes with different numbers of prompts; shape of
        ``class_embeddings`` without the last axis. Classes without a valid prompt are never
        predicted.
      block_size: Number of rows per block; static.

    Returns:
      Predicted classes, int32 ``[n]``; the lowest index for ties, -1 where a similarity is NaN, and
      for all embeddings if no class has a valid prompt.

    Raises:
      ValueError: If a shape does not match or ``block_size`` is not positive.

    References:
      Radford et al., `Learning Transferable Visual Models From Natural Language Supervision
      <https://arxiv.org/abs/2103.00020>`_, 2021, section 3.1.4.

    >>> prompts = jnp.array([[[1.0, 0.0], [1.0, 0.2]], [[0.0, 1.0], [0.3, 1.0]]])
    >>> print(zero_shot(jnp.array([[5.0, 1.0], [0.2, 0.3]]), prompts))
    [0 1]
    """
    if class_embeddings.ndim == 2:
        class_embeddings = class_embeddings[:, None]
        where = None if where is None else where[:, None]
    n_classes, n_prompts = class_embeddings.shape[:2]
    check_shape("class_embeddings", class_embeddings, (n_classes, n_prompts, embeddings.shape[-1]))
    check_shape("where", where, (n_classes, n_prompts))
    check_count("block_size", block_size)
    embeddings, classes = at_least_float32(embeddings, class_embeddings)
    keep = jnp.ones((n_classes, n_prompts), bool) if where is None else where
    classes = normalize_rows(jnp.where(keep[..., None], classes, 0))
    classes = normalize_rows(jnp.sum(classes, axis=1))  # normalises the mean, too

    has_prompt = jnp.any(keep, axis=1)

    def classify_block(block: Array) -> Array:
        cosines = jnp.matmul(normalize_rows(block), classes.T, precision=HIGHEST)
        best = best_class(jnp.where(has_prompt[None], cosines, -jnp.inf))
        return jnp.where(jnp.any(has_prompt), best, -1)

    return map_blocks(classify_block, embeddings, block_size)


@partial(jax.jit, static_argnums=4)
def _ranks(
    queries: Array, answers: Array, query_ids: Array, answer_ids: Array, block_size: int
) -> Array:
    answers = normalize_rows(answers)

    def rank_block(block: tuple[Array, Array]) -> Array:
        queries, own = block
        # Full precision, also on devices whose default matmul precision is lower.
        cosines = jnp.matmul(normalize_rows(queries), answers.T, precision=HIGHEST)
        is_right = (own[:, None] == answer_ids[None, :]) & (own >= 0)[:, None]
        best = jnp.max(jnp.where(is_right, cosines, -jnp.inf), axis=1)
        # Negated comparison, so that ties and NaN count as ahead.
        is_ahead = ~is_right & ~(cosines < best[:, None])
        ranks = 1 + jnp.sum(is_ahead, axis=1, dtype=jnp.int32)
        ranks = jnp.where(jnp.isnan(best), len(answer_ids) + 1, ranks)
        return jnp.where(jnp.any(is_right, axis=1), ranks, 0)

    return map_blocks(rank_block, (queries, query_ids), block_size)
