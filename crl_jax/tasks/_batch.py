"""What a ranking goes through, draws and keeps: ids and weights, no vectors."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .._pytree import pytree_dataclass
from ..data import Interactions
from ..samplers import Sampler, SharedSampler, randint_below
from ..train import ArrayBatches, HostBatches
from ._interactions import has_unseen


class PairBatch(NamedTuple):
    """The interactions that are gone through.

    Attributes:
      users: User of each.
      items: Item of each.
    """

    users: Int[Array, "n"]
    items: Int[Array, "n"]


@pytree_dataclass
class UniformUserBatches(ArrayBatches):
    """As many draws as there are interactions: a user uniformly, then one of its interactions.

    Attributes:
      rows: Where the interactions of each user that has some begin and end.
    """

    rows: Int[Array, "drawn 2"]

    def order(self, key: Key[Array, ""], position: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
        """A row drawn uniformly, then one of its places."""
        row_key, place_key = jax.random.split(key)
        start, stop = self.rows[
            randint_below(row_key, position.shape, jnp.int32(self.rows.shape[0]))
        ].T
        return (start + randint_below(place_key, start.shape, stop - start)).T


def host_interactions(train: Interactions, batch_size: int, *, seed: int = 0) -> HostBatches:
    """The interactions of ``train`` in batches from the memory of the host.

    An epoch takes each once, in a fresh order, but for those of users who took the whole catalogue.
    Of several processes, each makes its own part of every batch.

    Args:
      train: Interactions to learn from; its arrays may be memory-mapped.
      batch_size: Anchors per step, of all processes together: that of the plan.
      seed: Fixes the orders.

    Raises:
      ValueError: If ``batch_size`` is no multiple of the number of processes.

    >>> from crl_jax.data import simulate
    >>> batches = host_interactions(simulate().interactions, 4096)
    >>> [len(batch.users) for batch in batches.epoch_of(0)][-2:]
    [4096, 3122]
    """
    process, processes = jax.process_index(), jax.process_count()
    if batch_size < 1 or batch_size % processes:
        raise ValueError(
            f"`batch_size` must be a multiple of {processes}, the number of processes, "
            f"got {batch_size}."
        )
    keep = has_unseen(train)
    kept = None if keep.all() else np.flatnonzero(keep)
    n, size = int(keep.sum()), batch_size // processes

    def epoch_of(epoch: int) -> Iterator[PairBatch]:
        order = np.arange(n, dtype=np.int32 if n <= np.iinfo(np.int32).max else np.int64)
        np.random.default_rng((seed, epoch)).shuffle(order)
        own = order[process::processes]
        for start in range(0, len(own), size):
            rows = own[start : start + size]
            rows = rows if kept is None else kept[rows]
            users: Any = train.users[rows]
            items: Any = train.items[rows]
            yield PairBatch(users, items)

    return HostBatches(epoch_of, n=n)


class RowIndices(NamedTuple):
    """Where the vectors of a batch stand in the tables of users and items.

    Attributes:
      users: Those of the anchors, ``[batch]``.
      items: Those of what each scores: the positives, and the negatives if they are its own,
        ``[batch, n]``.
      pools: Those of negatives that runs of anchors share, ``[runs, n_neg]``; None if none are.
      group: Those of the users of groups, ``[batch, n_group]``, or None.
    """

    users: Int[Array | np.ndarray, "batch"]
    items: Int[Array | np.ndarray, "batch n"]
    pools: Int[Array, "runs n_neg"] | None
    group: Int[Array | np.ndarray, "batch n_group"] | None


def count_row_reads(sampler: Sampler, n_anchors: int, n_neg: int, n_pos: int, n_group: int) -> int:
    """Rows of users and items that a step reads, each as often as it is read."""
    drawn = n_anchors * n_neg
    if isinstance(sampler, SharedSampler):
        pools = sampler.n_pools(n_anchors) * sampler.size(n_anchors, n_neg)
        drawn = pools if sampler.is_drawn else 0
    return n_anchors * (2 + n_pos + n_group) + drawn


class RankingBatch(NamedTuple):
    """The batch of a step.

    Attributes:
      place: Which interactions the anchors are.
      users: Their users.
      pos: Their items, and the extra positives, ``[batch, 1 + n_pos]``.
      group: Users who took the anchor's item, ``[batch, n_group]``, or None.
      proposals: What the sampler has drawn.
      neg: The negatives, ``[batch, n_neg]``; None until they are chosen.
      is_false: Which negatives are held-out positives; None where none are held out.
      at: Where the vectors stand in tables of the rows of the batch; None for whole tables,
        where they stand at their ids.
    """

    place: Int[Array, "batch"]
    users: Int[Array, "batch"]
    pos: Int[Array, "batch n_positives"]
    group: Int[Array, "batch n_group"] | None
    proposals: Any
    neg: Int[Array, "batch n_neg"] | None = None
    is_false: Bool[Array, "batch n_neg"] | None = None
    at: RowIndices | None = None


class RankingState(NamedTuple):
    """What changes besides the parameters.

    Attributes:
      sampler: State of the sampler.
      confidence: What multiplies the loss of each interaction, ``[n]``; None for 1.
    """

    sampler: Any
    confidence: Float[Array, "n"] | None
