"""What each report of a run measures, of either stage."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import tasks, train

from .._knn import Voters, train_knn, valid_knn
from ._config import Config
from ._problem import Part, Problem

_BANK = 1000
"""Texts that vote in reports."""
_BLOCK = 250
"""Texts that are classified at a time."""


def part_of(problem: Problem, phase: str) -> Part:
    """What a phase learns from."""
    return problem.learn if phase == "search" else problem.train


def neighbours(config: Config, problem: Problem, phase: str) -> Any:
    """What reports of pre-training measure, see :func:`valid_knn` and :func:`train_knn`."""
    bank = voters(config, part_of(problem, phase), _BANK, config.protocol.seed)
    if phase == "search":
        valid = problem.valid.labelled
        return valid_knn(bank, valid.places, valid.labels)
    return train_knn(bank)


def voters(config: Config, part: Part, most: int, seed: int) -> Voters:
    """Some labelled texts at random, which vote as the flags say."""
    part, protocol = part.labelled, config.protocol
    some = part.take(np.random.default_rng(seed).permutation(len(part))[:most])
    return Voters(
        some.places, some.labels, len(part.classes), protocol.neighbours, protocol.knn_temperature
    )


def right(problem: Problem) -> Any:
    """Measures ``valid_accuracy`` of fine-tuning."""
    valid = problem.valid.labelled.data
    return jax.tree_util.Partial(_accuracy, valid.examples, valid.labels)


def _accuracy(places: Any, labels: Any, task: Any, params: Any, extra: Any) -> dict[str, Any]:
    right = task.classify(params, extra, places, block_size=_BLOCK) == labels
    return {"valid_accuracy": jnp.mean(right.astype(jnp.float32))}


@train.jit
def classify(task: tasks.Classification, params: Any, extra: Any, places: Any) -> Any:
    """The classes of the texts at these places."""
    return task.classify(params, extra, places, block_size=_BLOCK)
