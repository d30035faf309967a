"""Blockwise evaluation with bounded memory."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from ._checks import is_static


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


def split_rows(x: Shaped[Array, "n ..."], shape: tuple[int, ...]) -> Shaped[Array, "..."]:
    """Splits the leading axis into axes of a shape; rows of zeros pad the end.

    Padding a sharded array and then reshaping it gives wrong values in JAX 0.7.2, so that padded
    rows are gathered.
    """
    x, n = jnp.asarray(x), math.prod(shape)  # constants of a custom gradient are NumPy arrays
    if n == x.shape[0]:
        return x.reshape(*shape, *x.shape[1:])
    arange = np.arange if is_static(*shape) else jnp.arange
    index = arange(n, dtype=np.int32).reshape(shape)
    return x.at[index].get(mode="fill", fill_value=0)
