"""Training interactions, batches and state of a ranking task."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .._pytree import pytree_dataclass
from ..data import Interactions
from ..samplers import Sampler, randint_below
from ..train import ArrayBatches, HostBatches


class PairBatch(NamedTuple):
    """User–item pairs.

    Attributes:
      users: User of each pair.
      items: Item of each pair.
    """

    users: Int[Array, "n"]
    items: Int[Array, "n"]


@pytree_dataclass
class UniformUserBatches(ArrayBatches):
    """Samples a user uniformly, then one of its interactions, as often as there are interactions.

    Attributes:
      rows: Start and stop index of the interactions of each user that has any.
    """

    rows: Int[Array, "users 2"]

    def order(self, key: Key[Array, ""], position: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
        """Draws a row uniformly, then an index within it."""
        row_key, offset_key = jax.random.split(key)
        row = randint_below(row_key, position.shape, jnp.int32(self.rows.shape[0]))
        start, stop = self.rows[row].T
        return (start + randint_below(offset_key, start.shape, stop - start)).T


def host_interactions(train: Interactions, batch_size: int, *, seed: int = 0) -> HostBatches:
    """Batches of the interactions of ``train`` from host memory.

    An epoch visits each interaction once in random order, except those of users who have seen the
    whole catalogue. With several processes, each produces its part of every batch.

    Args:
      train: Training interactions; its arrays may be memory-mapped.
      batch_size: Global number of anchors per step, ``TrainConfig.batch_size``.
      seed: Seed of the orders.

    Raises:
      ValueError: If ``batch_size`` is not a multiple of the number of processes.

    >>> from crl_jax.data import simulate
    >>> batches = host_interactions(simulate().interactions, 4096)
    >>> [len(batch.users) for batch in batches.epoch_of(0)][-2:]
    [4096, 3122]
    """
    keep = has_unseen(train)
    pairs: Any = PairBatch(train.users, train.items)  # type: ignore[arg-type]
    if not keep.all():
        pairs = jax.tree.map(lambda column: column[keep], pairs)
    return HostBatches.from_arrays(pairs, batch_size, seed=seed)


class RowIndices(NamedTuple):
    """Indices of a batch's embeddings; of the positives and negatives per anchor in ``items``."""

    users: Int[Array | np.ndarray, "batch"]
    items: Int[Array | np.ndarray, "batch n"]
    pools: Int[Array, "pools n_neg"] | None  # shared negatives
    group: Int[Array | np.ndarray, "batch n_group"] | None


def count_row_reads(sampler: Sampler, n_anchors: int, n_neg: int, n_pos: int, n_group: int) -> int:
    """Counts the rows of users and items that a step reads, with repetitions."""
    return n_anchors * (2 + n_pos + n_group) + sampler.n_rows(n_anchors, n_neg)


class RankingBatch(NamedTuple):
    """Batch of one step."""

    indices: Int[Array, "batch"]  # index of each anchor among the interactions
    users: Int[Array, "batch"]
    pos: Int[Array, "batch n_positives"]  # items of the anchors and extra positives
    group: Int[Array, "batch n_group"] | None  # other users of the anchor's item
    proposals: Any
    neg: Int[Array, "batch n_neg"] | None = None  # None before selection
    is_false: Bool[Array, "batch n_neg"] | None = None  # held-out positives, if there are any
    at: RowIndices | None = None  # in tables of the batch's rows; None for whole tables


class RankingState(NamedTuple):
    """Training state besides the parameters.

    Attributes:
      sampler: State of the sampler.
      confidence: Weight of the loss of each interaction, or None for 1.
      auxiliary: State of the auxiliary loss.
    """

    sampler: Any
    confidence: Float[Array, "n"] | None
    auxiliary: Any = ()


def has_unseen(train: Interactions) -> Bool[np.ndarray, "n"]:
    """Marks the interactions of users with unseen items."""
    return np.diff(train.indptr)[train.users] < train.n_items


def user_rows(train: Interactions) -> Int[Array, "users 2"]:
    """Returns start and stop of the trainable interactions of each user that has any."""
    offsets = np.concatenate(([0], np.cumsum(has_unseen(train))))[train.indptr]
    rows = np.stack([offsets[:-1], offsets[1:]], axis=1)
    return jnp.asarray(rows[rows[:, 1] > rows[:, 0]].astype(np.int32))


def scatter_to_interactions(values: np.ndarray, train: Interactions) -> np.ndarray:
    """Scatters values of the trainable interactions to all interactions; NaN elsewhere."""
    keep = has_unseen(train)
    out = np.full((*values.shape[:-1], len(keep)), np.nan, values.dtype)
    out[..., keep] = values
    return out
