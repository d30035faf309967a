"""Rows of a table, and of compressed ones."""

import jax
import numpy as np
from jaxtyping import Array, Float, Int


def take_rows(
    table: Float[Array, "n dim"], at: Int[Array | np.ndarray, "*shape"]
) -> Float[Array, "*shape dim"]:
    """``table[at]``; a slice where ``at`` is known while tracing, and rows follow each other."""
    if isinstance(at, np.ndarray) and at.size:
        first = int(at.flat[0])
        if np.array_equal(at.ravel(), np.arange(first, first + at.size)):
            rows = jax.lax.slice_in_dim(table, first, first + at.size)
            return rows.reshape(*at.shape, table.shape[1])
    return table[at]


def csr_entries(
    indptr: Int[np.ndarray, "n_bounds"], rows: Int[np.ndarray, "n"]
) -> tuple[Int[np.ndarray, "own_bounds"], Int[np.ndarray, "n_places"]]:
    """Where the entries of some compressed rows stand, and where those of each begin among them."""
    starts, counts = indptr[rows], indptr[rows + 1] - indptr[rows]
    own = np.concatenate(([0], np.cumsum(counts)))
    return own, np.arange(own[-1]) + np.repeat(starts - own[:-1], counts)
