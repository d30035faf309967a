"""Row lookups in embedding tables and CSR matrices."""

import jax
import numpy as np
from jaxtyping import Array, Float, Int


def take_rows(
    table: Float[Array, "n dim"], at: Int[Array | np.ndarray, "*shape"]
) -> Float[Array, "*shape dim"]:
    """Returns ``table[at]``; a slice instead of a gather if ``at`` is static and contiguous."""
    if isinstance(at, np.ndarray) and at.size:
        first = int(at.flat[0])
        if np.array_equal(at.ravel(), np.arange(first, first + at.size)):
            rows = jax.lax.slice_in_dim(table, first, first + at.size)
            return rows.reshape(*at.shape, table.shape[1])
    return table[at]


def csr_entries(
    indptr: Int[np.ndarray, "n_bounds"], rows: Int[np.ndarray, "n"]
) -> tuple[Int[np.ndarray, "own_bounds"], Int[np.ndarray, "n_places"]]:
    """Returns the row pointers of the selected CSR rows and the indices of their entries."""
    starts, counts = indptr[rows], indptr[rows + 1] - indptr[rows]
    own = np.concatenate(([0], np.cumsum(counts)))
    return own, np.arange(own[-1]) + np.repeat(starts - own[:-1], counts)
