"""Negatives that many anchors of a batch share: the items of the batch, or uniform ones."""

from abc import abstractmethod
from dataclasses import field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .._checks import check_range, check_shape
from .._pytree import STATIC, pytree_dataclass
from ..data import Interactions
from ._base import Sampler, SamplingContext
from ._pools import anchors_per_pool, broadcast_pools
from ._positives import Positives


class SharedSampler(Sampler):
    """A pool of items serves as the negatives of many anchors, so that one product scores all.

    A batch is parted in :meth:`n_pools` of anchors, and each run has a pool. Of a pool,
    :meth:`where`
    tells which items are negatives of an anchor.
    """

    @property
    def is_drawn(self) -> bool:
        """Whether a pool has items of its own, besides those of the anchors."""
        return True

    def n_pools(self, n_anchors: int) -> int:
        """Into how many runs of one length a batch is parted; by default one pool serves all."""
        del n_anchors
        return 1

    @abstractmethod
    def pools(self, proposals: Any, items: Int[Array, "batch"]) -> Int[Array, "runs n"]:
        """The pool of each run, of what was proposed and the anchors' own items."""

    def size(self, n_anchors: int, n_neg: int) -> int:
        """How many items a pool has, where ``n_neg`` are asked for."""
        del n_anchors
        return n_neg

    def where(
        self, batch: SamplingContext, pool: Int[Array, "n"], real: Bool[Array, "batch"]
    ) -> Bool[Array, "batch n"]:
        """Which of them are negatives of each anchor of a run: what its user has not taken.

        None are, for an anchor that only fills up (``real``).
        """
        return ~batch.positives.taken_of_pool(batch.users, pool) & real[:, None]

    def log_ratio(self, pools: Int[Array, "*runs n"]) -> Float[Array, "*runs n"] | None:
        """By how much an item's scores are corrected, times the temperature; None for nothing."""
        del pools
        return None

    @property
    def uses_bitmap(self) -> bool:
        """Of a pool, for each user of its run."""
        return True

    @property
    def uses_scores(self) -> bool:
        """Not unless it has a :meth:`select` of its own."""
        return type(self).select is not SharedSampler.select

    def select(
        self, proposals: Any, batch: SamplingContext, state: Any
    ) -> tuple[Int[Array, "batch n"], Any]:
        """Its pool for each anchor; :meth:`where` tells which items count."""
        return broadcast_pools(self.pools(proposals, batch.items), len(batch.items)), state

    def pools_of(
        self, chosen: Int[Array, "batch drawn"], items: Int[Array, "batch"]
    ) -> Int[Array, "runs n"]:
        """The pools of a batch, of what :meth:`select` chose, perhaps for several batches."""
        n_anchors = len(items)
        return self.pools(chosen[:: anchors_per_pool(n_anchors, self.n_pools(n_anchors))], items)


