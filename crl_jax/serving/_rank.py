"""The best rows of a table for many queries, in blocks of few sizes that compile once each."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Int32, Int64

from ..metrics import top_k

# One user at a time, a few, and many. A product of one row takes another route through the
# device, and would give a user other digits alone than in company.
_BLOCKS = (8, 64, 256)
# Blocks of the largest size that one call goes through, where there are as many: they use the same
# memory for their scores, which to allocate takes as long as to compute them.
_TOGETHER = 16
_SCORES = 2**26  # of a block at most, where the catalogue is large: 256 MB
_LEAST = 16  # ranks that are computed at least: small changes of k compile nothing


def best(
    queries: Float32[np.ndarray, "n dim"],
    table: Float[Array, "n_rows dim"],
    barred: tuple[Int64[np.ndarray, " rows"], Int[np.ndarray, " n_barred"]],
    allowed: Bool[Array, " n_rows"] | None,
    k: int,
) -> tuple[Int32[np.ndarray, "n k"], Float32[np.ndarray, "n k"]]:
    """The ``k`` rows of ``table`` with the greatest inner products with each query.

    Equal scores rank by the lower row first.

    Args:
      queries: One vector for each query.
      table: The rows to choose from; finite, as ``queries``, and small enough for finite products.
      barred: Rows that a query must not get, in compressed rows: ``(indptr, rows)``.
      allowed: Rows that any query may get; None for all of them, which spares a pass over scores.
      k: How many, positive.

    Returns:
      Rows and scores, the greatest first; -1 and -inf in the places left.
    """
    n, n_rows = len(queries), table.shape[0]
    rows, scores = np.full((n, k), -1, np.int32), np.full((n, k), -np.inf, np.float32)
    # The next power of two, or all rows.
    ranks = min(1 << (max(k, _LEAST) - 1).bit_length(), n_rows)
    kept = min(k, ranks)
    for start, stop, size, together in _blocks(n, n_rows):
        block = np.zeros((together * size, queries.shape[1]), np.float32)
        block[: stop - start] = queries[start:stop]
        block = block.reshape(together, size, -1)
        found = _best(block, table, allowed, *_pairs(barred, start, stop, size), k=ranks)
        values, places = (np.asarray(x)[: stop - start, :kept] for x in found)
        scores[start:stop, :kept] = values
        rows[start:stop, :kept] = np.where(values > -np.inf, places, -1)
    return rows, scores


@partial(jax.jit, static_argnames="k")
def _best(
    queries: Float[Array, "blocks size dim"],
    table: Float[Array, "n_rows dim"],
    allowed: Bool[Array, " n_rows"] | None,
    pair_queries: Int[Array, "blocks pairs"],
    pair_rows: Int[Array, "blocks pairs"],
    *,
    k: int,
) -> tuple[Array, Array]:
    def of_block(block: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        queries, pair_queries, pair_rows = block
        scores = jnp.matmul(queries, table.T, precision=jax.lax.Precision.HIGHEST)
        if allowed is not None:
            scores = jnp.where(allowed[None, :], scores, -jnp.inf)
        scores = scores.at[pair_queries, pair_rows].set(-jnp.inf, mode="drop")
        return top_k(scores, k)

    found = jax.lax.map(of_block, (queries, pair_queries, pair_rows))
    values, places = (x.reshape(-1, k) for x in found)
    return values, places


def _blocks(n: int, n_rows: int) -> Iterator[tuple[int, int, int, int]]:
    """Start and stop of what a call goes through, the padded size of its blocks, and their number.

    The last block takes the smallest size that fits.
    """
    sizes = [size for size in _BLOCKS if size * n_rows <= _SCORES] or [_BLOCKS[0]]
    start = 0
    while start < n:
        size = next((size for size in sizes if n - start <= size), sizes[-1])
        together = _TOGETHER if n - start >= _TOGETHER * size else 1
        stop = min(start + together * size, n)
        yield start, stop, size, together
        start = stop


def _pairs(
    barred: tuple[np.ndarray, np.ndarray], start: int, stop: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The barred pairs of blocks, filled up to a power of two with a query that is not there."""
    indptr, rows = barred
    ends = indptr[np.minimum(np.arange(start, stop + size, size), stop)]
    counts = np.diff(ends)
    padded = 1 << (max(int(counts.max()), 16 * size) - 1).bit_length()
    shape = len(counts), padded
    pair_queries, pair_rows = np.full(shape, size, np.int32), np.zeros(shape, np.int32)
    there = np.arange(padded) < counts[:, None]
    own = np.repeat(np.arange(stop - start), np.diff(indptr[start : stop + 1]))
    pair_queries[there] = own % size
    pair_rows[there] = rows[ends[0] : ends[-1]]
    return pair_queries, pair_rows
