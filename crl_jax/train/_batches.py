"""Where batches come from: arrays on the device, or any iterator on the host."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Key

from .._mesh import DATA
from .._permutation import permute
from .._pytree import pytree_dataclass
from ._scan import Steps, TrainConfig, plan_steps
from ._sharding import put_everywhere


@pytree_dataclass
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

    def epoch(self, key: Key[Array, ""], config: TrainConfig) -> Steps:
        """The steps of an epoch, in an order that ``key`` fixes."""
        order_key, draw_key = jax.random.split(key)
        position, where, n = plan_steps(self.n, config)
        keys = jax.random.split(draw_key, len(position))
        return Steps(keys, self.order(order_key, position), where, n)


@dataclass(frozen=True)
class HostBatches:
    """Batches from an iterator, such as one of Grain or ``tf.data``, for data of any size.

    Several processes read each its own part: every batch of a process has :func:`local_batch_size`
    examples, and the batches of all processes together are those of the training. Where a process
    has fewer of them than others, its places are masked.

    Attributes:
      epoch_of: ``epoch_of(epoch)`` gives the batches of an epoch, counted from 0: trees of arrays
        ``[batch, ...]``. The last may hold fewer examples; it is filled up, and masked.
      n: Examples in an epoch, of all processes, which the schedule of an :class:`Optimizer` needs
        to know its length; without it, set ``n_steps`` there.
      chunk: Batches that one compiled call goes through, >= 1.

    Raises:
      ValueError: While it is read, if a batch is empty or larger than it may be, or a process has
        none in an epoch.
    """

    epoch_of: Callable[[int], Iterable[Any]]
    n: int | None = None
    chunk: int = 16

    def chunks(self, epoch: int, config: TrainConfig) -> Iterator[Steps]:
        """The steps of an epoch, a few at a time; their keys are the numbers of their batches."""
        batches: Iterator[Any] = iter(self.epoch_of(epoch))
        own, first, last = _own_places(config), 0, None
        while True:
            chunk = list(itertools.islice(batches, self.chunk))
            n_batches = _most(len(chunk)) if _is_shared(config) else len(chunk)
            if not n_batches:
                return
            last = chunk[-1] if chunk else last
            if last is None:
                raise ValueError(
                    f"`batches` must hold some for each process, got none in epoch {epoch}."
                )
            steps = _stacked(chunk, [last] * (n_batches - len(chunk)), first, own, config)
            yield _joined(steps, config) if _is_shared(config) else steps
            first += n_batches


def local_batch_size(config: TrainConfig) -> int:
    """Examples of a batch that this process reads: those on its devices.

    Raises:
      ValueError: If its devices do not follow each other along the axis ``data`` of the mesh.
    """
    own = _own_places(config)
    return own.stop - own.start


def _is_shared(config: TrainConfig) -> bool:
    return config.mesh is not None and jax.process_count() > 1


def _own_places(config: TrainConfig) -> range:
    """The places of a batch whose examples this process reads."""
    n = config.batch_size
    if config.mesh is None or not _is_shared(config):
        return range(n)
    over = NamedSharding(config.mesh, PartitionSpec(DATA))
    parts: Any = over.addressable_devices_indices_map((n,)).values()
    held = {part[0].indices(n)[:2] for part in parts}
    own = range(min(start for start, _ in held), max(stop for _, stop in held))
    if sum(stop - start for start, stop in held) != len(own):
        raise ValueError("`mesh` must have the devices of a process side by side along data.")
    return own


def _most(count: int) -> int:
    """The greatest count of all processes."""
    return int(np.max(multihost_utils.process_allgather(np.asarray(count))))


def _joined(steps: Steps, config: TrainConfig) -> Steps:
    """The steps of all processes as one."""
    assert config.mesh is not None
    over = NamedSharding(config.mesh, PartitionSpec(None, DATA))

    def join(x: Array) -> Array:
        shape = len(x), config.batch_size, *x.shape[2:]
        return jax.make_array_from_process_local_data(over, np.asarray(x), shape)

    place, where, data = jax.tree.map(join, (steps.place, steps.where, steps.data))
    n = _counting(config.mesh)(where)
    return Steps(put_everywhere(config.mesh, steps.key), place, where, n, data)


@cache
def _counting(mesh: Mesh) -> Callable[[Array], Array]:
    """How many examples of each batch are real, of all processes; compiled once."""
    count = partial(jnp.sum, axis=1, keepdims=True, dtype=jnp.float32)
    return jax.jit(count, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _stacked(
    chunk: list[Any], more: list[Any], first: int, own: range, config: TrainConfig
) -> Steps:
    """Batches as the leaves of one tree, filled up; ``more`` of them hold no example."""
    sizes = np.array([len(jax.tree.leaves(batch)[0]) for batch in chunk], int)
    for place, size in enumerate(sizes, first):
        if not 1 <= size <= len(own):
            raise ValueError(
                f"Batch {place} of the epoch must hold 1 to {len(own)} examples, got {size}."
            )
    sizes = np.append(sizes, [0] * len(more)).astype(int)

    def stack(*leaves: Any) -> Array:
        return jnp.asarray(np.stack([_filled(np.asarray(x), len(own)) for x in leaves]))

    place, index = np.arange(len(own)), first + np.arange(len(sizes))
    return Steps(
        key=jnp.asarray(index, jnp.uint32),
        place=jnp.asarray(index[:, None] * config.batch_size + own.start + place, jnp.int32),
        where=jnp.asarray(place < sizes[:, None]),
        n=jnp.asarray(sizes[:, None], jnp.float32),
        data=jax.tree.map(stack, *chunk, *more),
    )


def _filled(x: np.ndarray, size: int) -> np.ndarray:
    """Repeats the last example; what is masked should still be data like other data."""
    return np.pad(x, [(0, size - len(x)), *[(0, 0)] * (x.ndim - 1)], mode="edge")
