"""Texts in host memory: batches that bring their tokens, and triplets sampled on the host."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, pytree_dataclass, tasks, train


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TokenRows:
    """Augmentation that maps a row of token ids, -1 for padding, to its tokens.

    Unlike :class:`TextTable` it needs no table: batches bring the tokens of their texts.

    Attributes:
      pad: Token id of padding.
    """

    pad: int = field(metadata={"static": True})

    def __call__(self, key: Any, row: Any) -> data.Tokens:
        """Returns the tokens of a row."""
        del key
        return self.plain(row)

    def plain(self, row: Any) -> data.Tokens:
        """Returns the same tokens, without a random key."""
        return data.Tokens(jnp.where(row < 0, self.pad, row), row >= 0)


class TripletRows:
    """Triplets of labelled texts, sampled on the host as :class:`tasks.ClassTriplets` does.

    ``rows[index]`` samples with a random generator seeded by ``index``: the order of an epoch
    determines its triplets.

    Attributes:
      part: The texts: tokens, and labels.
      n_draws: Number of triplets per epoch, whose queries are sampled; None takes each text once.
    """

    def __init__(self, part: tasks.LabelledExamples, n_draws: int | None) -> None:
        self.part, self.n_draws = part, n_draws
        classes = tasks.ClassPool.from_labels(tasks.LabelledExamples(part.labels, part.labels))
        self._classes = jax.tree.map(np.asarray, classes)
        self.shape = (n_draws or len(part.labels),)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> tuple[np.ndarray, ...]:
        """Returns the tokens of queries, positives and negatives, and labels ``[batch, 3]``."""
        index, classes = np.arange(len(self))[index], self._classes
        rng, n = np.random.default_rng(index), len(classes.labels)
        query = index if self.n_draws is None else rng.integers(n, size=len(index))
        label = classes.labels[query]
        start, count = classes.start[label], classes.count[label]
        offset = rng.integers(np.maximum(count - 1, 1))
        offset += offset >= classes.rank[query] - start  # skips the query
        pos = classes.order[start + np.where(count > 1, offset, 0)]
        other = rng.integers(n - count)
        neg = classes.order[other + np.where(other >= start, count, 0)]
        labels = np.stack([classes.labels[query], classes.labels[pos], classes.labels[neg]], axis=1)
        examples = self.part.examples
        return examples[query], examples[pos], examples[neg], labels


@pytree_dataclass
class HostTriplets(tasks.ClassTriplets):
    """Supervised pre-training with triplets that the host sampled, see :class:`TripletRows`.

    Attributes:
      pool: Classes of the texts, without their tokens.
    """

    def batch(self, key: Any, examples: train.Batch) -> tasks.Triplets:
        """Draws a view of all three texts of each triplet."""
        *texts, labels = examples.data
        keys = jax.random.split(key, (3, len(labels)))
        query, pos, neg = (jax.vmap(self.augment)(*each) for each in zip(keys, texts))
        return tasks.Triplets(query, pos, neg, labels.T.reshape(-1))
