"""Evaluation of text encoders, in training reports and on the test part."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import losses, metrics, models, tasks, train

from .._knn import BANK, KNNBank, train_knn, valid_knn
from .._study import Evaluation
from .._trained_model import BLOCK, TrainedModel, evenly_spaced, neighbours
from .._truth import Truth, evaluate_scores, evaluation_subset, final_hyperparams
from ..view_losses import LossEntry
from ._config import Config
from ._problem import Pairs, Part, Problem

_BANK = 1000
"""Maximum number of texts in the memory bank of kNN in reports."""


def measure_features(config: Config, problem: Problem, phase: str) -> Any:
    """Returns the measurement for reports of pre-training.

    With labels this is :func:`valid_knn` or :func:`train_knn`; without labels,
    :func:`measure_dropout` of training texts.
    """
    if not problem.train.classes:
        order = np.random.default_rng(config.protocol.seed).permutation(len(problem.train))
        inputs = problem.train.inputs[order[:_BANK]]
        return jax.tree_util.Partial(_measure_dropout, jnp.asarray(inputs))
    bank = make_bank(config, problem.part(phase), _BANK, config.protocol.seed)
    if phase == "search":
        valid = problem.valid.labelled
        return valid_knn(bank, valid.inputs, valid.labels)
    return train_knn(bank)


def make_bank(config: Config, part: Part, max_texts: int, seed: int) -> KNNBank:
    """Returns up to ``max_texts`` random labelled texts as the memory bank of kNN."""
    part, protocol = part.labelled, config.protocol
    subset = part.take(np.random.default_rng(seed).permutation(len(part))[:max_texts])
    return KNNBank(
        subset.inputs,
        subset.labels,
        len(part.classes),
        protocol.neighbours,
        protocol.knn_temperature,
    )


def measure_accuracy(problem: Problem) -> Any:
    """Returns the measurement of ``valid_accuracy`` for fine-tuning."""
    valid = problem.valid.labelled.data
    return jax.tree_util.Partial(_accuracy, jnp.asarray(valid.examples), jnp.asarray(valid.labels))


def _accuracy(inputs: Any, labels: Any, task: Any, params: Any, model_state: Any) -> dict[str, Any]:
    is_correct = task.classify(params, model_state, inputs, block_size=BLOCK) == labels
    return {"valid_accuracy": jnp.mean(is_correct.astype(jnp.float32))}


def measure_dropout(task: Any, params: Any, model_state: Any, inputs: Any) -> tuple[Any, Any]:
    """Computes the alignment of features under two dropout masks, and their uniformity.

    Args:
      task: Task whose network computes the features of the texts.
      params: Parameters of the task.
      model_state: Non-trainable state of the task, including the dropout key.
      inputs: The texts, as in :class:`Part`.

    Returns:
      The mean squared distance between the normalized features under two dropout masks, over the
      texts that fill whole blocks; and the uniformity of the normalized features without dropout.
    """
    network_variables, rest = task.network_variables(params, model_state)
    size = min(BLOCK, len(inputs))
    blocks = inputs[: len(inputs) // size * size].reshape(-1, size, *inputs.shape[1:])

    def block_alignment(rest: Any, block: Any) -> tuple[Any, Any]:
        # Each row has its own dropout mask, and each block another key.
        doubled = task.augment.plain(jnp.concatenate([block, block]))
        z, rest = task.network.apply(
            network_variables, rest, doubled, train=True, method="features"
        )
        return rest, losses.alignment(*jnp.split(losses.normalize(z), 2))

    _, distances = jax.lax.scan(block_alignment, rest, blocks)
    embeddings = losses.normalize(task.represent(params, model_state, inputs, block_size=BLOCK))
    return jnp.mean(distances), losses.uniformity(embeddings)


def _measure_dropout(inputs: Any, task: Any, params: Any, model_state: Any) -> dict[str, Any]:
    alignment, uniformity = measure_dropout(task, params, model_state, inputs)
    return {"train_dropout_alignment": alignment, "train_uniformity": uniformity}


@train.jit
def classify(task: tasks.Classification, params: Any, model_state: Any, inputs: Any) -> Any:
    """Returns the predicted classes of texts, as in :class:`Part`."""
    return task.classify(params, model_state, inputs, block_size=BLOCK)


@dataclass(frozen=True)
class Stages:
    """Results of the stages of a training.

    Attributes:
      contrast: The pre-trained model, with its head; None without pre-training.
      start: The encoder before fine-tuning: its parameters and its other variables.
      classifier: The fine-tuned classifier; None without fine-tuning.
      history: The history entries of the last stage.
    """

    contrast: TrainedModel | None
    start: tuple[Any, Any]
    classifier: TrainedModel | None
    history: list[dict[str, Any]]


_ALIGNMENT_TEXTS = 1000
"""Number of test texts for alignment and uniformity."""


@dataclass(frozen=True, eq=False)
class TrainedTextModel:
    """A trained encoder, and its features and predictions on the test part.

    Attributes:
      problem: The texts.
      contrast: The pre-trained model, with its head; None without pre-training.
      before: The encoder before fine-tuning.
      classifier: The fine-tuned classifier; None without fine-tuning.
    """

    problem: Problem
    contrast: TrainedModel | None
    before: TrainedModel
    classifier: TrainedModel | None

    @classmethod
    def from_stages(cls, problem: Problem, trained: Stages) -> "TrainedTextModel":
        """Creates an instance from the results of the training stages."""
        bare = tasks.SimCLR(models.Network(problem.encoder.settings), problem.table)
        before = TrainedModel(bare, *trained.start)
        return cls(problem, trained.contrast, before, trained.classifier)

    @property
    def after(self) -> TrainedModel:
        """The encoder after the last stage."""
        if self.classifier is None:
            return self.before
        return TrainedModel(
            self.before.task, self.classifier.params["network"], self.classifier.model_state
        )

    @cached_property
    def test(self) -> Part:
        """The labelled test texts, or all test texts if there are no classes."""
        return self.problem.test.evaluated

    @cached_property
    def features_before(self) -> jax.Array:
        """Features of the test texts before fine-tuning."""
        return self.before.features(self.test.inputs)

    @cached_property
    def features(self) -> jax.Array:
        """Features of the test texts after the last stage."""
        if self.classifier is None:
            return self.features_before
        return self.after.features(self.test.inputs)

    def predicted(self, seed: int) -> jax.Array:
        """Predicts the test classes with the fine-tuned classifier, or else with a linear probe."""
        if self.classifier is not None:
            classifier = self.classifier
            return classify(
                classifier.task,
                classifier.params,
                classifier.model_state,
                jnp.asarray(self.test.inputs),
            )
        part = self.problem.train.labelled
        return metrics.linear_probe(
            self.before.features(part.inputs), jnp.asarray(part.labels), self.features,
            jnp.asarray(self.test.labels), n_classes=len(part.classes), key=jax.random.key(seed),
        ).predictions  # fmt: skip


def evaluate_texts(config: Config, learned: TrainedTextModel, seed: int) -> Evaluation:
    """Evaluates the classifier and the features on the test part.

    Args:
      config: The configuration.
      learned: The trained model.
      seed: Seed of the sampling of the memory bank and of same-class pairs.

    Returns:
      Metrics in display order, and whether each labelled test text is classified correctly (empty
      without classes).
    """
    if not learned.problem.train.classes:
        return Evaluation(_evaluate_features(learned), np.zeros(0))
    test, n_classes = learned.test, len(learned.problem.train.classes)
    labels = jnp.asarray(test.labels)
    classes = learned.predicted(seed)
    scores = metrics.precision_recall_f1(labels, classes, n_classes)
    is_correct = np.asarray(classes == labels)
    bank = make_bank(config, learned.problem.train, BANK, seed)
    results: dict[str, Any] = {
        "accuracy": np.mean(is_correct),
        "precision": scores.macro_precision,
        "recall": scores.macro_recall,
        "f1": scores.macro_f1,
        "knn": metrics.knn_accuracy(
            learned.features_before, labels, learned.before.features(bank.examples),
            jnp.asarray(bank.labels), n_classes=n_classes,
            k=neighbours(bank.neighbours, len(bank.labels)), temperature=bank.temperature,
        ),
        **_evaluate_classes(learned, seed),
        **_evaluate_pairs(learned),
    }  # fmt: skip
    return Evaluation({name: float(value) for name, value in results.items()}, is_correct)


def _evaluate_features(learned: TrainedTextModel) -> dict[str, float]:
    """Computes the metrics that need no labels."""
    encoder, subset = learned.before, evenly_spaced(len(learned.test), _ALIGNMENT_TEXTS)
    inputs = jnp.asarray(learned.test.inputs[subset])
    alignment, uniformity = _compiled_measure_dropout(
        encoder.task, encoder.params, encoder.model_state, inputs
    )
    results = {"dropout_alignment": alignment, "uniformity": uniformity, **_evaluate_pairs(learned)}
    return {name: float(value) for name, value in results.items()}


_compiled_measure_dropout = train.jit(measure_dropout)


def _evaluate_pairs(learned: TrainedTextModel) -> dict[str, Any]:
    """Computes the rank correlation, if there are scored pairs."""
    pairs = learned.problem.pairs
    return {} if pairs is None else {"spearman": correlation(learned.before, pairs)}


def correlation(encoder: TrainedModel, pairs: Pairs) -> jax.Array:
    """Computes Spearman's correlation of the cosine similarities of pairs with their scores."""
    first, second = (
        losses.normalize(encoder.features(inputs)) for inputs in (pairs.first, pairs.second)
    )
    return metrics.spearman(jnp.sum(first * second, axis=1), jnp.asarray(pairs.scores))


