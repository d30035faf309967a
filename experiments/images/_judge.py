"""How good what was learned is, by images that nothing was learned from."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, losses, metrics, tasks, train, weights

from ._options import ProtocolOptions

_BLOCK = 250
"""Images that are encoded at a time."""
_FEW_CLASSES = 10
"""With more of them the five best are judged, too."""
_ALIGNED = 1000
"""Images whose two views are compared."""


@dataclass(frozen=True)
class Learned:
    """What a training learned.

    Attributes:
      task: What was trained.
      params: Its parameters.
      extra: What changed besides them.
    """

    task: Any
    params: Any
    extra: Any

    @property
    def alpha(self) -> jax.Array | None:
        """The α of the loss that was measured; None if none was."""
        # Of tasks with prototypes it stands with what they share with others.
        state = getattr(getattr(self.extra, "momentum", self.extra), "alpha", None)
        return None if state is None else weights.measured_alpha(state)

    def features(self, images: Any) -> jax.Array:
        """Features of images as they are, before the head."""
        return _represent(self.task, self.params, self.extra, jnp.asarray(images))


def represent(task: tasks.ViewTask, params: Any, extra: Any, images: Any) -> Any:
    """Features of images as they are, in blocks that bound the memory."""
    return task.represent(params, extra, images, block_size=_BLOCK)


_represent = train.jit(represent)


class Judgement(NamedTuple):
    """How good features are.

    Attributes:
      metrics: Test metrics, in the order that a person reads them.
      right: Whether the linear classifier finds the class of each labelled test image.
    """

    metrics: dict[str, float]
    right: np.ndarray


def judge(
    options: ProtocolOptions, part: data.Images, test: data.Images, learned: Learned, seed: int
) -> Judgement:
    """Judges what was learned.

    Args:
      options: Which linear classifier is fitted, and how neighbours vote.
      part: Labelled images that were learned from: they vote, and the classifier is fitted to them.
      test: The test images.
      learned: What was learned.
      seed: Of the published classifier's training, and of the views that are compared.

    Returns:
      The metrics ``linear`` and ``linear_published``: accuracies of linear classifiers on the
      features; ``linear_top5``: how often the class is among the five best, if there are more than
      ten; ``knn``: the accuracy of the vote of the nearest images; ``alignment``: mean squared
      distance of the embeddings of two views of a test image; ``uniformity``: of the embeddings of
      test images.
    """
    n_classes = len(part.classes)
    known = test.take(test.labels >= 0)
    of_part, of_test = learned.features(part.images), learned.features(known.images)
    labels, truth = jnp.asarray(part.labels), jnp.asarray(known.labels)
    found: dict[str, Any] = {}
    classes = []
    if options.probe != "published":
        probe = metrics.linear_probe(
            of_part, labels, of_test, truth, n_classes=n_classes, key=jax.random.key(seed)
        )
        found["linear"] = probe.accuracy
        if n_classes > _FEW_CLASSES:
            best = jax.lax.top_k(of_test @ probe.kernel + probe.bias[None], 5)[1]
            found["linear_top5"] = jnp.mean(jnp.any(best == truth[:, None], axis=1))
        classes.append(probe.predictions)
    if options.probe != "fast":
        classes.append(_published(options, part, known, learned, of_part.shape[1], seed))
        found["linear_published"] = jnp.mean(classes[-1] == truth)
    found["knn"] = metrics.knn_accuracy(
        of_test, truth, of_part, labels, n_classes=n_classes,
        k=neighbours(options.neighbours, len(part)), temperature=options.knn_temperature,
    )  # fmt: skip
    found |= _of_views(learned, test, seed)
    right = np.asarray(classes[0] == truth)
    return Judgement({name: float(value) for name, value in found.items()}, right)


def neighbours(asked: int, n: int) -> int:
    """How many of ``n`` images vote: no more than a tenth."""
    return max(1, min(asked, n // 10))


def _published(
    options: ProtocolOptions,
    part: data.Images,
    test: data.Images,
    learned: Learned,
    dim: int,
    seed: int,
) -> Any:
    """What a classifier finds that is trained on features of random views."""
    task = learned.task
    backbone = task.of_network(learned.params, learned.extra)
    classifier = tasks.Classification(
        task.network, task.augment, backbone, dim=dim, n_classes=len(part.classes)
    )
    seen = tasks.Labelled(jnp.asarray(part.images), jnp.asarray(part.labels))
    fitted = train.fit(
        classifier, train.Optimizer(1e-3, weight_decay=1e-6), train.ArrayBatches(seen),
        train.StepPlan(min(512, len(part))), epochs=options.probe_epochs, seeds=seed,
        eval_every=options.probe_epochs,
    )  # fmt: skip
    return classifier.classify(fitted.run(), {}, jnp.asarray(test.images), block_size=_BLOCK)


def _of_views(learned: Learned, test: data.Images, seed: int) -> dict[str, Any]:
    """Alignment and uniformity of the embeddings of views of test images."""
    images = jnp.asarray(test.images[:: max(1, len(test) // _ALIGNED)][:_ALIGNED])
    first, second = two_views(learned.task, learned.params, learned.extra, images, seed)
    return {
        "alignment": losses.alignment(first, second),
        "uniformity": losses.uniformity(first),
    }


@train.jit
def two_views(task: Any, params: Any, extra: Any, images: Any, seed: Any) -> tuple[Any, Any]:
    """Embeddings of length 1 of two random views of each image."""
    keys = jax.random.split(jax.random.key(seed), (2, len(images)))

    def embed(keys: Any) -> Any:
        views = jax.vmap(task.augment)(keys, images)
        return losses.normalize(task.network.apply(*task.of_network(params, extra), views)[0])

    first, second = (embed(own) for own in keys)
    return first, second
