"""Accuracy of k-nearest-neighbour classification, as a metric of training reports."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import metrics

from ._trained_model import neighbours, represent

BANK = 5000
"""Maximum number of examples in the memory bank."""
_MAX_QUERIES = 2000
"""Maximum number of query examples."""


class KNNBank(NamedTuple):
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


def valid_knn(bank: KNNBank, examples: np.ndarray, labels: np.ndarray) -> Any:
    """Returns a metric that reports ``valid_knn``, the accuracy on held-out examples."""
    subset = slice(_MAX_QUERIES)
    return _measure("valid_knn", bank, examples[subset], labels[subset])


def train_knn(bank: KNNBank) -> Any:
    """Returns a metric that reports ``train_knn``, the leave-one-out accuracy in the memory bank.

    It is measured on the first examples of the bank.
    """
    return _measure("train_knn", bank, None, bank.labels[:_MAX_QUERIES])


def knn_among(bank: KNNBank, features: np.ndarray) -> float:
    """Computes the leave-one-out accuracy over the whole memory bank."""
    n, labels, vectors = len(features), jnp.asarray(bank.labels), jnp.asarray(features)
    accuracy = metrics.knn_accuracy(
        vectors, labels, vectors, labels, n_classes=bank.n_classes,
        k=neighbours(bank.neighbours, n), temperature=bank.temperature,
        leave_out=jnp.arange(n, dtype=jnp.int32),
    )  # fmt: skip
    return float(accuracy)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Vote:
    """Static arguments of the classification. Equal ones share compiled programs."""

    name: str = field(metadata={"static": True})
    n_classes: int = field(metadata={"static": True})
    k: int = field(metadata={"static": True})


def _measure(name: str, bank: KNNBank, examples: np.ndarray | None, labels: np.ndarray) -> Any:
    vote = _Vote(name, bank.n_classes, neighbours(bank.neighbours, len(bank.labels)))
    arrays = jax.tree.map(jnp.asarray, (bank.examples, bank.labels, examples, labels))
    return jax.tree_util.Partial(_accuracy, vote, bank.temperature, *arrays)


def _accuracy(
    vote: _Vote, temperature: Any, bank: Any, labels: Any, queries: Any, query_labels: Any,
    task: Any, params: Any, model_state: Any,
) -> dict[str, Any]:  # fmt: skip
    """Computes the accuracy of queries, which are the first examples of the bank by default."""
    bank_features, n = represent(task, params, model_state, bank), len(query_labels)
    query_features, leave_out = bank_features[:n], jnp.arange(n, dtype=jnp.int32)
    if queries is not None:
        query_features, leave_out = represent(task, params, model_state, queries), None
    accuracy = metrics.knn_accuracy(
        query_features, query_labels, bank_features, labels, n_classes=vote.n_classes, k=vote.k,
        temperature=temperature, leave_out=leave_out,
    )  # fmt: skip
    return {vote.name: accuracy}
