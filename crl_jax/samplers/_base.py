"""What a sampler is given and what it gives back."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._pytree import STATIC, pytree_dataclass
from ..models import Encoder, Tables
from ._positives import Positives


@pytree_dataclass
class SamplingContext:
    """Anchors that want negatives, and the encoder as it is at this moment.

    Attributes:
      users: The anchors' users, int32 ``[batch]``.
      items: The anchors' own positives, int32 ``[batch]``.
      positives: What every user has taken in training.
      tables: What the encoder makes of its parameters.
      epoch: Epochs trained before this one.
      encoder: Tells what a score is.
      n: Negatives wanted per anchor.
    """

    users: Int[Array, "batch"]
    items: Int[Array, "anchors"]
    positives: Positives
    tables: Tables
    epoch: Int[Array, ""]
    encoder: Encoder
    n: int = field(default=1, metadata=STATIC)

    def scores(self, items: Int[Array, "batch n"]) -> Float[Array, "batch n"]:
        """Scores of each anchor with its own ``n`` items, as constants."""
        return self.encoder.score(jax.lax.stop_gradient(self.tables), self.users, items)

    def shared_scores(self, items: Int[Array, "n"]) -> Float[Array, "n batch"]:
        """Scores of every anchor with every item, as constants; anchors trail, as vectors."""
        return self.encoder.score_shared(jax.lax.stop_gradient(self.tables), self.users, items)


@dataclass(frozen=True)
class Sampler(ABC):
    """Chooses the negatives of a batch: ``sampler(key, batch, state) -> (ids, state)``.

    A sampler is a frozen dataclass and a pytree: its numbers and arrays are leaves, so that they
    may be traced, swept by ``vmap`` and changed without compiling anew. All of its methods are
    pure. No item that the user has taken in training is ever returned; a user who has taken
    everything gets ``n_items``, an index out of range.

    A draw has two parts. What needs no scores, :meth:`propose`, can be drawn for a whole epoch
    at once, which takes a third of the time; :meth:`select` then looks at the scores.
    """

    @property
    def uses_bitmap(self) -> bool:
        """Whether it asks what users took of many items, which a bitmap answers best."""
        return False

    @property
    def uses_scores(self) -> bool:
        """Whether :meth:`select` looks at the scores of items, or of rows of the tables."""
        return type(self).select is not Sampler.select

    def init(self, key: Key[Array, ""], positives: Positives, tables: Tables) -> Any:
        """State before the first epoch: what :meth:`select` reads and changes."""
        del key, positives, tables
        return ()

    def start_epoch(
        self, key: Key[Array, ""], positives: Positives, tables: Tables, state: Any
    ) -> Any:
        """State at the start of an epoch, before any parameter changes."""
        del key, positives, tables
        return state

    @abstractmethod
    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> Any:
        """Random numbers and candidates of ``n`` negatives for each anchor."""

    def select(
        self, proposals: Any, batch: SamplingContext, state: Any
    ) -> tuple[Int[Array, "batch n"], Any]:
        """The negatives, and the state after them; without a look at scores, the proposals."""
        del batch
        return proposals, state

    def __call__(
        self, key: Key[Array, ""], batch: SamplingContext, state: Any = ()
    ) -> tuple[Int[Array, "batch n"], Any]:
        """Draws the negatives of a batch.

        Args:
          key: Random key; the same key, batch and state give the same bits.
          batch: The anchors.
          state: What :meth:`init` or the last call gave.

        Returns:
          Int32 item indices ``[batch, batch.n]``, and the next state.
        """
        return self.select(self.propose(key, batch.users, batch.positives, batch.n), batch, state)


def best(
    value: Float[Array, "batch n candidates"], items: Int[Array, "batch n candidates"]
) -> Int[Array, "batch n"]:
    """The candidate with the highest value; the first of equals."""
    at = jnp.argmax(value, axis=-1, keepdims=True)
    return jnp.take_along_axis(items, at, axis=-1)[..., 0]
