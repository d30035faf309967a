"""Negatives shared by many anchors: pools of random items, and the items of the batch."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import field, replace
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from .._blocks import split_rows
from .._checks import check_shape
from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..data import Interactions
from ._base import Ids, IsReal, Negatives, Pools, Sampler, SamplingContext, Selection, Users
from ._positives import Positives


def broadcast_pools(
    values: Shaped[Array, "pools *rest"], n_anchors: int
) -> Shaped[Array, "batch *rest"]:
    """Repeats the value of each pool for its anchors."""
    return jnp.repeat(values, _group_size(n_anchors, len(values)), axis=0)[:n_anchors]


def map_pools(
    function: Callable[..., Shaped[Array, "anchors n"]],
    pools: Shaped[Array, "pools n"],
    *anchors: Shaped[Array, "batch"],
    sequential: bool = False,
) -> Shaped[Array, "batch n"]:
    """Maps ``function(pool, *anchors)`` over the pools, each with its group of anchors.

    Args:
      function: Function of a pool and of the arrays of its anchors. The last group is padded with
        zeros.
      pools: Items of each pool.
      *anchors: Arrays ``[batch]``, split in consecutive groups of equal size.
      sequential: Whether to process one pool after the other (``lax.map``) instead of all at once.
    """
    n_anchors, n_pools = len(anchors[0]), len(pools)
    if n_pools == 1:
        return function(pools[0], *anchors)
    size = _group_size(n_anchors, n_pools)
    groups = [split_rows(x, (n_pools, size)) for x in anchors]
    if sequential:
        values = jax.lax.map(lambda args: function(*args), (pools, *groups))
    else:
        values = jax.vmap(function)(pools, *groups)
    return values.reshape(n_pools * size, -1)[:n_anchors]


def _group_size(n_anchors: int, n_pools: int) -> int:
    return -(-n_anchors // n_pools)


class SharedSampler(Sampler):
    """Base class of samplers whose pools of items serve many anchors as negatives.

    A batch is split in :meth:`n_pools` groups of anchors, each with one pool, so that one matrix
    product computes all scores. :meth:`pool_mask` marks the items of a pool that are negatives of
    an anchor.
    """

    is_shared = True

    @property
    def draws_items(self) -> bool:
        """Whether the pools contain items other than the positives of the batch."""
        return True

    def n_pools(self, n_anchors: int) -> int:
        """Number of pools of a batch; by default 1."""
        del n_anchors
        return 1

    @abstractmethod
    def pools(self, proposals: Any, items: Int[Array, "batch"]) -> Int[Array, "pools n"]:
        """Returns the items of each pool, from the proposals and the anchors' own items."""

    def pool_mask(
        self, batch: SamplingContext, pool: Int[Array, "n"], is_real: IsReal
    ) -> Bool[Array, "batch n"]:
        """Marks the negatives of each anchor: by default unseen items, and none of padding."""
        return ~batch.positives.seen_in_pool(batch.users, pool) & is_real[:, None]

    def log_ratio(self, pools: Int[Array, "*pools n"]) -> Float[Array, "*pools n"] | None:
        """Correction subtracted from ``score / temperature`` of each item; None for none."""
        del pools
        return None

    def n_rows(self, n_anchors: int, n: int) -> int:
        """Number of item rows that the pools of a batch add to those of the positives."""
        return self.n_pools(n_anchors) * self.n_negatives(n_anchors, n) if self.draws_items else 0

    @property
    def uses_bitmap(self) -> bool:
        """True: the default :meth:`pool_mask` queries every item of a pool."""
        return True

    @property
    def uses_scores(self) -> bool:
        """Whether the class overrides :meth:`select`."""
        return type(self).select is not SharedSampler.select

    def select(self, proposals: Any, batch: SamplingContext, state: Any) -> Selection:
        """Returns the pool of each anchor, unmasked, and the state."""
        return broadcast_pools(self.pools(proposals, batch.items), len(batch.items)), state

    def negative_ids(self, selected: Ids, items: Int[Array, "batch"]) -> Pools:
        """Recovers the pools of a batch from a selection, which may span several batches."""
        n_anchors = len(items)
        step = _group_size(n_anchors, self.n_pools(n_anchors))
        return Pools(self.pools(selected[::step], items))

    def negatives(self, selected: Ids, batch: SamplingContext, is_real: IsReal) -> Negatives:
        """Returns the pools of a batch, the mask of the anchors' negatives, and the correction."""
        ids = self.negative_ids(selected, batch.items)

        def mask(pool: Array, users: Array, items: Array, is_real: Array) -> Array:
            return self.pool_mask(replace(batch, users=users, items=items), pool, is_real)

        where = map_pools(mask, ids.items, batch.users, batch.items, is_real, sequential=True)
        return Negatives(ids, where, self.log_ratio(ids.items))


