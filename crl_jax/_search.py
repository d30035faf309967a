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
    """First place from ``low`` to ``high``, between which ``values`` ascend, with a value > query.

    Args:
      values: All rows, one after another.
      query: What is searched for, any shape.
      low: Where the row of each query begins; broadcasts to ``query``.
      high: Where it ends; broadcasts to ``query``.
      rounds: Bits of the length of the longest row, static.

    Returns:
      Places from ``low`` to ``high``.
    """

    def halve(_: Array | int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = bounds
        middle = left + ((right - left) >> 1)  # the sum of both could overflow
        beyond = (left < right) & (values.at[middle].get(mode="clip") <= query)
        return jnp.where(beyond, middle + 1, left), jnp.where(beyond, right, middle)

    bounds = jnp.broadcast_to(low, query.shape), jnp.broadcast_to(high, query.shape)
    return jax.lax.fori_loop(0, rounds, halve, bounds)[0]


def rows_contain(
    values: Int[Array, "n"],
    query: Int[Array, "*shape"],
    low: Int[Array, "..."],
    high: Int[Array, "..."],
    rounds: int,
) -> Bool[Array, "*shape"]:
    """Whether each query stands in its row; arguments as for :func:`search_rows`."""
    place = search_rows(values, query - 1, low, high, rounds)
    found = values.at[place].get(mode="clip") == query
    return (place < jnp.broadcast_to(high, query.shape)) & found


def count_below(scores: Array, at: Array, side: Literal["left", "right"]) -> Array:
    """How many of a row's ``scores`` are less (``"left"``) or no larger than each of ``at``.

    NaN sorts last, above whatever is searched for, so those of ``scores`` never count.
    """

    def row(scores: Array, at: Array) -> Array:
        return jnp.searchsorted(jnp.sort(scores), at, side=side)

    rows = scores.reshape(-1, scores.shape[-1]), at.reshape(-1, at.shape[-1])
    return jax.vmap(row)(*rows).reshape(at.shape).astype(jnp.int32)
