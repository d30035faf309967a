"""What a run trains: the task of the flags, and what each report measures."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from crl_jax import augment, models, tasks

from .. import _traced as traced
from .._knn import BANK, Voters, train_knn, valid_knn
from .._mesh import mesh_of
from ..view_losses import LOSSES, parts_of_loss
from ._config import Config
from ._problem import Problem
from .encoders import make_backbone


def task_of(config: Config, problem: Problem, numbers: dict[str, float]) -> tasks.SimCLR:
    """The task, with the numbers of a sweep in place of the flags'.

    Raises:
      ValueError: If flags contradict each other or do not suit the graphs.
    """
    options = config.training
    hyperparams, alpha = parts_of_loss(config.objective, options.temperature, numbers)
    backbone = make_backbone(config.encoding, problem.graphs.features.shape[1])
    head = models.Projection(options.head, norm=False)
    mesh = mesh_of(config.output.mesh)
    views = augment.GraphAugmentation(
        problem.arrays,
        config.views.kinds,
        numbers.get("ratio", config.views.ratio),
        config.views.add,
        n_packs=1 if mesh is None else mesh.size,
    )
    return tasks.SimCLR(
        models.Network(models.BackboneWithHead(backbone, head)), views, hyperparams,
        LOSSES[config.objective.loss].loss, alpha=alpha,
    )  # fmt: skip


def trace_step(config: Config, problem: Problem, numbers: dict[str, float]) -> Any:
    """Looks through a step, without computing anything.

    Raises:
      ValueError: If flags contradict each other or do not suit the graphs.
    """
    some = problem.all[: config.training.batch_size]
    examples = tasks.LabelledExamples(some, jnp.asarray(problem.labels(some)))
    return traced.trace_step(task_of(config, problem, numbers), examples)


def accuracy(config: Config, problem: Problem, phase: str) -> Any:
    """What each report measures, see :func:`valid_knn` and :func:`train_knn`."""
    if phase == "search":
        bank = voters(config, problem, problem.learn[:BANK])
        return valid_knn(bank, problem.valid, problem.labels(problem.valid))
    return train_knn(voters(config, problem, problem.all[:BANK]))


def voters(config: Config, problem: Problem, places: np.ndarray) -> Voters:
    """The graphs at these places, which vote as the flags say."""
    n_classes, protocol = len(problem.graphs.classes), config.protocol
    labels, temperature = problem.labels(places), protocol.knn_temperature
    return Voters(places, labels, n_classes, protocol.neighbours, temperature)
