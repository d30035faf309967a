"""Where batches come from: arrays on the device, or any iterator on the host."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from .._permutation import permute
from ._steps import StepPlan, Steps, plan_steps


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ArrayBatches:
    """Examples that lie on the device. An epoch takes each once, in a fresh order.

    Attributes:
      data: Arrays in any containers, every leaf ``[n, ...]``.
    """

    data: Any

    @property
    def n(self) -> int:
        """How many examples an epoch takes."""
        return jax.tree.leaves(self.data)[0].shape[0]

    def order(self, key: Key[Array, ""], position: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
        """The examples at these places of an epoch; places from ``n`` on only fill up."""
        return permute(key, position % self.n, self.n)

    def epoch(self, key: Key[Array, ""], plan: StepPlan) -> Steps:
        """The steps of an epoch, in an order that ``key`` fixes."""
        order_key, draw_key = jax.random.split(key)
        position, where, n = plan_steps(self.n, plan)
        keys = jax.random.split(draw_key, len(position))
        return Steps(keys, self.order(order_key, position), where, n)


@dataclass(frozen=True)
class HostBatches:
    """Batches from an iterator, such as one of Grain or ``tf.data``, for data of any size.

    Attributes:
      epoch_of: ``epoch_of(epoch)`` gives the batches of an epoch, counted from 0: trees of arrays
        ``[batch, ...]``. The last may hold fewer examples; it is filled up, and masked.
      n: Examples in an epoch, which the schedule of an :class:`Optimizer` needs to know its
        length; without it, set ``n_steps`` there.
      chunk: Batches that one compiled call goes through, >= 1.

    Raises:
      ValueError: While it is read, if a batch is empty or larger than the first.
    """

    epoch_of: Callable[[int], Iterable[Any]]
    n: int | None = None
    chunk: int = 16

    def chunks(self, epoch: int, plan: StepPlan) -> Iterator[Steps]:
        """The steps of an epoch, a few at a time; their keys are the numbers of their batches."""
        batches: Iterator[Any] = iter(self.epoch_of(epoch))
        first = 0
        while chunk := list(itertools.islice(batches, self.chunk)):
            yield _stacked(chunk, first, plan)
            first += len(chunk)


def _stacked(chunk: list[Any], first: int, plan: StepPlan) -> Steps:
    """Batches as the leaves of one tree, filled up to the batch size."""
    sizes = np.array([len(jax.tree.leaves(batch)[0]) for batch in chunk])
    for place, size in enumerate(sizes, first):
        if not 1 <= size <= plan.batch_size:
            raise ValueError(
                f"Batch {place} of the epoch must hold 1 to {plan.batch_size} examples, got {size}."
            )

    def stack(*leaves: Any) -> Array:
        return jnp.asarray(np.stack([_filled(np.asarray(x), plan.batch_size) for x in leaves]))

    place = np.arange(plan.batch_size, dtype=np.int32)
    index = (first + np.arange(len(chunk), dtype=np.int32))[:, None] * plan.batch_size + place
    return Steps(
        key=jnp.asarray(first + np.arange(len(chunk)), jnp.uint32),
        place=jnp.asarray(index),
        where=jnp.asarray(place < sizes[:, None]),
        n=jnp.asarray(sizes[:, None], jnp.float32),
        data=jax.tree.map(stack, *chunk),
    )


def _filled(x: np.ndarray, size: int) -> np.ndarray:
    """Repeats the last example; what is masked should still be data like other data."""
    return np.pad(x, [(0, size - len(x)), *[(0, 0)] * (x.ndim - 1)], mode="edge")
