"""What a run trains: the task of the flags, its optimiser, and what each report measures."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from crl_jax import data, tasks

from .. import _traced as traced
from .._knn import BANK, Voters, train_knn, valid_knn
from .._learned import measured_of_views
from .._registry import settle
from ..view_losses import LOSSES, parts_of_loss
from ._config import Config
from ._problem import Problem, evenly, labelled
from ._views import make_views
from .encoders import make_backbone
from .methods import METHODS, Parts

_VIEWED = 1000
"""Images whose views are compared in reports."""


def task_of(config: Config, part: data.Images, numbers: dict[str, float]) -> Any:
    """The task that trains on ``part``, with the numbers of a sweep in place of the flags'.

    Raises:
      ValueError: If flags contradict each other or do not suit the images.
    """
    chosen, options = METHODS[config.method.method], config.training
    swept = tuple(numbers)
    of_method = settle("method", config.method, METHODS, swept)
    hyperparams, alpha = parts_of_loss(config.objective, options.temperature, numbers)
    backbone = make_backbone(config.encoding, part.images.shape[-1])
    parts = Parts(
        backbone, backbone.n_features, options.head, make_views(config.views),
        LOSSES[config.objective.loss].loss, hyperparams, alpha, part,
    )  # fmt: skip
    return chosen.make(parts, **of_method)


def trace_step(config: Config, part: data.Images, numbers: dict[str, float]) -> Any:
    """Looks through a step of what trains on ``part``, without computing anything.

    Returns:
      The task, and the shape of its loss.

    Raises:
      ValueError: If flags contradict each other or do not suit the images.
    """
    task, some = task_of(config, part, numbers), part.take(slice(config.training.batch_size))
    return task, traced.trace_step(task, examples_of(some))


def examples_of(part: data.Images) -> Any:
    """What a training goes through: images, with labels where there are classes."""
    images = jnp.asarray(part.images)
    return tasks.LabelledExamples(images, jnp.asarray(part.labels)) if part.classes else images


def measured(config: Config, problem: Problem, phase: str) -> Any:
    """What each report measures: see :func:`valid_knn` and :func:`train_knn`.

    In the final training there is no part that nothing is learned from. Without labels see
    :func:`measured_of_views`, of training images.
    """
    protocol = config.protocol
    if not problem.train.classes:
        some = np.random.default_rng(protocol.seed).permutation(len(problem.train))[:_VIEWED]
        return measured_of_views(problem.train.images[np.sort(some)], protocol.seed)
    part = labelled(problem.learn if phase == "search" else problem.train)
    bank = part.take(
        evenly(part.labels, min(BANK, len(part)), np.random.default_rng(protocol.seed))
    )
    voters = Voters(
        bank.images, bank.labels, len(bank.classes), protocol.neighbours, protocol.knn_temperature
    )
    if phase == "search":
        return valid_knn(voters, problem.valid.images, problem.valid.labels)
    return train_knn(voters)
