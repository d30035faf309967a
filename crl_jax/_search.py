"""Binary search in sorted rows."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Num

from ._checks import is_static


def search_rows(
    values: Num[Array, "n"],
    query: Num[Array, "*shape"],
    low: Int[Array, "..."],
    high: Int[Array, "..."],
    rounds: int,
    side: Literal["left", "right"] = "right",
) -> Int[Array, "*shape"]:
    """Returns the first index in ``[low, high)`` with ``values[index] > query``, else ``high``.

    With ``side="left"``, the first index with ``values[index] >= query``.

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
        value = values.at[middle].get(mode="clip")
        go_right = (left < right) & (value <= query if side == "right" else value < query)
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

    NaN sorts last, so that NaN scores are never counted; the count for a NaN threshold is
    meaningless.
    """
    n = scores.shape[-1]

    def row(scores: Array, thresholds: Array) -> Array:
        if is_static(n):
            return jnp.searchsorted(jnp.sort(scores), thresholds, side=side)
        ends = jnp.int32(0), jnp.asarray(n, jnp.int32)
        return search_rows(jnp.sort(scores), thresholds, *ends, rounds=31, side=side)

    rows = scores.reshape(-1, scores.shape[-1]), thresholds.reshape(-1, thresholds.shape[-1])
    return jax.vmap(row)(*rows).reshape(thresholds.shape).astype(jnp.int32)
