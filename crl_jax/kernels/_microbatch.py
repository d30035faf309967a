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

from .._blocks import split_rows
from .._mesh import DATA, batch_mesh


def sum_over_microbatches(
    function: Callable[..., Array], arrays: tuple[Array, ...], max_bytes: int
) -> Array:
    """Sums ``function`` over the micro-batches of a batch.

    Inside :func:`use_batch_mesh` each device sums its own examples, and devices synchronise once.
    Otherwise the compiler may synchronise them after each micro-batch.

    Args:
      function: ``function(*examples)`` returns a sum over examples, to which zeros contribute zero.
      arrays: Batches, along the first axes.
      max_bytes: Bytes of the first array in a micro-batch on each device.
    """

    def device_sum(*arrays: Array) -> Array:
        return jax.lax.psum(_sum(function, arrays, max_bytes, n_devices=1), DATA)

    mesh = batch_mesh(len(arrays[0]))
    if mesh is None:
        return _sum(function, arrays, max_bytes, n_devices=jax.device_count())
    # The sums of devices are added only at the end, which the check of varying axes does not see.
    sharded_sum = jax.shard_map(
        device_sum, mesh=mesh, in_specs=PartitionSpec(DATA), out_specs=PartitionSpec(),
        check_vma=False,
    )  # fmt: skip
    return sharded_sum(*arrays)


def _sum(
    function: Callable[..., Array], arrays: tuple[Array, ...], max_bytes: int, n_devices: int
) -> Array:
    """Sums over micro-batches of a batch that may be sharded over ``n_devices``."""
    batch, first = len(arrays[0]), arrays[0]
    bytes_per_example = math.prod(first.shape[1:]) * first.dtype.itemsize
    per_device = -(-batch // n_devices)
    least = -(-per_device // max(1, max_bytes // bytes_per_example))
    n = next((n for n in range(least, 2 * least) if batch % (n * n_devices) == 0), least)
    # [devices, micro-batches, length, ...], padded by zeros.
    shape = (n_devices, n, -(-per_device // n)) if n > 1 else (1, 1, batch)
    split = [split_rows(x, shape) for x in arrays]

    def value(i: Any) -> Array:
        examples = (jax.lax.dynamic_index_in_dim(x, i, 1, keepdims=False) for x in split)
        return function(*(x.reshape(-1, *x.shape[2:]) for x in examples))

    zero = jax.eval_shape(value, 0)
    return jax.lax.fori_loop(
        0, shape[1], lambda i, total: total + value(i), jnp.zeros(zero.shape, zero.dtype)
    )
