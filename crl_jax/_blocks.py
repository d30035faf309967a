"""Blockwise evaluation with bounded memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def map_blocks(fn: Callable[[Any], Any], arrays: Any, block: int) -> Any:
    """Computes ``fn(arrays)`` in blocks of rows; ``fn`` must treat rows independently.

    Args:
      fn: Maps a tree of arrays with a common leading axis to such a tree.
      arrays: Tree of arrays.
      block: Maximum number of rows per call.
    """
    n = jax.tree.leaves(arrays)[0].shape[0]
    if n <= block:
        return fn(arrays)
    n_blocks = -(-n // block)
    fill = jnp.arange(n_blocks * block) % n
    blocks = jax.tree.map(lambda x: x[fill].reshape(n_blocks, block, *x.shape[1:]), arrays)
    out = jax.lax.map(fn, blocks)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:n], out)
