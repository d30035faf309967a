"""Binary search in sorted rows."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Num


def search_rows(
    values: Num[Array, "n"],
    query: Num[Array, "*shape"],
    low: Int[Array, "..."],
    high: Int[Array, "..."],
    rounds: int,
) -> Int[Array, "*shape"]:
    """Returns the first index in ``[low, high)`` with ``values[index] > query``, else ``high``.

    Args:
      values: Concatenated rows, each in ascending order.
      query: Query values, any shape.
      low: Start of the row of each query; broadcasts to ``query``.
      high: End of the row of each query, exclusive; broadcasts to ``query``.
      rounds: Bit length of the longest row length, static.

    Returns:
      Indices in ``[low, high]``, shape of ``query``.
    """

    def halve(_: Array | int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = bounds
        middle = left + ((right - left) >> 1)  # `left + right` could overflow
        go_right = (left < right) & (values.at[middle].get(mode="clip") <= query)
        return jnp.where(go_right, middle + 1, left), jnp.where(go_right, right, middle)

    bounds = jnp.broadcast_to(low, query.shape), jnp.broadcast_to(high, query.shape)
    return jax.lax.fori_loop(0, rounds, halve, bounds)[0]


def rows_contain(
    values: Int[Array, "n"],
    query: Int[Array, "*shape"],
    low: Int[Array, "..."],
    high: Int[Array, "..."],
    rounds: int,
) -> Bool[Array, "*shape"]:
    """Whether each query occurs in its row; arguments as in :func:`search_rows`."""
    index = search_rows(values, query - 1, low, high, rounds)
    found = values.at[index].get(mode="clip") == query
    return (index < jnp.broadcast_to(high, query.shape)) & found


def count_below(scores: Array, thresholds: Array, side: Literal["left", "right"]) -> Array:
    """Number of scores per row below (``"left"``) or at most (``"right"``) each threshold.

    NaN sorts last, so that NaN scores are never counted.
    """

    def row(scores: Array, thresholds: Array) -> Array:
        return jnp.searchsorted(jnp.sort(scores), thresholds, side=side)

    rows = scores.reshape(-1, scores.shape[-1]), thresholds.reshape(-1, thresholds.shape[-1])
    return jax.vmap(row)(*rows).reshape(thresholds.shape).astype(jnp.int32)