def _evaluate_classes(learned: TrainedTextModel, seed: int) -> dict[str, Any]:
    """Computes the alignment of features of same-class texts, and the uniformity."""
    subset = evenly_spaced(len(learned.test), _ALIGNMENT_TEXTS)
    z, labels = losses.normalize(learned.features_before[subset]), learned.test.labels[subset]
    partners, _ = _pool(z, labels).sample_pairs(jax.random.key(seed), jnp.arange(len(z)))
    return {"alignment": losses.alignment(z, z[partners]), "uniformity": losses.uniformity(z)}


def _pool(examples: Any, labels: np.ndarray) -> tasks.ClassPool:
    return tasks.ClassPool.from_labels(tasks.LabelledExamples(examples, jnp.asarray(labels)))


def evaluate_weights(entry: LossEntry, contrast: TrainedModel, test: Part, seed: int) -> Truth:
    """Evaluates the negative weights of a loss on test texts, scored as in pre-training.

    Args:
      entry: The loss, which weights its negatives.
      contrast: The model pre-trained with this loss.
      test: The labelled test texts.
      seed: Seed of dropout, and of the texts that are compared.
    """
    subset = test.take(evaluation_subset(len(test)))
    task = contrast.task
    if isinstance(task, tasks.ClassTriplets):
        arguments: dict[str, Any] = {
            field.name: getattr(task, field.name) for field in fields(task)
        }
        arguments["pool"] = _pool(jnp.asarray(subset.inputs), subset.labels)
        task = tasks.ClassTriplets(**arguments)
    scores, is_true = _scores(
        task, contrast.params, contrast.model_state, jax.random.key(seed),
        jnp.asarray(subset.inputs), jnp.asarray(subset.labels),
    )  # fmt: skip
    return evaluate_scores(entry, final_hyperparams(contrast), scores, is_true)


