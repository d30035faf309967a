"""Sources of batches: arrays on the device or iterators on the host."""

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

from .._checks import check_count
from .._mesh import DATA
from .._permutation import permute
from .._pytree import pytree_dataclass
from .._threads import thread_map
from ._scan import Steps, TrainConfig
from ._sharding import replicate

_THREADS = 2
"""Number of threads that gather batches from host memory or files."""


@pytree_dataclass
class ArrayBatches:
    """Examples in device memory; each epoch visits every example once in random order.

    Attributes:
      data: Arrays in any containers, every leaf ``[n, ...]``.

    Raises:
      ValueError: If there is no example, or leaves differ in their number.
    """

    data: Any

    def __post_init__(self) -> None:
        _check_lengths("data", self.data)

    @property
    def n(self) -> int:
        """Number of examples."""
        return jax.tree.leaves(self.data)[0].shape[0]

    def order(self, key: Key[Array, ""], position: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
        """Indices of the examples at positions of an epoch; positions from ``n`` on are padding."""
        return permute(key, position % self.n, self.n)

    def epoch(self, key: Key[Array, ""], config: TrainConfig) -> Steps:
        """Returns the steps of an epoch, in an order that ``key`` determines."""
        order_key, draw_key = jax.random.split(key)
        draws, gradients = -(-self.n // config.draw_size), config.draw_batches * config.accumulate
        position = jnp.arange(draws * config.draw_size, dtype=jnp.int32).reshape(draws, -1)
        where = position < self.n
        # Counting the examples of a batch in every step costs as much as a small matrix product.
        first = config.batch_size * np.arange(draws * gradients).reshape(draws, gradients)
        sizes = jnp.asarray(np.clip(self.n - first, 0, config.batch_size).astype(np.float32))
        keys = jax.random.split(draw_key, draws)
        return Steps(keys, self.order(order_key, position), where, sizes)


@dataclass(frozen=True)
class HostBatches:
    """Batches from a host iterator, such as Grain or ``tf.data``, for data of any size.

    With several processes, each reads its own part of every batch, :func:`local_batch_size`
    examples. A process with fewer batches than others contributes masked padding.

    Attributes:
      epoch_of: ``epoch_of(epoch)`` returns the batches of an epoch, counted from 0: trees of arrays
        ``[batch, ...]``. The last batch may be smaller; it is padded and masked.
      n: Number of examples per epoch over all processes, which determines the length of an
        :class:`Optimizer`'s schedule; if None, set its ``n_steps``.
      chunk: Number of batches per compiled call, >= 1.

    Raises:
      ValueError: During iteration, if a batch is empty or too large, leaves differ in the number of
        examples, a batch after a smaller one follows, or a process has no batch in an epoch.
    """

    epoch_of: Callable[[int], Iterable[Any]]
    n: int | None = None
    chunk: int = 16

    @classmethod
    def from_arrays(cls, data: Any, batch_size: int, *, seed: int = 0) -> "HostBatches":
        """Batches of arrays on the host; each epoch visits every example once in random order.

        The order of an epoch depends on the seed and the epoch only, so that a resumed training
        continues with the same batches. With several processes, each produces its part of a batch.
        Two threads gather the next batches, at most nine, while the device computes.

        Args:
          data: Arrays in any containers, every leaf ``[n, ...]``: NumPy arrays, memory-mapped ones,
            :class:`crl_jax.data.DiskArray`, or any object with a ``shape`` whose ``leaf[rows]``,
            for integers ``[batch]``, returns the examples of a batch as arrays in any containers.
          batch_size: Global number of examples per step, ``TrainConfig.batch_size``.
          seed: Seed of the orders, >= 0.

        Raises:
          ValueError: If ``seed`` is negative, ``batch_size`` is not a positive multiple of the
            number of processes, there is no example, or leaves differ in their number.

        >>> batches = HostBatches.from_arrays({"x": np.arange(10)}, 4)
        >>> [len(batch["x"]) for batch in batches.epoch_of(0)]
        [4, 4, 2]
        """
        process, processes = jax.process_index(), jax.process_count()
        if batch_size < 1 or batch_size % processes:
            raise ValueError(
                f"`batch_size` must be a multiple of {processes}, the number of processes, got "
                f"{batch_size}."
            )
        check_count("seed", seed, 0)
        n, size = _check_lengths("data", data), batch_size // processes

        def gather(rows: np.ndarray) -> Any:
            return jax.tree.map(lambda leaf: leaf[rows], data)

        def epoch_of(epoch: int) -> Iterator[Any]:
            order = np.arange(n, dtype=np.int32 if n <= np.iinfo(np.int32).max else np.int64)
            np.random.default_rng((seed, epoch)).shuffle(order)
            local = order[process::processes]
            rows = (local[start : start + size] for start in range(0, len(local), size))
            return thread_map(gather, rows, _THREADS)

        return cls(epoch_of, n=n)

    def chunks(self, epoch: int, config: TrainConfig) -> Iterator[Steps]:
        """Yields the steps of an epoch in chunks; their keys are batch numbers."""
        batches: Iterator[Any] = iter(self.epoch_of(epoch))
        local, first, last, is_over = _local_range(config), 0, None, False
        while True:
            chunk = list(itertools.islice(batches, self.chunk))
            n_batches = len(chunk)
            sizes = [_check_lengths(f"batch {first + i}", batch) for i, batch in enumerate(chunk)]
            for i, size in enumerate(sizes, first):
                if size > len(local):
                    raise ValueError(
                        f"Batch {i} of the epoch must hold 1 to {len(local)} examples, got {size}."
                    )
                if is_over:
                    raise ValueError(
                        f"`batch_size` must be the number of examples of all batches but the last, "
                        f"got {config.batch_size} and a smaller batch {i - 1}."
                    )
                is_over = size < len(local)
            if _is_shared(config):
                n_batches = int(np.max(multihost_utils.process_allgather(np.asarray(n_batches))))
            if not n_batches:
                return
            last = chunk[-1] if chunk else last
            if last is None:
                raise ValueError(
                    f"`batches` must hold at least one batch per process, got none in epoch "
                    f"{epoch}."
                )
            padding = [last] * (n_batches - len(chunk))
            steps = _stack(chunk, sizes, padding, first, local, config)
            yield _make_global(steps, config) if _is_shared(config) else steps
            first += n_batches


def _check_lengths(name: str, data: Any) -> int:
    """Returns the number of examples; ``ValueError`` if there is none, or leaves disagree."""
    shapes = [getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(data)]
    lengths = [shape[0] if shape else None for shape in shapes]
    if not lengths or len(set(lengths)) > 1 or not lengths[0]:
        raise ValueError(
            f"`{name}` must hold the same number of examples in every leaf, at least 1, got "
            f"{lengths}."
        )
    return lengths[0]


def local_batch_size(config: TrainConfig) -> int:
    """Number of examples of a batch that this process reads: those on its devices.

    Raises:
      ValueError: If the devices of a process are not adjacent along the axis ``data`` of the mesh.
    """
    return len(_local_range(config))


def _is_shared(config: TrainConfig) -> bool:
    return config.mesh is not None and jax.process_count() > 1


def _local_range(config: TrainConfig) -> range:
    """Positions within a batch that this process reads."""
    n = config.batch_size
    if config.mesh is None or not _is_shared(config):
        return range(n)
    sharding = NamedSharding(config.mesh, PartitionSpec(DATA))
    slices: Any = sharding.addressable_devices_indices_map((n,)).values()
    bounds = {each[0].indices(n)[:2] for each in slices}
    local = range(min(start for start, _ in bounds), max(stop for _, stop in bounds))
    if sum(stop - start for start, stop in bounds) != len(local):
        raise ValueError(
            f"`mesh` must have the devices of a process adjacent along {DATA}, got {config.mesh}."
        )
    return local


def _make_global(steps: Steps, config: TrainConfig) -> Steps:
    """Combines the local steps of all processes into global arrays."""
    assert config.mesh is not None
    sharding = NamedSharding(config.mesh, PartitionSpec(None, DATA))

    def join(x: Array) -> Array:
        shape = len(x), config.batch_size, *x.shape[2:]
        return jax.make_array_from_process_local_data(sharding, np.asarray(x), shape)

    indices, where, data = jax.tree.map(join, (steps.indices, steps.where, steps.data))
    n = _count_fn(config.mesh)(where)
    return Steps(replicate(config.mesh, steps.key), indices, where, n, data)


@cache
def _count_fn(mesh: Mesh) -> Callable[[Array], Array]:
    """Compiled function that counts the examples of each batch over all processes."""
    count = partial(jnp.sum, axis=1, keepdims=True, dtype=jnp.float32)
    return jax.jit(count, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _stack(
    chunk: list[Any], n_examples: list[int], padding: list[Any], first: int, local: range,
    config: TrainConfig,
) -> Steps:  # fmt: skip
    """Stacks padded batches; those of ``padding`` are masked completely."""
    sizes = np.array([*n_examples, *[0] * len(padding)], int)

    def pad(x: Any) -> np.ndarray:
        # Repeats the last example: masked examples should be valid data.
        x = np.asarray(x)
        if len(x) == len(local):
            return x
        return np.pad(x, [(0, len(local) - len(x)), *[(0, 0)] * (x.ndim - 1)], mode="edge")

    position, number = np.arange(len(local)), first + np.arange(len(sizes))
    return Steps(
        key=jnp.asarray(number, jnp.uint32),
        indices=jnp.asarray(
            number[:, None] * config.batch_size + local.start + position, jnp.int32
        ),
        where=jnp.asarray(position < sizes[:, None]),
        n=jnp.asarray(sizes[:, None], jnp.float32),
        data=jax.tree.map(lambda *x: jnp.asarray(np.stack(list(map(pad, x)))), *chunk, *padding),
    )
