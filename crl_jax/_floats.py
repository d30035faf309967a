"""The one floating type that a function computes in.

The arrays that a function is about, such as scores, settle it: :func:`at_least_float32`. All else,
such as hyper-parameters, is cast to it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def at_least_float32(*arrays: Any) -> tuple[Any, ...]:
    """Casts all to the widest floating type among them, but at least to float32; None passes.

    Python numbers take the type of the arrays beside them.
    """
    given = [jnp.asarray(x) for x in arrays if x is not None]
    with jax.numpy_dtype_promotion("standard"):  # strict promotion refuses half precision
        dtype = jnp.result_type(*given)
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).bits < 32:
        dtype = jnp.float32
    return tuple(None if x is None else jnp.asarray(x).astype(dtype) for x in arrays)


def cast_floats(tree: Any, dtype: Any) -> Any:
    """The tree with its floating leaves in ``dtype``; the others as they are."""

    def cast(x: Any) -> Any:
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, tree)


def rounded(value: Any, dtype: Any = None) -> np.ndarray:
    """The numbers that computations in ``dtype`` meet; None is the widest type that JAX has.

    What is too large becomes infinite. What is below the normal numbers becomes 0, as on most
    devices.
    """
    dtype = jnp.result_type(float) if dtype is None else np.dtype(dtype)
    with np.errstate(over="ignore", under="ignore"):
        numbers = np.asarray(value).astype(dtype)
    return np.where(np.abs(numbers) < np.finfo(dtype).tiny, np.zeros((), dtype), numbers)
