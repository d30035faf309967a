"""A batch a part at a time, so that what is made of it stays in the caches of a core.

Where a batch is spread over devices, each has an equal share of every part.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def example_bytes(x: Array) -> int:
    """Bytes of one example of a batch."""
    return math.prod(x.shape[1:]) * x.dtype.itemsize


def cut_batch(arrays: tuple[Array, ...], own: int, most: int) -> list[Array]:
    """Arrays as ``[shares, parts, length, ...]``, filled up with zeros.

    Args:
      arrays: All examples, along the first axes.
      own: Bytes that an example takes while it is worked at.
      most: Bytes that a part may take on each device.
    """
    batch, shares = len(arrays[0]), jax.device_count()
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


def add_parts(function: Callable[..., Array], cut: list[Array]) -> Array:
    """The sum of ``function`` over parts, to which examples that are zero add nothing.

    Args:
      function: Of some examples of each array.
      cut: All of them, see :func:`cut_batch`.
    """

    def of(part: Any) -> Array:
        return function(*(part_of(x, part) for x in cut))

    n_parts, one = cut[0].shape[1], jax.eval_shape(of, 0)
    start = jnp.zeros(one.shape, one.dtype)
    return jax.lax.fori_loop(0, n_parts, lambda part, total: total + of(part), start)
