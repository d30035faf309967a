"""The items of the other anchors of a batch as negatives."""

from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from .._pytree import STATIC
from ._batch import Batch, Sampler
from ._positives import Positives


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class InBatch(Sampler):
    r"""Each anchor's negatives are the positives of its batch: nothing is drawn.

    Popular items come up as often as they are taken, so that the scores learn
    :math:`s_{ui} - \log P(i)`. All scores of a batch are one product.

    Attributes:
      mask: ``"seen"`` leaves out what the anchor's user has taken, its own positive included;
        ``"self"`` the anchor's own place alone; ``"none"`` nothing, as the softmax of several
        published codes has it, which counts the positive in its own denominator. Static.
    """

    mask: Literal["seen", "self", "none"] = field(default="seen", metadata=STATIC)

    def __post_init__(self) -> None:
        if self.mask not in ("seen", "self", "none"):
            raise ValueError(f"`mask` must be seen, self or none, got {self.mask!r}.")

    @property
    def reads_bitmap(self) -> bool:
        """Of the items of a batch, for each of its users."""
        return self.mask == "seen"

    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> tuple[()]:
        """Nothing."""
        del key, users, positives, n
        return ()

    def select(self, proposals: Any, batch: Batch, state: Any) -> tuple[Int[Array, "batch n"], Any]:
        """The items of the batch, the same for each anchor; :meth:`where` tells which count."""
        del proposals
        n = batch.items.shape[0]
        return jnp.broadcast_to(batch.items, (n, n)), state

    def where(self, batch: Batch) -> Bool[Array, "batch batch"]:
        """Which items of the batch are negatives of each anchor."""
        n = batch.items.shape[0]
        if self.mask == "none":
            return jnp.ones((n, n), bool)
        if self.mask == "self":
            return ~jnp.eye(n, dtype=bool)
        return ~batch.positives.taken(batch.users, batch.items).T
