"""What each report of a run measures, of either stage."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import losses, tasks, train

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


def of_features(config: Config, problem: Problem, phase: str) -> Any:
    """What reports of pre-training measure.

    See :func:`valid_knn` and :func:`train_knn`; without labels see :func:`of_dropout`, of training
    texts.
    """
    if not problem.train.classes:
        some = np.random.default_rng(config.protocol.seed).permutation(problem.train.places)[:_BANK]
        return jax.tree_util.Partial(_of_dropout, jnp.asarray(some))
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


def _accuracy(places: Any, labels: Any, task: Any, params: Any, model_state: Any) -> dict[str, Any]:
    right = task.classify(params, model_state, places, block_size=_BLOCK) == labels
    return {"valid_accuracy": jnp.mean(right.astype(jnp.float32))}


def of_dropout(task: Any, params: Any, model_state: Any, places: Any) -> tuple[Any, Any]:
    """How far apart the features of two dropouts of a text are, and how evenly those of all lie.

    Args:
      task: What makes features of the texts.
      params: Its parameters.
      extra: What changed besides them, the key of dropout among it.
      places: Where the texts stand.

    Returns:
      The mean squared distance of the unit vectors of two dropouts, of as many texts as fill
      blocks; and the uniformity of the unit vectors without dropout.
    """
    network_variables, rest = task.network_variables(params, model_state)
    size = min(_BLOCK, len(places))
    blocks = places[: len(places) // size * size].reshape(-1, size)

    def aligned(rest: Any, some: Any) -> tuple[Any, Any]:
        # Each row has a dropout of its own, and each block another key.
        twice = task.augment.plain(jnp.concatenate([some, some]))
        z, rest = task.network.apply(network_variables, rest, twice, train=True, method="features")
        return rest, losses.alignment(*jnp.split(losses.normalize(z), 2))

    _, distances = jax.lax.scan(aligned, rest, blocks)
    plain = losses.normalize(task.represent(params, model_state, places, block_size=_BLOCK))
    return jnp.mean(distances), losses.uniformity(plain)


def _of_dropout(places: Any, task: Any, params: Any, model_state: Any) -> dict[str, Any]:
    alignment, uniformity = of_dropout(task, params, model_state, places)
    return {"train_dropout_alignment": alignment, "train_uniformity": uniformity}


@train.jit
def classify(task: tasks.Classification, params: Any, model_state: Any, places: Any) -> Any:
    """The classes of the texts at these places."""
    return task.classify(params, model_state, places, block_size=_BLOCK)
