"""Floating-point types of computations.

The main arrays of a function, such as scores, determine its dtype (:func:`at_least_float32`);
hyper-parameters are cast to it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def float_dtype(*arrays: Any) -> Any:
    """Returns the common floating dtype of the arguments, at least float32; None is ignored."""
    operands = [jnp.asarray(x) for x in arrays if x is not None]
    with jax.numpy_dtype_promotion("standard"):  # strict promotion refuses half precision
        dtype = jnp.result_type(*operands)
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).bits < 32:
        return jnp.dtype(jnp.float32)
    return dtype


def at_least_float32(*arrays: Any) -> tuple[Any, ...]:
    """Promotes all arguments to their common floating type, at least float32; None passes.

    Python scalars are weakly typed and adopt the dtype of the arrays.
    """
    dtype = float_dtype(*arrays)
    return tuple(None if x is None else jnp.asarray(x).astype(dtype) for x in arrays)


def multiply_share(share: Any, count: Any) -> Any:
    """``share * count``, which is exactly k for a share k / n that was rounded.

    Args:
      share: Shares of a floating type.
      count: Integers.

    Returns:
      Products of the type of the shares, of which the caller takes the floor or the ceiling.
    """
    product = share * count.astype(share.dtype)
    nearest = jnp.round(product)
    is_whole = jnp.abs(product - nearest) <= 2 * float(jnp.finfo(share.dtype).eps) * product
    return jnp.where(is_whole, nearest, product)


def cast_floats(tree: Any, dtype: Any) -> Any:
    """Casts the floating-point arrays of a tree to ``dtype``; scalars keep their dtype."""

    def cast(x: Any) -> Any:
        return x.astype(dtype) if x.ndim and jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, tree)


def rounded(value: Any, dtype: Any = None) -> np.ndarray:
    """Rounds values to ``dtype``; None is JAX's default floating type.

    Overflows become infinite; subnormal numbers are flushed to 0, as on most devices.
    """
    dtype = jnp.result_type(float) if dtype is None else np.dtype(dtype)
    with np.errstate(over="ignore", under="ignore"):
        numbers = np.asarray(value).astype(dtype)
    return np.where(np.abs(numbers) < np.finfo(dtype).tiny, np.zeros((), dtype), numbers)
