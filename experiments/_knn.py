"""Accuracy of nearest neighbours, which reports of a training measure."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import metrics

from ._learned import neighbours, represent

BANK = 5000
"""Examples that vote, at most."""
_QUERIES = 2000
"""Examples that are asked, at most."""


class Voters(NamedTuple):
    """Labelled examples that vote.

    Attributes:
      examples: ``[n, ...]``.
      labels: Their classes, ``[n]``.
      n_classes: How many classes there are.
      neighbours: How many vote on one, but no more than a tenth do.
      temperature: Divides cosines in the weight of a vote.
    """

    examples: np.ndarray
    labels: np.ndarray
    n_classes: int
    neighbours: int
    temperature: float


def valid_knn(voters: Voters, examples: np.ndarray, labels: np.ndarray) -> Any:
    """Measures ``valid_knn``, the accuracy of the vote on other examples."""
    asked = slice(_QUERIES)
    return _measure(_valid, voters, examples[asked], labels[asked])


def train_knn(voters: Voters) -> Any:
    """Measures ``train_knn``, that on the first of the voters, each left out of its own vote."""
    asked = slice(_QUERIES)
    return _measure(_train, voters, voters.examples[asked], voters.labels[asked])


def knn_among(voters: Voters, features: np.ndarray) -> float:
    """The accuracy of the vote on all voters, each left out of its own."""
    n, labels, of_all = len(features), jnp.asarray(voters.labels), jnp.asarray(features)
    accuracy = metrics.knn_accuracy(
        of_all, labels, of_all, labels, n_classes=voters.n_classes,
        k=neighbours(voters.neighbours, n), temperature=voters.temperature,
        leave_out=jnp.arange(n, dtype=jnp.int32),
    )  # fmt: skip
    return float(accuracy)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Vote:
    """What shapes of a vote depend on. Equal ones share their compiled programs."""

    n_classes: int = field(metadata={"static": True})
    k: int = field(metadata={"static": True})


def _measure(of: Any, voters: Voters, examples: np.ndarray, labels: np.ndarray) -> Any:
    vote = _Vote(voters.n_classes, neighbours(voters.neighbours, len(voters.labels)))
    arrays = voters.examples, voters.labels, examples, labels
    return jax.tree_util.Partial(of, vote, voters.temperature, *map(jnp.asarray, arrays))


def _valid(
    vote: _Vote, temperature: Any, bank: Any, labels: Any, queries: Any, own: Any,
    task: Any, params: Any, model_state: Any,
) -> dict[str, Any]:  # fmt: skip
    found = [represent(task, params, model_state, images) for images in (queries, bank)]
    accuracy = metrics.knn_accuracy(
        found[0], own, found[1], labels, n_classes=vote.n_classes, k=vote.k, temperature=temperature
    )
    return {"valid_knn": accuracy}


def _train(
    vote: _Vote, temperature: Any, bank: Any, labels: Any, queries: Any, own: Any,
    task: Any, params: Any, model_state: Any,
) -> dict[str, Any]:  # fmt: skip
    found = represent(task, params, model_state, bank)
    n = len(queries)
    accuracy = metrics.knn_accuracy(
        found[:n], own, found, labels, n_classes=vote.n_classes, k=vote.k, temperature=temperature,
        leave_out=jnp.arange(n, dtype=jnp.int32),
    )  # fmt: skip
    return {"train_knn": accuracy}
