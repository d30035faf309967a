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
    of_views = {
        name: float(value) for name, value in learned.view_metrics(test.images, seed).items()
    }
    if not n_classes:
        return Evaluation(of_views, np.zeros(0))
    known = test.take(test.labels >= 0)
    of_part, of_test = learned.features(part.images), learned.features(known.images)
    labels, truth = jnp.asarray(part.labels), jnp.asarray(known.labels)
    scores: dict[str, Any] = {}
    if options.probe != "published":
        probe = metrics.linear_probe(
            of_part, labels, of_test, truth, n_classes=n_classes, key=jax.random.key(seed)
        )
        scores["linear"] = (
            jnp.matmul(of_test, probe.kernel, precision=jax.lax.Precision.HIGHEST)
            + probe.bias[None]
        )
    if options.probe != "fast":
        scores["linear_augmented"] = _published(
            options, part, known, learned, of_part.shape[1], seed, on_device
        )
    found: dict[str, Any] = {}
    right = jnp.zeros(truth.shape, bool)
    for name, of_classes in scores.items():
        right = jnp.argmax(of_classes, axis=1) == truth
        found[name] = jnp.mean(right)
        if n_classes > _FEW_CLASSES:
            best = jax.lax.top_k(of_classes, 5)[1]
            found[f"{name}_top5"] = jnp.mean(jnp.any(best == truth[:, None], axis=1))
    found["knn"] = metrics.knn_accuracy(
        of_test, truth, of_part, labels, n_classes=n_classes,
        k=neighbours(options.neighbours, len(part)), temperature=options.knn_temperature,
    )  # fmt: skip
    return Evaluation(
        {name: float(value) for name, value in found.items()} | of_views, np.asarray(right)
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
    seen, size = tasks.LabelledExamples(part.images, part.labels), min(512, len(part))
    batches: Any
    if on_device:
        batches = train.ArrayBatches(jax.tree.map(jnp.asarray, seen))
    else:
        batches = train.HostBatches.from_arrays(seen, size, seed=seed)
    fitted = train.fit(
        classifier, train.Optimizer(1e-3, weight_decay=1e-6), batches,
        train.TrainConfig(size), epochs=options.probe_epochs, seeds=seed,
        eval_every=options.probe_epochs,
    )  # fmt: skip
    logits = partial(classifier.logits, fitted.run(), {}, block_size=BLOCK)
    return in_parts(lambda part: logits(jnp.asarray(part)), test.images, ON_DEVICE)