@pytree_dataclass
class SharedRNS(SharedSampler):
    """Uniform items of the catalogue, drawn once for many anchors.

    Consecutive anchors of a batch share their draws: hundreds of negatives cost one matrix product,
    and ``n`` gathered rows per pool instead of ``n`` per anchor. Smaller groups spread the updates
    over more items. One pool for a large batch makes the gradients of items sparse and large, and
    training noisy.

    Attributes:
      mask: ``"seen"`` masks the user's positives, so that the remaining items are as likely as
        under :class:`RNS`. ``"none"`` masks nothing, as in many published codes: the loss is then
        that of a softmax over the whole catalogue, which limits the scores of positives. Static.
      anchors: Maximum number of anchors per pool, >= 1; None for the whole batch. Static.

    Raises:
      ValueError: If ``mask`` is unknown, or ``anchors`` is less than 1.
    """

    mask: Literal["seen", "none"] = field(default="seen", metadata=STATIC)
    anchors: Annotated[int | None, Range(1)] = field(default=256, metadata=STATIC)

    @property
    def uses_bitmap(self) -> bool:
        """Whether seen items are masked."""
        return self.mask == "seen"

    def n_pools(self, n_anchors: int) -> int:
        """Smallest number of pools for groups of at most ``anchors``."""
        return 1 if self.anchors is None else -(-n_anchors // self.anchors)

    def propose(
        self, key: Key[Array, ""], users: Users, positives: Positives, n: int
    ) -> Int[Array, "pools n"]:
        """Draws the pools."""
        shape = self.n_pools(len(users)), n
        return jax.random.randint(key, shape, 0, positives.n_items, jnp.int32)

    def pools(self, proposals: Any, items: Int[Array, "batch"]) -> Int[Array, "pools n"]:
        """Returns the proposals."""
        del items
        return proposals

    def pool_mask(
        self, batch: SamplingContext, pool: Int[Array, "n"], is_real: IsReal
    ) -> Bool[Array, "batch n"]:
        """Marks the unseen items of the pool, or all of them."""
        if self.mask == "none":
            return jnp.broadcast_to(is_real[:, None], (is_real.shape[0], pool.shape[0]))
        return super().pool_mask(batch, pool, is_real)


@pytree_dataclass
class InBatch(SharedSampler):
    r"""In-batch negatives: the positives of the other anchors.

    Items occur in a batch with their interaction probability :math:`q_i`, so that scores converge
    to :math:`s_{ui} - \log P(i)`. The log-Q correction compensates: a loss of :math:`s_{uj}/t`
    receives

    .. math:: s_{uj}/t - c \log (q_j n_{items})

    for negatives, which multiplies :math:`e^{s/t}` by :math:`(q_j n_{items})^{-c}`; c = 1 imitates
    uniform negatives. The positive is not corrected.

    Attributes:
      mask: ``"seen"`` masks the positives of the anchor's user, including its own; ``"self"``
        masks the anchor's own position only; ``"none"`` masks nothing, as the softmax of several
        published codes, whose denominator includes the positive. Static.
      correction: Strength c of the correction, in [0, 1].
      log_q: :math:`\log (q_j n_{items})`, float32 ``[n_items]``, see :meth:`from_interactions`;
        None for no correction.

    Raises:
      ValueError: If ``mask`` is unknown, ``correction`` is out of range or, when negatives are
        drawn, the length of ``log_q`` is not the number of items.

    References:
      Yi et al., `Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations
      <https://doi.org/10.1145/3298689.3346996>`_, 2019, which also corrects the positive.
    """

    mask: Literal["seen", "self", "none"] = field(default="seen", metadata=STATIC)
    correction: Annotated[Any, Range(0, 1)] = 1.0
    log_q: Float[Array | np.ndarray, "n_items"] | None = None

    @classmethod
    def from_interactions(
        cls,
        train: Interactions,
        mask: Literal["seen", "self", "none"] = "seen",
        correction: Any = 1.0,
    ) -> "InBatch":
        """Returns a corrected sampler with q from interaction counts, at least 1 per item."""
        counts = np.maximum(train.item_counts, 1)
        log_q = np.log(counts / counts.sum() * train.n_items)
        return cls(mask, correction, jnp.asarray(log_q, jnp.float32))

    @property
    def draws_items(self) -> bool:
        """False: the pool consists of the positives of the batch."""
        return False

    @property
    def uses_bitmap(self) -> bool:
        """Whether seen items are masked."""
        return self.mask == "seen"

    def n_negatives(self, n_anchors: int, n: int) -> int:
        """Number of anchors."""
        del n
        return n_anchors

    def propose(self, key: Key[Array, ""], users: Users, positives: Positives, n: int) -> tuple[()]:
        """Returns an empty tuple."""
        del key, users, n
        if self.log_q is not None:
            check_shape("log_q", self.log_q, (positives.n_items,))
        return ()

    def pools(self, proposals: Any, items: Int[Array, "batch"]) -> Int[Array, "pools n"]:
        """Returns the items of the batch."""
        del proposals
        return items[None]

    def pool_mask(
        self, batch: SamplingContext, pool: Int[Array, "n"], is_real: IsReal
    ) -> Bool[Array, "batch n"]:
        """Marks the negatives of each anchor, without padding."""
        both = is_real[:, None] & is_real[None, :]
        if self.mask == "none":
            return both
        if self.mask == "self":
            return both & ~jnp.eye(pool.shape[0], dtype=bool)
        return both & super().pool_mask(batch, pool, is_real)

    def log_ratio(self, pools: Int[Array, "*pools n"]) -> Float[Array, "*pools n"] | None:
        """Returns the log-Q correction of each item."""
        if self.log_q is None:
            return None
        return jnp.asarray(self.correction, jnp.float32) * jnp.asarray(self.log_q)[pools]
