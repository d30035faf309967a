"""Evaluation of image features on the test part."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, metrics, tasks, train

from .._study import Evaluation
from .._trained_model import BLOCK, ON_DEVICE, TrainedModel, in_parts, neighbours
from ._config import ProtocolOptions

_FEW_CLASSES = 10
"""Number of classes above which the top-5 accuracy is also computed."""


def evaluate_features(
    options: ProtocolOptions, part: data.Images, test: data.Images, learned: TrainedModel,
    seed: int, on_device: bool,
) -> Evaluation:  # fmt: skip
    """Evaluates features with a linear classifier and a kNN classifier.

    Args:
      options: Choice of linear classifiers, and settings of the kNN vote.
      part: Labelled training images, for fitting the linear classifier and as kNN references.
      test: The test images.
      learned: The trained model.
      seed: Seed of the published classifier's training, and of the views that are compared.
      on_device: Whether the images of that training are in device memory.

    Returns:
      The metrics ``linear`` and ``linear_augmented``: accuracies of linear classifiers, fitted to
      convergence on features of unaugmented images, and trained by the published protocol on
      features of random views; ``linear_top5`` and ``linear_augmented_top5``: their top-5
      accuracies, if there are more than ten classes; ``knn``: accuracy of the kNN classifier;
      ``alignment``: mean squared distance between the embeddings of two views of a test image;
      ``uniformity``: uniformity of the embeddings of test images. Without labels, only the last
      two. The cases are the test images that the last of the linear classifiers classifies
      correctly.
    """
    n_classes = len(part.classes)
    view_metrics = {
        name: float(value) for name, value in learned.view_metrics(test.images, seed).items()
    }
    if not n_classes:
        return Evaluation(view_metrics, np.zeros(0))
    known = test.take(test.labels >= 0)
    train_features, test_features = learned.features(part.images), learned.features(known.images)
    labels, truth = jnp.asarray(part.labels), jnp.asarray(known.labels)
    scores: dict[str, Any] = {}
    if options.probe != "published":
        probe = metrics.linear_probe(
            train_features,
            labels,
            test_features,
            truth,
            n_classes=n_classes,
            key=jax.random.key(seed),
        )
        scores["linear"] = (
            jnp.matmul(test_features, probe.kernel, precision=jax.lax.Precision.HIGHEST)
            + probe.bias[None]
        )
    if options.probe != "fast":
        scores["linear_augmented"] = _published(
            options, part, known, learned, train_features.shape[1], seed, on_device
        )
    results: dict[str, Any] = {}
    is_correct = jnp.zeros(truth.shape, bool)
    for name, logits in scores.items():
        is_correct = jnp.argmax(logits, axis=1) == truth
        results[name] = jnp.mean(is_correct)
        if n_classes > _FEW_CLASSES:
            top5 = jax.lax.top_k(logits, 5)[1]
            results[f"{name}_top5"] = jnp.mean(jnp.any(top5 == truth[:, None], axis=1))
    results["knn"] = metrics.knn_accuracy(
        test_features, truth, train_features, labels, n_classes=n_classes,
        k=neighbours(options.neighbours, len(part)), temperature=options.knn_temperature,
    )  # fmt: skip
    return Evaluation(
        {name: float(value) for name, value in results.items()} | view_metrics,
        np.asarray(is_correct),
    )


def _published(
    options: ProtocolOptions,
    part: data.Images,
    test: data.Images,
    learned: TrainedModel,
    dim: int,
    seed: int,
    on_device: bool,
) -> Any:
    """Returns the test logits of a linear classifier trained on features of random views."""
    task = learned.task
    backbone = task.network_variables(learned.params, learned.model_state)
    classifier = tasks.Classification(
        task.network, task.augment, backbone, dim=dim, n_classes=len(part.classes)
    )
    examples, size = tasks.LabelledExamples(part.images, part.labels), min(512, len(part))
    batches: Any
    if on_device:
        batches = train.ArrayBatches(jax.tree.map(jnp.asarray, examples))
    else:
        batches = train.HostBatches.from_arrays(examples, size, seed=seed)
    fitted = train.fit(
        classifier, train.Optimizer(1e-3, weight_decay=1e-6), batches,
        train.TrainConfig(size), epochs=options.probe_epochs, seeds=seed,
        eval_every=options.probe_epochs,
    )  # fmt: skip
    logits = partial(classifier.logits, fitted.get_params(), {}, block_size=BLOCK)
    return in_parts(lambda part: logits(jnp.asarray(part)), test.images, ON_DEVICE)
