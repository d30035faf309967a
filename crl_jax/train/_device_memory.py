"""Check that the training state fits into the memory of a device."""

import math
from collections.abc import Callable
from typing import Any

import jax

from ._optimizers import AnyOptimizer, RowOptimizer
from ._sharding import Sharding
from .rows._packed import is_in_place

_GIB = 2**30


def check_device_memory(
    device: Any,
    trace_state: Callable[[], Any],
    inputs: Any,
    optimizer: AnyOptimizer,
    sharding: Sharding | None,
) -> None:
    """Checks a lower bound of the memory for training, before anything is allocated or compiled.

    The bound includes the state of all runs, the inputs, and tables of temporary values: gradients
    of dense optimizers, and tables of row updates that TPUs do not pack in place. Batches and
    activations are not included. Devices that do not state their memory, such as CPUs, are not
    checked.

    Args:
      device: The JAX device that trains, or one of several.
      trace_state: Returns the shapes of the states of all runs.
      inputs: Arrays that training reads, in their layout.
      optimizer: The optimizer.
      sharding: Sharding of the state; None for a single device.

    Raises:
      ValueError: If the training does not fit.
    """
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if not limit:
        return
    shapes = trace_state()
    state = device_bytes(shapes, sharding)
    is_row = isinstance(optimizer, RowOptimizer)
    tables = shapes.state.params, shapes.state.opt_state if is_row else ()
    temporary = 0
    if not is_row:
        temporary = device_bytes(tables, sharding)
    elif device.platform == "tpu":
        temporary = device_bytes(tables, sharding, lambda shape: not is_in_place(*shape[1:2]))
    total = state + temporary + device_bytes(inputs)
    if total <= limit:
        return
    advice = ["a narrower table"]
    if not is_row:
        advice.insert(0, "a RowOptimizer, whose rows are sharded over all devices of a mesh")
    if sharding is None or sharding.parts < sharding.mesh.size or is_row:
        advice.insert(0, "a `mesh` with more devices along its axis `table`")
    raise ValueError(
        f"`task` must fit into {limit / _GIB:.1f} GiB per device, got at least "
        f"{total / _GIB:.1f} GiB: the training state has {state / _GIB:.1f} and temporary tables "
        f"{temporary / _GIB:.1f}. Use {', '.join(advice[:-1])} or {advice[-1]}."
    )


def device_bytes(
    tree: Any,
    sharding: Sharding | None = None,
    include: Callable[[tuple[int, ...]], bool] = lambda shape: True,
) -> int:
    """Bytes of arrays or shapes per device, with ``sharding`` of run states or their own.

    Only arrays whose shape on a device satisfies ``include`` are counted.
    """
    leaves = jax.tree.leaves(tree)
    if sharding is not None:
        shardings = jax.tree.leaves(sharding.shardings(tree))
    else:
        shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
    total = 0
    for leaf, placed in zip(leaves, shardings):
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            shape = leaf.shape if placed is None else placed.shard_shape(leaf.shape)
            total += math.prod(shape) * leaf.dtype.itemsize * include(shape)
    return total
