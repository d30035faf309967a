"""Tables of vectors, as they come and as they are used."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32


class Table:
    """Vectors here and, once they are asked for, on the device."""

    def __init__(self, vectors: Float32[np.ndarray, "n dim"]):
        self.vectors = vectors

    @cached_property
    def on_device(self) -> jax.Array:
        return jnp.asarray(self.vectors)


def pair(tables: Any) -> tuple[Any, Any]:
    """The vectors of users and items: attributes, entries or the two of a pair."""
    if isinstance(tables, Mapping):
        if {"users", "items"} <= tables.keys():
            return tables["users"], tables["items"]
    elif hasattr(tables, "users") and hasattr(tables, "items"):
        return tables.users, tables.items
    elif isinstance(tables, Sequence) and len(tables) == 2:
        return tables[0], tables[1]
    raise ValueError(f"`tables` must have users and items, got {type(tables).__name__}.")


def float32(name: str, values: Any) -> np.ndarray:
    """Numbers of any dtype, bfloat16 included, as float32 that nobody writes to."""
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(f"`{name}` must be numbers, got {array.dtype}.")
    with np.errstate(over="ignore"):  # what overflows is reported as not finite
        array = array.astype(np.float32)
    array.setflags(write=False)
    return array


def unit(vectors: np.ndarray) -> Float32[np.ndarray, "n dim"]:
    """Rows of length 1; a row of zeros stays one."""
    wide = vectors.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return float32("vectors", wide / np.where(norms == 0, 1, norms))
