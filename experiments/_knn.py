"""Accuracy of k-nearest-neighbour classification, as a metric of training reports."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import metrics

from ._learned import neighbours, represent

BANK = 5000
"""Maximum number of examples in the memory bank."""
_QUERIES = 2000
"""Maximum number of query examples."""


class Voters(NamedTuple):
    """Memory bank of labelled examples for k-nearest-neighbour classification.

    Attributes:
      examples: ``[n, ...]``.
      labels: Their classes, ``[n]``.
      n_classes: Number of classes.
      neighbours: Number of neighbours, limited to a tenth of the examples.
      temperature: Divides cosines in the weight of a vote.
    """

    examples: np.ndarray
    labels: np.ndarray
    n_classes: int
    neighbours: int
    temperature: float


def valid_knn(voters: Voters, examples: np.ndarray, labels: np.ndarray) -> Any:
    """Returns a metric that reports ``valid_knn``, the accuracy on held-out examples."""
    asked = slice(_QUERIES)
    return _measure(_valid, voters, examples[asked], labels[asked])


def train_knn(voters: Voters) -> Any:
    """Returns a metric that reports ``train_knn``, the leave-one-out accuracy in the memory bank.

    It is measured on the first examples of the bank.
    """
    asked = slice(_QUERIES)
    return _measure(_train, voters, voters.examples[asked], voters.labels[asked])


def knn_among(voters: Voters, features: np.ndarray) -> float:
    """Computes the leave-one-out accuracy over the whole memory bank."""
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
    """Static arguments of the classification. Equal ones share compiled programs."""

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
