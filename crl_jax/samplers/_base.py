"""Interface of negative samplers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from .._pytree import STATIC, pytree_dataclass
from ..models import Encoder, Tables
from ._positives import Positives

Users = Int[Array, "batch"]
Ids = Int[Array, "batch n"]
Selection = tuple[Ids, Any]
"""Negatives of a batch and the next state."""
IsReal = Bool[Array, "batch"]
"""False for anchors that pad a batch."""


@pytree_dataclass
class SamplingContext:
    """Anchors that need negatives, and the current encoder.

    Attributes:
      users: User of each anchor, int32 ``[batch]``.
      items: Positive item of each anchor, int32 ``[batch]``.
      positives: Training positives of every user.
      tables: Embeddings computed from the current parameters.
      epoch: Number of completed epochs.
      encoder: Computes scores from ``tables``.
      n: Negatives per anchor. Static.

    Precision: scores are compared, so that their products are in full float32.
    """

    users: Int[Array, "batch"]
    items: Int[Array, "anchors"]
    positives: Positives
    tables: Tables
    epoch: Int[Array, ""]
    encoder: Encoder
    n: int = field(default=1, metadata=STATIC)

    def scores(
        self, items: Int[Array, "batch n"], tables: Tables | None = None
    ) -> Float[Array, "batch n"]:
        """Scores of each anchor with its own ``n`` items, without gradient.

        ``tables`` are other embeddings, such as earlier ones; by default those of the context.
        """
        tables = jax.lax.stop_gradient(self.tables if tables is None else tables)
        with jax.default_matmul_precision("highest"):
            return self.encoder.score(tables, self.users, items)

    def shared_scores(self, items: Int[Array, "n"]) -> Float[Array, "n batch"]:
        """Scores of all anchors with ``n`` common items, without gradient; anchors last."""
        tables = jax.lax.stop_gradient(self.tables)
        with jax.default_matmul_precision("highest"):
            return self.encoder.score_shared(tables, self.users, items)


class Pools(NamedTuple):
    """Item ids of pools, each shared by a group of consecutive anchors of a batch."""

    items: Int[Array, "pools n"]


class Negatives(NamedTuple):
    """Negatives of a batch.

    Attributes:
      ids: Item ids of each anchor, int32 ``[batch, n]``, or shared :class:`Pools`.
      mask: Valid negatives of each anchor, ``[batch, n]``; None for all.
      log_q: Correction subtracted from ``score / temperature``, with the shape of the ids; None
        for none.
    """

    ids: Ids | Pools
    mask: Bool[Array, "batch n"] | None = None
    log_q: Float[Array, "*ids"] | None = None


@dataclass(frozen=True)
class Sampler(ABC):
    """Base class of samplers: ``sampler(key, batch, state) -> (ids, state)``.

    A sampler is a frozen dataclass and a pytree: numbers and arrays are leaves, which can be
    traced, swept with ``vmap`` and changed without recompilation. All methods are pure. A sampler
    never returns a training positive of the user; for a user without unseen items it returns
    ``n_items``, which is out of range.

    Sampling has two steps. :meth:`propose` needs no scores, so that the proposals of a whole epoch
    can be drawn in one call, which takes a third of the time; :meth:`select` chooses among them by
    their scores.
    """

    is_shared: ClassVar[bool] = False
    """Whether the negatives are masked :class:`Pools`, shared by several anchors."""

    @property
    def uses_bitmap(self) -> bool:
        """Whether the sampler queries the seen items of users often enough to need a bitmap."""
        return False

    @property
    def uses_scores(self) -> bool:
        """Whether :meth:`select` reads scores or rows of the tables."""
        return type(self).select is not Sampler.select

    def init(self, key: Key[Array, ""], positives: Positives, tables: Tables) -> Any:
        """Returns the state before the first epoch."""
        del key, positives, tables
        return ()

    def start_epoch(
        self, key: Key[Array, ""], positives: Positives, tables: Tables, state: Any
    ) -> Any:
        """Returns the state at the start of an epoch, before any parameter update."""
        del key, positives, tables
        return state

    @abstractmethod
    def propose(self, key: Key[Array, ""], users: Users, positives: Positives, n: int) -> Any:
        """Draws the random numbers and candidates for ``n`` negatives per anchor."""

    def select(self, proposals: Any, batch: SamplingContext, state: Any) -> Selection:
        """Returns the negatives and the next state; by default the proposals themselves."""
        del batch
        return proposals, state

    def n_negatives(self, n_anchors: int, n: int) -> int:
        """Number of negatives per anchor of a batch if ``n`` are requested."""
        del n_anchors
        return n

    def n_rows(self, n_anchors: int, n: int) -> int:
        """Number of item rows that the negatives of a batch add to those of the positives."""
        return n_anchors * n

    def negative_ids(self, selected: Ids, items: Int[Array, "batch"]) -> Ids | Pools:
        """Returns the negatives of a batch without duplicates between anchors that share them.

        Args:
          selected: Rows of the batch in the output of :meth:`select`.
          items: Positive item of each anchor.
        """
        del items
        return selected

    def negatives(self, selected: Ids, batch: SamplingContext, is_real: IsReal) -> Negatives:
        """Returns the negatives of a batch with mask and correction.

        ``selected`` is as for :meth:`negative_ids`; anchors that are not ``is_real`` are padding.
        """
        del is_real
        return Negatives(self.negative_ids(selected, batch.items))

    def __call__(self, key: Key[Array, ""], batch: SamplingContext, state: Any = ()) -> Selection:
        """Returns the negatives of a batch, int32 ``[batch, batch.n]``, and the next state.

        Args:
          key: Random key; the same key, batch and state give the same bits.
          batch: The anchors.
          state: State from :meth:`init` or from the previous call.
        """
        return self.select(self.propose(key, batch.users, batch.positives, batch.n), batch, state)


def best(
    value: Float[Array, "batch n candidates"], items: Int[Array, "batch n candidates"]
) -> Int[Array, "batch n"]:
    """Returns the candidate with the highest value; the first one of ties."""
    index = jnp.argmax(value, axis=-1, keepdims=True)
    return jnp.take_along_axis(items, index, axis=-1)[..., 0]
