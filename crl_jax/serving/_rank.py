"""Exact top-k retrieval by inner product, in query blocks of a few sizes to limit compilation."""

import os
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Int32, Int64

from ..metrics import top_k

# Block sizes for single queries, small and large requests. At least 8 rows: a product with a single
# row takes a matrix-vector path that rounds differently.
_BLOCKS = (8, 64, 256)
# Full blocks per compiled call. They share one score buffer: allocating it takes as long as
# computing the scores.
_BLOCKS_PER_CALL = 16
_MAX_SCORES = 2**26  # scores per block: 256 MB
_MIN_RANKS = 16  # small changes of k do not trigger recompilation

_process: int | None = None  # the process that computed first


def best(
    queries: Float32[np.ndarray, "n dim"],
    table: Float[Array, "n_rows dim"],
    excluded: tuple[Int64[np.ndarray, " rows"], Int[np.ndarray, " n_excluded"]],
    candidate_mask: Bool[Array, " n_rows"] | None,
    k: int,
) -> tuple[Int32[np.ndarray, "n k"], Float32[np.ndarray, "n k"]]:
    """Row indices and scores of the ``k`` greatest inner products of each query, descending.

    Ties are broken by the lower row index. Vectors and their products are finite.
    ``excluded`` holds rows per query in CSR form; without a ``candidate_mask`` of the rows that may
    be returned, a pass over the scores is saved. Lists are padded with -1 and -inf.

    A process that was forked after its parent had computed uses NumPy: the threads of XLA do not
    survive a fork, and a compiled call would hang. Scores may then differ by rounding.
    """
    global _process
    if _process not in (None, os.getpid()):
        columns = np.asarray(table).T
        mask = None if candidate_mask is None else np.asarray(candidate_mask)
        return best_on_host(lambda part: queries[part] @ columns, excluded, len(table), mask, k)
    _process = os.getpid()
    n, n_rows = len(queries), table.shape[0]
    rows, scores = np.full((n, k), -1, np.int32), np.full((n, k), -np.inf, np.float32)
    # The next power of two or the whole table.
    ranks = min(1 << (max(k, _MIN_RANKS) - 1).bit_length(), n_rows)
    n_top = min(k, ranks)
    for start, stop, size, n_blocks in _blocks(n, n_rows):
        block = np.zeros((n_blocks * size, queries.shape[1]), np.float32)
        block[: stop - start] = queries[start:stop]
        block = block.reshape(n_blocks, size, -1)
        results = _best(block, table, candidate_mask, *_pairs(excluded, start, stop, size), k=ranks)
        values, indices = (np.asarray(x)[: stop - start, :n_top] for x in results)
        scores[start:stop, :n_top] = values
        rows[start:stop, :n_top] = np.where(values > -np.inf, indices, -1)
    return rows, scores


def best_on_host(
    score: Callable[[slice], Float32[np.ndarray, "block n_rows"]],
    excluded: tuple[np.ndarray, np.ndarray],
    n_rows: int,
    candidate_mask: Bool[np.ndarray, " n_rows"] | None,
    k: int,
) -> tuple[Int32[np.ndarray, "n k"], Float32[np.ndarray, "n k"]]:
    """:func:`best` in NumPy, of finite scores that ``score`` returns for a slice of queries."""
    indptr, rows = excluded
    n, n_top = len(indptr) - 1, min(k, n_rows)
    indices, best_scores = np.full((n, k), -1, np.int32), np.full((n, k), -np.inf, np.float32)
    for start in range(0, n, size := max(1, min(_BLOCKS[-1], _MAX_SCORES // n_rows))):
        block = slice(start, min(start + size, n))
        scores = score(block)
        if candidate_mask is not None:
            scores[:, ~candidate_mask] = -np.inf
        query = np.repeat(np.arange(len(scores)), np.diff(indptr[start : block.stop + 1]))
        scores[query, rows[indptr[start] : indptr[block.stop]]] = -np.inf
        # Unique keys: the bits of the score, as an integer of the same order, above the row.
        bits = (scores + 0.0).view(np.int32)  # of 0 and -0 alike
        keys = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64) << 32
        keys -= np.arange(n_rows)
        order = np.sort(-np.partition(keys, -n_top, axis=1)[:, -n_top:], axis=1) & 0xFFFFFFFF
        values = np.take_along_axis(scores, order, axis=1)
        best_scores[block, :n_top] = values
        indices[block, :n_top] = np.where(values > -np.inf, order, -1)
    return indices, best_scores


@partial(jax.jit, static_argnames="k")
def _best(
    queries: Float[Array, "blocks size dim"],
    table: Float[Array, "n_rows dim"],
    candidate_mask: Bool[Array, " n_rows"] | None,
    pair_queries: Int[Array, "blocks pairs"],
    pair_rows: Int[Array, "blocks pairs"],
    *,
    k: int,
) -> tuple[Array, Array]:
    def rank_block(block: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        queries, pair_queries, pair_rows = block
        scores = jnp.matmul(queries, table.T, precision=jax.lax.Precision.HIGHEST)
        if candidate_mask is not None:
            scores = jnp.where(candidate_mask[None, :], scores, -jnp.inf)
        scores = scores.at[pair_queries, pair_rows].set(-jnp.inf, mode="drop")
        return top_k(scores, k)

    results = jax.lax.map(rank_block, (queries, pair_queries, pair_rows))
    values, indices = (x.reshape(-1, k) for x in results)
    return values, indices


def _blocks(n: int, n_rows: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields ``(start, stop, block size, number of blocks)`` of each compiled call.

    The last block has the smallest size that fits.
    """
    sizes = [size for size in _BLOCKS if size * n_rows <= _MAX_SCORES] or [_BLOCKS[0]]
    start = 0
    while start < n:
        size = next((size for size in sizes if n - start <= size), sizes[-1])
        n_blocks = _BLOCKS_PER_CALL if n - start >= _BLOCKS_PER_CALL * size else 1
        stop = min(start + n_blocks * size, n)
        yield start, stop, size, n_blocks
        start = stop


def _pairs(
    excluded: tuple[np.ndarray, np.ndarray], start: int, stop: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Excluded pairs of each block, padded to a power of two with an out-of-range query."""
    indptr, rows = excluded
    ends = indptr[np.minimum(np.arange(start, stop + size, size), stop)]
    counts = np.diff(ends)
    padded = 1 << (max(int(counts.max()), 16 * size) - 1).bit_length()
    shape = len(counts), padded
    pair_queries, pair_rows = np.full(shape, size, np.int32), np.zeros(shape, np.int32)
    valid = np.arange(padded) < counts[:, None]
    query = np.repeat(np.arange(stop - start), np.diff(indptr[start : stop + 1]))
    pair_queries[valid] = query % size
    pair_rows[valid] = rows[ends[0] : ends[-1]]
    return pair_queries, pair_rows