@train.jit
def _scores(
    task: Any, params: Any, model_state: Any, key: Any, inputs: Any, labels: Any
) -> tuple[losses.BatchScores, Any]:
    """Returns the scores of a training batch, and the mask of true negatives."""
    n = inputs.shape[0]
    examples = train.Batch(jnp.arange(n, dtype=jnp.int32), tasks.LabelledExamples(inputs, labels))
    batch = task.batch(key, examples)
    is_triplets = isinstance(batch, tasks.Triplets)
    parts = batch[:3] if is_triplets else batch[:2]
    all_texts = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
    network = task.network_variables(params, model_state)
    z = losses.normalize(task.network.apply(*network, all_texts, train=True)[0])
    if not is_triplets:
        view_labels = jnp.tile(labels, 2)
        return losses.view_scores(*jnp.split(z, 2)), view_labels[:, None] != view_labels[None, :]
    cosines = jnp.matmul(z[:n], z[n:].T, precision=jax.lax.Precision.HIGHEST)
    is_positive = jnp.arange(2 * n)[None, :] == jnp.arange(n)[:, None]
    query_labels, key_labels = batch.labels[:n], batch.labels[n:]
    scores = losses.BatchScores(jnp.diagonal(cosines), cosines, ~is_positive)
    return scores, query_labels[:, None] != key_labels[None, :]
