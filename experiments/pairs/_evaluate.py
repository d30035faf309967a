"""Evaluation of the image and text networks on the test part."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, losses, metrics, train

from .._bert import Encoder
from .._study import Evaluation
from .._trained_model import BLOCK, ON_DEVICE, TrainedModel
from .._truth import evaluate_scores
from ..view_losses import PairLoss
from ._problem import Part, Problem

KS = (1, 5, 10)
_DIRECTIONS = {"first": "image_to_text", "second": "text_to_image"}
_CHANCE_KS = (1, 10)
_MAX_SPACE_PAIRS = 1000
"""Maximum number of pairs for alignment and uniformity."""
_MAX_WEIGHT_PAIRS = 256
"""Maximum number of pairs for the evaluation of negative weights."""


def embed(task: Any, params: Any, model_state: Any, images: Any, tokens: Any) -> Any:
    """Computes normalized embeddings of images and of texts."""
    return task.embed(params, model_state, images, tokens, block_size=BLOCK)


_embed = train.jit(embed)


def measure_recall(
    images: Any, tokens: Any, relevant: Any, task: Any, params: Any, model_state: Any
) -> dict[str, Any]:
    """Computes ``valid_recall@10`` and ``valid_recall@1``, each the mean of both directions."""
    image_embeddings, text_embeddings = embed(task, params, model_state, images, tokens)
    recall = metrics.retrieval_recall(image_embeddings, text_embeddings, relevant, ks=(1, 10))
    sums = {k: recall[f"first_recall@{k}"] + recall[f"second_recall@{k}"] for k in (10, 1)}
    return {f"valid_recall@{k}": total / 2 for k, total in sums.items()}


@dataclass(frozen=True)
class EmbeddedTestPart:
    """A trained model, and its embeddings of the test part.

    Attributes:
      learned: The trained model.
      test: The test part.
      images: Normalized embeddings of the test images, ``[n, dim]``.
      texts: Normalized embeddings of the test texts, ``[n_texts, dim]``.
      encoder: The tokenizer and text encoder before training.
    """

    learned: TrainedModel
    test: data.CaptionedImages
    images: jax.Array
    texts: jax.Array
    encoder: Encoder

    @classmethod
    def from_model(cls, learned: TrainedModel, problem: Problem) -> "EmbeddedTestPart":
        """Creates an instance by embedding the test part."""
        test = problem.test
        images, texts = _embedded(learned, test.captioned.images, test.tokens)
        return cls(learned, test.captioned, images, texts, problem.encoder)


def _embedded(learned: TrainedModel, images: Any, tokens: Any) -> Any:
    embed = partial(_embed, learned.task, learned.params, learned.model_state)
    tokens = jax.tree.map(jnp.asarray, tokens)
    image_embeddings, text_embeddings = embed(jnp.asarray(images[:ON_DEVICE]), tokens)
    first_text = jax.tree.map(lambda leaf: leaf[:1], tokens)
    remaining = [
        embed(jnp.asarray(images[i : i + ON_DEVICE]), first_text)[0]
        for i in range(ON_DEVICE, len(images), ON_DEVICE)
    ]
    return jnp.concatenate([image_embeddings, *remaining]), text_embeddings


def evaluate_retrieval(embedded: EmbeddedTestPart) -> tuple[dict[str, float], np.ndarray]:
    """Evaluates image-to-text and text-to-image retrieval.

    Returns:
      Recall and median rank by direction, and chance-level recall, averaged over both directions;
      and the reciprocal rank of each query, images first: 0 for a query without a relevant answer.
    """
    image_groups, text_groups = embedded.test.image_groups, embedded.test.text_groups
    relevant = jnp.asarray(image_groups), jnp.asarray(text_groups)
    ranks = [
        metrics.retrieval_ranks(embedded.images, embedded.texts, *relevant),
        metrics.retrieval_ranks(embedded.texts, embedded.images, *relevant[::-1]),
    ]
    recall = metrics.retrieval_recall(embedded.images, embedded.texts, relevant, ks=KS)
    results: dict[str, float] = {}
    for name, direction in reversed(_DIRECTIONS.items()):
        for k in KS:
            results[f"{direction}_recall@{k}"] = float(recall[f"{name}_recall@{k}"])
        results[f"{direction}_rank"] = float(recall[f"{name}_median_rank"])
    for k in _CHANCE_KS:
        chances = chance(image_groups, text_groups, k), chance(text_groups, image_groups, k)
        results[f"chance_recall@{k}"] = float(np.mean(chances))
    query_ranks = np.concatenate(ranks).astype(float)
    return results, np.divide(1, query_ranks, out=np.zeros_like(query_ranks), where=query_ranks > 0)


def chance(query_ids: np.ndarray, answer_ids: np.ndarray, k: int) -> float:
    r"""Returns the expected recall@k of a random ranking.

    .. math::
        1 - \binom{m - r}{k} \Big/ \binom{m}{k}, \text{ averaged over the queries}

    Args:
      query_ids: Group ids of the queries, ``[n]``; negative for a query without relevant answers.
      answer_ids: Group ids of the answers, ``[m]``; r of them equal that of the query.
      k: Number of top-ranked answers considered.

    >>> print(chance(np.array([0, 1]), np.array([0, 0, 1, 2]), 2))
    0.666...
    """
    known, count = np.unique(answer_ids[answer_ids >= 0], return_counts=True)
    n_by_group = dict(zip(known.tolist(), count.tolist()))
    n_relevant = np.array([n_by_group.get(query, 0) for query in query_ids.tolist()])
    n_relevant, m = n_relevant[n_relevant > 0, None], len(answer_ids)
    position = np.arange(min(k, m))
    miss_rate = np.prod(np.maximum(m - n_relevant - position, 0) / (m - position), axis=1)
    return float(np.mean(1 - miss_rate))


def evaluate_classes(embedded: EmbeddedTestPart, train: Part) -> dict[str, float]:
    """Computes ``zero_shot``, the accuracy of zero-shot classification of images by texts.

    The classes are the groups of the test part, and the prompts of a class are its texts in the
    training part. Returns no metric if there are fewer than two classes, or if a class has no
    training text.
    """
    groups, text_groups = embedded.test.groups, train.captioned.text_groups
    classes = np.unique(groups[groups >= 0]) if groups is not None else np.array([])
    if len(classes) < 2 or not np.isin(classes, text_groups).all():
        return {}
    _, first = np.unique(train.captioned.texts, return_index=True)
    text_rows = [first[text_groups[first] == c] for c in classes]
    if not all(map(len, text_rows)):
        return {}
    max_prompts = max(map(len, text_rows))
    padded = np.array([np.resize(rows, max_prompts) for rows in text_rows])
    mask = np.arange(max_prompts)[None] < np.array([len(rows) for rows in text_rows])[:, None]
    tokens = data.Tokens(*(leaf[padded.ravel()] for leaf in train.tokens))
    _, prompts = _embedded(embedded.learned, embedded.test.images[:1], tokens)
    prompts = prompts.reshape(*padded.shape, -1)
    assert groups is not None
    known = groups >= 0
    predicted = metrics.zero_shot(embedded.images[known], prompts, where=jnp.asarray(mask))
    return {"zero_shot": float(np.mean(classes[np.asarray(predicted)] == groups[known]))}


def evaluate_space(embedded: EmbeddedTestPart) -> dict[str, float]:
    """Computes the alignment of pairs, and the uniformity of images and of texts."""
    image_of_text = embedded.test.image_of_text
    subset = slice(None, None, max(1, len(image_of_text) // _MAX_SPACE_PAIRS))
    texts = embedded.texts[subset][:_MAX_SPACE_PAIRS]
    return {
        "alignment": float(
            losses.alignment(embedded.images[image_of_text[subset][:_MAX_SPACE_PAIRS]], texts)
        ),
        "image_uniformity": float(losses.uniformity(embedded.images[:_MAX_SPACE_PAIRS])),
        "text_uniformity": float(losses.uniformity(texts)),
    }


def evaluate_negatives(embedded: EmbeddedTestPart, entry: PairLoss) -> dict[str, float]:
    """Computes the metrics of false-negative weights; none without groups of equal images."""
    test, learned = embedded.test, embedded.learned
    if test.groups is None:
        return {}
    images, first = np.unique(test.image_of_text, return_index=True)
    step = max(1, len(images) // _MAX_WEIGHT_PAIRS)
    images, first = images[::step][:_MAX_WEIGHT_PAIRS], first[::step][:_MAX_WEIGHT_PAIRS]
    x, y, groups = embedded.images[images], embedded.texts[first], test.groups[images]
    hyperparams = {**learned.task.hyperparams, **learned.task.learned_hyperparams(learned.params)}
    if learned.alpha is not None:
        hyperparams["alpha"] = learned.alpha
    halves = losses.tower_scores(x, y), losses.tower_scores(y, x)
    scores = losses.BatchScores(*(jnp.concatenate(pair) for pair in zip(*halves)))
    is_true = (groups[:, None] != groups[None]) | (groups < 0)[:, None]
    return evaluate_scores(
        entry, hyperparams, scores, jnp.tile(jnp.asarray(is_true), (2, 1))
    ).metrics


def evaluate_pairs(embedded: EmbeddedTestPart, problem: Problem, entry: PairLoss) -> Evaluation:
    """Computes all test metrics, with the reciprocal ranks of the queries as cases."""
    retrieval_metrics, by_query = evaluate_retrieval(embedded)
    other_metrics = evaluate_classes(embedded, problem.train) | evaluate_space(embedded)
    return Evaluation(
        retrieval_metrics | other_metrics | evaluate_negatives(embedded, entry), by_query
    )
