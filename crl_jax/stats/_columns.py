"""Counts and selection along long columns of scores."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

# Rows per iteration of the loop on CPUs; a divisor of 32. With 1 it takes twice as long, with 8
# three times as long if rows are hidden: the compiler then no longer keeps counts in registers.
_ROWS = 4
# Rows up to which a GPU selects by sorting. On an H100, 43 counts of 1,682 scores for each of 1,024
# anchors took 0.8 ms, and a sort of a million pairs 0.08 ms in rows of 4,096, 0.15 ms in rows of
# 16,384.
_MAX_SORTED = 4096


def count_no_larger(
    scores: Float[Array, "n batch"],
    at: Float[Array, "k batch"],
    hidden: UInt32[Array, "words batch"] | None = None,
) -> Int[Array, "k batch"]:
    r"""Number of scores in the column that are at most each threshold.

    .. math:: c_{kb} = \#\{i : s_{ib} \le a_{kb}\}

    The batch is the last axis, which on a CPU takes a twentieth of the time of a reduction along
    contiguous rows. A NaN never counts.

    Args:
      scores: The :math:`s_{ib}`, shape ``[n, batch]``.
      at: The :math:`a_{kb}`, shape ``[k, batch]``.
      hidden: Bitmap of scores to exclude: the score ``[i, b]`` is excluded by
        bit ``i % 32`` of word ``[i // 32, b]``.

    Returns:
      The :math:`c_{kb}`, shape ``[k, batch]``, int32.

    >>> print(count_no_larger(jnp.array([[1.0], [3.0], [2.0]]), jnp.array([[2.0], [0.5]])))
    [[2]
     [0]]
    """
    if hidden is None:
        return count_where(jnp.less_equal, scores, at)

    def no_larger(row: tuple[Array, ...], at: Array) -> Array:
        scores, word, bit = row
        return jnp.where((word >> bit) & 1 == 1, jnp.nan, scores) <= at

    return count_where(no_larger, scores, at, words=hidden)


def count_where(
    compare: Callable[[Any, Any], Array],
    rows: Any,
    at: Any,
    words: UInt32[Array, "words batch"] | None = None,
) -> Int[Array, "k batch"]:
    """Number of ``rows`` for which ``compare(row, at)`` holds, for each ``at`` of a column.

    ``rows`` and ``at`` may be pytrees; rows are counted along the first axis. With ``words``, one
    for each 32 rows, the first argument is ``(row, word, bit of the row in the word)``.
    """
    n = jax.tree.leaves(rows)[0].shape[0]

    def reduce(rows: Any, at: Any, words: Array | None) -> Array:
        if words is not None:
            i = jnp.arange(n, dtype=jnp.int32)
            rows = rows, words[i >> 5], (i & 31).astype(jnp.uint32)[:, None]
        long, wide = jax.tree.map(lambda x: x[:, None], rows), jax.tree.map(lambda x: x[None], at)
        return jnp.sum(compare(long, wide), axis=0, dtype=jnp.int32)

    def loop(rows: Any, at: Any, words: Array | None) -> Array:
        def add(start: Array | int, n_rows: int, counts: Array) -> Array:
            # Rows of one iteration share a word, since _ROWS divides 32.
            word = None if words is None else jax.lax.dynamic_index_in_dim(words, start >> 5)
            for i in range(n_rows):
                pick = partial(jax.lax.dynamic_index_in_dim, index=start + i)
                row = jax.tree.map(pick, rows)
                if word is not None:
                    row = row, word, jnp.asarray((start & 31) + i).astype(jnp.uint32)
                counts = counts + compare(row, at).astype(jnp.int32)
            return counts

        first = jnp.zeros(jnp.shape(jax.tree.leaves(at)[0]), jnp.int32)
        counts = add(n // _ROWS * _ROWS, n % _ROWS, first)
        return jax.lax.fori_loop(
            0, n // _ROWS, lambda turn, counts: add(turn * _ROWS, _ROWS, counts), counts
        )

    return jax.lax.platform_dependent(rows, at, words, cpu=loop, default=reduce)


def select_largest(
    scores: Float[Array, "n batch"], rank: Int[Array, "k batch"], where: Bool[Array, "n batch"]
) -> Int[Array, "k batch"]:
    """Row index of the ``rank``-th largest valid score of each column, counted from 0.

    Ties are broken by row, the first one ranks highest; NaN ranks last. Exact for scores in
    float32, to which others are cast, by binary search: 32 counts determine the bits of the score,
    and one more for each bit of ``n`` the row. GPUs sort up to 4,096 rows.

    Args:
      scores: Scores, ``[n, batch]``.
      rank: Ranks, less than the number of valid scores; otherwise the result is ``n``.
      where: True for valid scores.
    """
    keys = jnp.where(where, _ascending_key(scores), 0)  # masked scores rank last
    on_gpu = _select_by_sorting if scores.shape[0] <= _MAX_SORTED else _select_by_bits
    return jax.lax.platform_dependent(keys, rank, cuda=on_gpu, default=_select_by_bits)


def _select_by_sorting(
    keys: UInt32[Array, "n batch"], rank: Int[Array, "k batch"]
) -> Int[Array, "k batch"]:
    """Takes few kernels, of which each count takes several."""
    n = keys.shape[0]
    rows = jax.lax.broadcasted_iota(jnp.int32, keys.T.shape, 1)
    ordered, rows = jax.lax.sort((~keys.T, rows), num_keys=1)
    key, row = (jnp.take_along_axis(x, rank.T, axis=1, mode="clip").T for x in (~ordered, rows))
    return jnp.where(key > 0, row, n)


def _select_by_bits(
    keys: UInt32[Array, "n batch"], rank: Int[Array, "k batch"]
) -> Int[Array, "k batch"]:
    """Determines the bits of the score, then those of the row, by a count for each."""
    n = keys.shape[0]

    def add_bit(i: Array | int, key: Array) -> Array:
        more = key | (jnp.uint32(1) << jnp.asarray(31 - i, jnp.uint32))
        return jnp.where(count_where(jnp.greater_equal, keys, more) > rank, more, key)

    key = jax.lax.fori_loop(0, 32, add_bit, jnp.zeros(rank.shape, jnp.uint32))
    tied_before = rank - count_where(jnp.greater, keys, key)

    # The first row up to which more than `tied_before` rows have this score.
    rows = keys, jnp.arange(n, dtype=jnp.int32)[:, None]

    def equal_up_to(row: tuple[Array, Array], at: tuple[Array, Array]) -> Array:
        return (row[0] == at[0]) & (row[1] <= at[1])

    def halve(_: Array | int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) >> 1
        includes_row = count_where(equal_up_to, rows, (key, middle)) > tied_before
        return jnp.where(includes_row, low, middle + 1), jnp.where(includes_row, middle, high)

    bounds = jnp.zeros_like(rank), jnp.full_like(rank, n)
    row, _ = jax.lax.fori_loop(0, n.bit_length(), halve, bounds)
    return jnp.where(key > 0, row, n)


def _ascending_key(scores: Float[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Positive unsigned integers in the order of the scores; NaN comes first."""
    scores = jnp.where(scores == 0, 0, scores)  # -0.0 and 0.0 have equal keys
    bits = jax.lax.bitcast_convert_type(scores.astype(jnp.float32), jnp.uint32)
    flipped = jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(2**31))
    return jnp.where(jnp.isnan(scores), jnp.uint32(1), flipped)
