"""A batch a part at a time, so that what is made of it stays in the caches of a core.

Where a batch is spread over devices, each has an equal share of every part.
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
    """Bytes of one example of a batch."""
    return math.prod(x.shape[1:]) * x.dtype.itemsize


def cut_batch(
    arrays: tuple[Array, ...], own: int, most: int, shares: int | None = None
) -> list[Array]:
    """Arrays as ``[shares, parts, length, ...]``, filled up with zeros.

    Args:
      arrays: All examples, along the first axes.
      own: Bytes that an example takes while it is worked at.
      most: Bytes that a part may take on each device.
      shares: Devices that the batch may be spread over; by default all.
    """
    batch, shares = len(arrays[0]), shares or jax.device_count()
    each = -(-batch // shares)
    least = -(-each // max(1, most // own))
    n_parts = next((n for n in range(least, 2 * least) if batch % (n * shares) == 0), least)
    shape = (shares, n_parts, -(-each // n_parts)) if n_parts > 1 else (1, 1, batch)
    missing = math.prod(shape) - batch
    filled = [jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) for x in arrays]
    return [x.reshape(*shape, *x.shape[1:]) for x in filled]


def part_of(cut: Array, at: Any) -> Array:
    """The examples of one part, along the first axis."""
    found = jax.lax.dynamic_index_in_dim(cut, at, 1, keepdims=False)
    return found.reshape(-1, *cut.shape[3:])


def add_parts(
    function: Callable[..., Array], arrays: tuple[Array, ...], own: int, most: int
) -> Array:
    """The sum of ``function`` over parts of a batch.

    Where a mesh is at hand, each device adds its own examples up, and devices wait for each other
    once. Otherwise the compiler lets them wait after each part, unless ``function`` keeps shares
    apart.

    Args:
      function: ``function(shares, *examples)`` of some examples of each array, which are so many
        equal shares, one behind the other; gives ``[shares or 1, ...]``. Examples that are zero
        must add nothing.
      arrays: All examples, along the first axes.
      own: Bytes that an example takes while it is worked at.
      most: Bytes that a part may take on each device.
    """

    def of_device(*arrays: Array) -> Array:
        return jax.lax.psum(_add(function, cut_batch(arrays, own, most, shares=1)), DATA)

    mesh = batch_mesh(len(arrays[0]))
    if mesh is None:
        return _add(function, cut_batch(arrays, own, most))
    # Sums of devices are added up at the end alone, which the check does not see.
    spread = jax.shard_map(
        of_device, mesh=mesh, in_specs=PartitionSpec(DATA), out_specs=PartitionSpec(),
        check_vma=False,
    )  # fmt: skip
    return spread(*arrays)


def _add(function: Callable[..., Array], cut: list[Array]) -> Array:
    def of(part: Any) -> Array:
        return function(len(cut[0]), *(part_of(x, part) for x in cut))

    n_parts, one = cut[0].shape[1], jax.eval_shape(of, 0)
    start = jnp.zeros(one.shape, one.dtype)
    total = jax.lax.fori_loop(0, n_parts, lambda part, total: total + of(part), start)
    return jnp.sum(total, axis=0)
