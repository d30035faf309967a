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
_WAYS = {"first": "image_to_text", "second": "text_to_image"}
_CHANCE = (1, 10)
_PAIRS = 1000
"""Maximum number of pairs for alignment and uniformity."""
_WEIGHED = 256
"""Maximum number of pairs for the evaluation of negative weights."""


def embed(task: Any, params: Any, model_state: Any, images: Any, tokens: Any) -> Any:
    """Computes normalized embeddings of images and of texts."""
    return task.embed(params, model_state, images, tokens, block_size=BLOCK)


_embed = train.jit(embed)


def measure_recall(
    images: Any, tokens: Any, relevant: Any, task: Any, params: Any, model_state: Any
) -> dict[str, Any]:
    """Computes ``valid_recall@10`` and ``valid_recall@1``, each the mean of both directions."""
    of_images, of_texts = embed(task, params, model_state, images, tokens)
    found = metrics.retrieval_recall(of_images, of_texts, relevant, ks=(1, 10))
    both = {k: found[f"first_recall@{k}"] + found[f"second_recall@{k}"] for k in (10, 1)}
    return {f"valid_recall@{k}": of_both / 2 for k, of_both in both.items()}


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
    of_images, of_texts = embed(jnp.asarray(images[:ON_DEVICE]), tokens)
    one = jax.tree.map(lambda leaf: leaf[:1], tokens)
    rest = [
        embed(jnp.asarray(images[i : i + ON_DEVICE]), one)[0]
        for i in range(ON_DEVICE, len(images), ON_DEVICE)
    ]
    return jnp.concatenate([of_images, *rest]), of_texts


def evaluate_retrieval(found: EmbeddedTestPart) -> tuple[dict[str, float], np.ndarray]:
    """Evaluates image-to-text and text-to-image retrieval.

    Returns:
      Recall and median rank by direction, and chance-level recall, averaged over both directions;
      and the reciprocal rank of each query, images first: 0 for a query without a relevant answer.
    """
    of_images, of_texts = found.test.image_groups, found.test.text_groups
    relevant = jnp.asarray(of_images), jnp.asarray(of_texts)
    ranks = [
        metrics.retrieval_ranks(found.images, found.texts, *relevant),
        metrics.retrieval_ranks(found.texts, found.images, *relevant[::-1]),
    ]
    recall = metrics.retrieval_recall(found.images, found.texts, relevant, ks=KS)
    named: dict[str, float] = {}
    for name, shown in reversed(_WAYS.items()):
        for k in KS:
            named[f"{shown}_recall@{k}"] = float(recall[f"{name}_recall@{k}"])
        named[f"{shown}_rank"] = float(recall[f"{name}_median_rank"])
    for k in _CHANCE:
        both = chance(of_images, of_texts, k), chance(of_texts, of_images, k)
        named[f"chance_recall@{k}"] = float(np.mean(both))
    by_rank = np.concatenate(ranks).astype(float)
    return named, np.divide(1, by_rank, out=np.zeros_like(by_rank), where=by_rank > 0)


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
    number = dict(zip(known.tolist(), count.tolist()))
    right = np.array([number.get(query, 0) for query in query_ids.tolist()])
    right, m = right[right > 0, None], len(answer_ids)
    place = np.arange(min(k, m))
    missed = np.prod(np.maximum(m - right - place, 0) / (m - place), axis=1)
    return float(np.mean(1 - missed))


def evaluate_classes(found: EmbeddedTestPart, train: Part) -> dict[str, float]:
    """Computes ``zero_shot``, the accuracy of zero-shot classification of images by texts.

    The classes are the groups of the test part, and the prompts of a class are its texts in the
    training part. Returns no metric if there are fewer than two classes, or if a class has no
    training text.
    """
    groups, of_texts = found.test.groups, train.captioned.text_groups
    classes = np.unique(groups[groups >= 0]) if groups is not None else np.array([])
    if len(classes) < 2 or not np.isin(classes, of_texts).all():
        return {}
    _, first = np.unique(train.captioned.texts, return_index=True)
    own = [first[of_texts[first] == c] for c in classes]
    if not all(map(len, own)):
        return {}
    most = max(map(len, own))
    places = np.array([np.resize(some, most) for some in own])
    where = np.arange(most)[None] < np.array([len(some) for some in own])[:, None]
    tokens = data.Tokens(*(leaf[places.ravel()] for leaf in train.tokens))
    _, prompts = _embedded(found.learned, found.test.images[:1], tokens)
    prompts = prompts.reshape(*places.shape, -1)
    assert groups is not None
    known = groups >= 0
    told = metrics.zero_shot(found.images[known], prompts, where=jnp.asarray(where))
    return {"zero_shot": float(np.mean(classes[np.asarray(told)] == groups[known]))}


def evaluate_space(found: EmbeddedTestPart) -> dict[str, float]:
    """Computes the alignment of pairs, and the uniformity of images and of texts."""
    of_text = found.test.image_of_text
    some = slice(None, None, max(1, len(of_text) // _PAIRS))
    texts = found.texts[some][:_PAIRS]
    return {
        "alignment": float(losses.alignment(found.images[of_text[some][:_PAIRS]], texts)),
        "image_uniformity": float(losses.uniformity(found.images[:_PAIRS])),
        "text_uniformity": float(losses.uniformity(texts)),
    }


def evaluate_negatives(found: EmbeddedTestPart, entry: PairLoss) -> dict[str, float]:
    """Computes the metrics of false-negative weights; none without groups of equal images."""
    test, learned = found.test, found.learned
    if test.groups is None:
        return {}
    images, first = np.unique(test.image_of_text, return_index=True)
    step = max(1, len(images) // _WEIGHED)
    images, first = images[::step][:_WEIGHED], first[::step][:_WEIGHED]
    x, y, groups = found.images[images], found.texts[first], test.groups[images]
    hyperparams = {**learned.task.hyperparams, **learned.task.learned_hyperparams(learned.params)}
    if learned.alpha is not None:
        hyperparams["alpha"] = learned.alpha
    halves = losses.tower_scores(x, y), losses.tower_scores(y, x)
    scores = losses.BatchScores(*(jnp.concatenate(pair) for pair in zip(*halves)))
    is_true = (groups[:, None] != groups[None]) | (groups < 0)[:, None]
    return evaluate_scores(
        entry, hyperparams, scores, jnp.tile(jnp.asarray(is_true), (2, 1))
    ).metrics


def evaluate_pairs(found: EmbeddedTestPart, problem: Problem, entry: PairLoss) -> Evaluation:
    """Computes all test metrics, with the reciprocal ranks of the queries as cases."""
    of_retrieval, by_query = evaluate_retrieval(found)
    rest = evaluate_classes(found, problem.train) | evaluate_space(found)
    return Evaluation(of_retrieval | rest | evaluate_negatives(found, entry), by_query)
