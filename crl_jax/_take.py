"""Row lookups in embedding tables and CSR matrices."""

import jax
import numpy as np
from jaxtyping import Array, Float, Int


def take_rows(
    table: Float[Array, "n dim"], index: Int[Array | np.ndarray, "*shape"]
) -> Float[Array, "*shape dim"]:
    """Returns ``table[index]``, by a slice if ``index`` is static and contiguous."""
    if isinstance(index, np.ndarray) and index.size:
        first = int(index.flat[0])
        if np.array_equal(index.ravel(), np.arange(first, first + index.size)):
            rows = jax.lax.slice_in_dim(table, first, first + index.size)
            return rows.reshape(*index.shape, table.shape[1])
    return table[index]


def csr_entries(
    indptr: Int[np.ndarray, "n_bounds"], rows: Int[np.ndarray, "n"]
) -> tuple[Int[np.ndarray, "own_bounds"], Int[np.ndarray, "n_indices"]]:
    """Returns the row pointers of the selected CSR rows and the indices of their entries."""
    starts, counts = indptr[rows], indptr[rows + 1] - indptr[rows]
    pointers = np.concatenate(([0], np.cumsum(counts)))
    return pointers, np.arange(pointers[-1]) + np.repeat(starts - pointers[:-1], counts)