@pytree_dataclass
class SharedRNS(SharedSampler):
    """Items drawn uniformly from the catalogue, once for many anchors.

    Anchors that follow each other in a batch share their draws: hundreds of negatives cost one
    product, and gather the rows of ``n`` items for each pool in place of ``n`` for each anchor.
    The fewer share a pool, the more items are pushed down in a step, each by fewer anchors. A
    single pool for a large batch makes the gradients of items rare and great, and the training
    noisy.

    Attributes:
      mask: ``"seen"`` leaves out what an anchor's user has taken, so that each of the others is as
        likely as any under :class:`RNS`. ``"none"`` leaves out nothing, as many published codes:
        the loss then is that of a softmax over the whole catalogue, which keeps a user's positives
        from being pushed up all at once. Static.
      anchors: How many anchors share a pool at most, >= 1; None for all of a batch. Static.

    Raises:
      ValueError: If ``mask`` is another word, or ``anchors`` is less than 1.
    """

    mask: Literal["seen", "none"] = field(default="seen", metadata=STATIC)
    anchors: int | None = field(default=256, metadata=STATIC)

    def __post_init__(self) -> None:
        if self.mask not in ("seen", "none"):
            raise ValueError(f"`mask` must be seen or none, got {self.mask!r}.")
        if self.anchors is not None:
            check_range("anchors", self.anchors, 1, np.inf)

    @property
    def uses_bitmap(self) -> bool:
        """Of a pool, for each user of its run, unless nothing is left out."""
        return self.mask == "seen"

    def n_pools(self, n_anchors: int) -> int:
        """As few as :attr:`anchors` lets."""
        return 1 if self.anchors is None else -(-n_anchors // self.anchors)

    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> Int[Array, "runs n"]:
        """The pools."""
        return jax.random.randint(
            key, (self.n_pools(len(users)), n), 0, positives.n_items, jnp.int32
        )

    def pools(self, proposals: Any, items: Int[Array, "batch"]) -> Int[Array, "runs n"]:
        """What was drawn."""
        del items
        return proposals

    def where(
        self, batch: SamplingContext, pool: Int[Array, "n"], real: Bool[Array, "batch"]
    ) -> Bool[Array, "batch n"]:
        """Which items of the pool are negatives of each anchor."""
        if self.mask == "none":
            return jnp.broadcast_to(real[:, None], (real.shape[0], pool.shape[0]))
        return super().where(batch, pool, real)


@pytree_dataclass
class InBatch(SharedSampler):
    r"""Each anchor's negatives are the positives of its batch: nothing is drawn.

    Popular items come up as often as they are taken, with the probability :math:`q_i`, so that
    the scores learn :math:`s_{ui} - \log P(i)`. The correction by log-Q makes up for it: where a
    loss takes :math:`s_{uj}/t` of a negative, it is given

    .. math:: s_{uj}/t - c \log (q_j n_{items})

    A term :math:`e^{s/t}` is then weighed by :math:`(q_j n_{items})^{-c}`: with c = 1 as though
    the negatives were drawn uniformly. The positive stays as it is: nobody drew it.

    Attributes:
      mask: ``"seen"`` leaves out what the anchor's user has taken, its own positive included;
        ``"self"`` the anchor's own place alone; ``"none"`` nothing, as the softmax of several
        published codes has it, which counts the positive in its own denominator. Static.
      correction: The c, in [0, 1].
      log_q: The :math:`\log (q_j n_{items})`, float32 ``[n_items]``, or None for no correction;
        :meth:`from_interactions` counts it.

    Raises:
      ValueError: If ``mask`` is another word or ``correction`` leaves its range; or, where it is
        used, if ``log_q`` is of another number of items.

    References:
      Yi et al., `Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations
      <https://doi.org/10.1145/3298689.3346996>`_, 2019, which corrects the positive, too.
    """

    mask: Literal["seen", "self", "none"] = field(default="seen", metadata=STATIC)
    correction: Any = 1.0
    log_q: Float[Array | np.ndarray, "n_items"] | None = None

    def __post_init__(self) -> None:
        if self.mask not in ("seen", "self", "none"):
            raise ValueError(f"`mask` must be seen, self or none, got {self.mask!r}.")
        check_range("correction", self.correction, 0, 1)

    @classmethod
    def from_interactions(
        cls,
        train: Interactions,
        mask: Literal["seen", "self", "none"] = "seen",
        correction: Any = 1.0,
    ) -> "InBatch":
        """With the correction, by how often each item is taken in ``train``; an unseen one once."""
        counts = np.maximum(train.item_counts, 1)
        log_q = np.log(counts / counts.sum() * train.n_items)
        return cls(mask, correction, jnp.asarray(log_q, jnp.float32))

    @property
    def is_drawn(self) -> bool:
        """Each of its items is some anchor's."""
        return False

    @property
    def uses_bitmap(self) -> bool:
        """Of the items of a batch, for each of its users."""
        return self.mask == "seen"

    def size(self, n_anchors: int, n_neg: int) -> int:
        """As many as there are anchors."""
        del n_neg
        return n_anchors

    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> tuple[()]:
        """Nothing."""
        del key, users, n
        if self.log_q is not None:
            check_shape("log_q", self.log_q, (positives.n_items,))
        return ()

    def pools(self, proposals: Any, items: Int[Array, "batch"]) -> Int[Array, "runs n"]:
        """The items of the batch."""
        del proposals
        return items[None]

    def where(
        self, batch: SamplingContext, pool: Int[Array, "n"], real: Bool[Array, "batch"]
    ) -> Bool[Array, "batch n"]:
        """Which items of the batch are negatives of each anchor."""
        both = real[:, None] & real[None, :]
        if self.mask == "none":
            return both
        if self.mask == "self":
            return both & ~jnp.eye(pool.shape[0], dtype=bool)
        return both & super().where(batch, pool, real)

    def log_ratio(self, pools: Int[Array, "*runs n"]) -> Float[Array, "*runs n"] | None:
        """The correction of each item."""
        if self.log_q is None:
            return None
        return jnp.asarray(self.correction, jnp.float32) * jnp.asarray(self.log_q)[pools]
