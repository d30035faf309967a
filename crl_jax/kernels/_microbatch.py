"""Micro-batches that keep intermediate results in the caches of a CPU core.

If the batch is sharded over devices, each device has an equal share of every micro-batch.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from .._mesh import DATA, batch_mesh


def example_bytes(x: Array) -> int:
    """Returns the bytes of one example of a batch."""
    return math.prod(x.shape[1:]) * x.dtype.itemsize


def split_batch(
    arrays: tuple[Array, ...], bytes_per_example: int, max_bytes: int, shares: int | None = None
) -> list[Array]:
    """Reshapes arrays to ``[shares, microbatches, length, ...]``, padded with zeros.

    Args:
      arrays: Batches, along the first axes.
      bytes_per_example: Working memory of an example.
      max_bytes: Working memory of a micro-batch on each device.
      shares: Number of devices that the batch may be sharded over; by default all devices.
    """
    batch, shares = len(arrays[0]), shares or jax.device_count()
    per_share = -(-batch // shares)
    least = -(-per_share // max(1, max_bytes // bytes_per_example))
    n = next((n for n in range(least, 2 * least) if batch % (n * shares) == 0), least)
    shape = (shares, n, -(-per_share // n)) if n > 1 else (1, 1, batch)
    padding = math.prod(shape) - batch
    padded = [jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)) for x in arrays]
    return [x.reshape(*shape, *x.shape[1:]) for x in padded]


def take_microbatch(split: Array, i: Any) -> Array:
    """Returns the examples of micro-batch ``i`` along the first axis."""
    examples = jax.lax.dynamic_index_in_dim(split, i, 1, keepdims=False)
    return examples.reshape(-1, *split.shape[3:])


def sum_over_microbatches(
    function: Callable[..., Array],
    arrays: tuple[Array, ...],
    bytes_per_example: int,
    max_bytes: int,
) -> Array:
    """Sums ``function`` over the micro-batches of a batch.

    Inside :func:`use_batch_mesh` each device sums its own examples, and devices synchronise once.
    Otherwise the compiler may synchronise them after each micro-batch, unless ``function`` keeps
    the shares apart.

    Args:
      function: ``function(shares, *examples)`` returns ``[shares or 1, ...]`` from examples that
        are this number of equal shares, concatenated. Zero examples must contribute zero.
      arrays: Batches, along the first axes.
      bytes_per_example: Working memory of an example.
      max_bytes: Working memory of a micro-batch on each device.
    """

    def device_sum(*arrays: Array) -> Array:
        split = split_batch(arrays, bytes_per_example, max_bytes, shares=1)
        return jax.lax.psum(_sum_split(function, split), DATA)

    mesh = batch_mesh(len(arrays[0]))
    if mesh is None:
        return _sum_split(function, split_batch(arrays, bytes_per_example, max_bytes))
    # The sums of devices are added only at the end, which the check of varying axes does not see.
    sharded_sum = jax.shard_map(
        device_sum, mesh=mesh, in_specs=PartitionSpec(DATA), out_specs=PartitionSpec(),
        check_vma=False,
    )  # fmt: skip
    return sharded_sum(*arrays)


def _sum_split(function: Callable[..., Array], split: list[Array]) -> Array:
    def value(i: Any) -> Array:
        return function(len(split[0]), *(take_microbatch(x, i) for x in split))

    shape = jax.eval_shape(value, 0)
    total = jax.lax.fori_loop(
        0, split[0].shape[1], lambda i, total: total + value(i), jnp.zeros(shape.shape, shape.dtype)
    )
    return jnp.sum(total, axis=0)
