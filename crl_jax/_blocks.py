"""Functions of long arrays, a block at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def map_blocks(fn: Callable[[Any], Any], arrays: Any, block: int) -> Any:
    """``fn(arrays)``, for an ``fn`` that treats all rows alike, in blocks that bound its memory.

    Args:
      fn: From a tree of arrays with a common leading axis to another with the same.
      arrays: The tree.
      block: Rows at a time; no more are taken in one go.
    """
    n = jax.tree.leaves(arrays)[0].shape[0]
    if n <= block:
        return fn(arrays)
    n_blocks = -(-n // block)
    fill = jnp.arange(n_blocks * block) % n
    blocks = jax.tree.map(lambda x: x[fill].reshape(n_blocks, block, *x.shape[1:]), arrays)
    out = jax.lax.map(fn, blocks)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:n], out)
