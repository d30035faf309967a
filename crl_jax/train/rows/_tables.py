"""Reads rows of tables and writes them back, whatever the size of the tables."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ._transformation import RowTransformation

# Rows that are woken at a time: all at once would take the memory of a second table and state.
_BLOCK = 1 << 15


class TableState(NamedTuple):
    """What goes with a table while it is trained by rows.

    Attributes:
      rule: State of the rule; every leaf leads with the rows of the table.
      place: For each row, where it stood in the batch that read it last, int32 ``[rows]``.
    """

    rule: Any
    place: Int[Array, "rows"]


class GatheredRows(NamedTuple):
    """Rows that a batch reads.

    Attributes:
      rows: Their values, ``[m, dim]``; those of a row that is read twice stand at its place.
      at: The place among ``rows`` of each of the ids, int32 ``[m]``; known while tracing where
        the rule is additive.
      ids: Whose row stands there; ``n``, which there is not, where none does.
      rule: State of the rule, every leaf ``[m, ...]``.
    """

    rows: Float[Array, "m dim"]
    at: Int[Array | np.ndarray, "m"]
    ids: Int[Array, "m"]
    rule: Any


def init(rule: RowTransformation, table: Float[Array, "n dim"]) -> TableState:
    """The state of a table before the first step."""
    places = 0 if rule.additive else len(table)
    return TableState(rule.init(table), jnp.zeros(places, jnp.int32))


def read(
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    ids: Int[Array, "m"],
    step: Int[Array, ""] | int,
    *,
    agree: bool = False,
) -> tuple[GatheredRows, TableState]:
    """The rows ``ids`` as they are before a step.

    A row that stands among the ids several times is opened once: a gradient with respect to
    ``opened.rows[opened.at]`` is then summed by itself.

    Args:
      rule: The optimiser.
      table: The table.
      state: What goes with it.
      ids: Rows, each in ``[0, n)``; ``n`` for none.
      step: Steps taken so far.
      agree: Whether a row that stands among the ids several times is opened at the last of its
        places, which devices agree on; else at any, which takes less time. Static.

    Returns:
      The rows, and the state to hand to :func:`write`.
    """
    step = jnp.asarray(step, jnp.int32)
    first = places(ids)
    rows, of_rule = jax.tree.map(lambda x: x[ids], (table, state.rule))
    if rule.additive:
        return GatheredRows(rows, first, ids, of_rule), state
    # Each id writes where it stands; whichever stays is the place of all equal ones.
    if agree:
        place = state.place.at[ids].set(-1).at[ids].max(first)
    else:
        place = state.place.at[ids].set(first)
    at = place[ids]
    if rule.wake is not None:
        rows, of_rule = rule.wake(rows, of_rule, step)
    own = jnp.where(at == first, ids, len(table))
    return GatheredRows(rows, at, own, of_rule), state._replace(place=place)


def places(ids: Int[Array, "m"]) -> Int[np.ndarray, "m"]:
    """Where each of the ids stands."""
    return np.arange(len(ids), dtype=np.int32)


def write(
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    opened: GatheredRows,
    grads: Float[Array, "m dim"],
    step: Int[Array, ""] | int,
) -> tuple[Float[Array, "n dim"], TableState]:
    """The table after the step, and its state.

    Args:
      rule: The optimiser.
      table: The table.
      state: What :func:`read` returned with the rows.
      opened: The rows.
      grads: Gradients with respect to ``opened.rows``.
      step: Steps taken so far.
    """
    step = jnp.asarray(step, jnp.int32)
    updates, of_rule = rule.update(grads, opened.rule, opened.rows, step)
    if rule.additive:
        return table.at[opened.ids].add(updates.astype(table.dtype), mode="drop"), state

    def put(whole: Array, rows: Array) -> Array:
        return whole.at[opened.ids].set(rows, mode="drop")

    table = put(table, (opened.rows + updates).astype(table.dtype))
    return table, state._replace(rule=jax.tree.map(put, state.rule, of_rule))


def flush_lazy_updates(
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    step: Int[Array, ""] | int,
) -> tuple[Float[Array, "n dim"], TableState]:
    """The whole table as it is before a step, for what reads it all: validation, serving."""
    wake = rule.wake
    if wake is None:
        return table, state
    step, n, size = jnp.asarray(step, jnp.int32), len(table), min(len(table), _BLOCK)

    def wake_block(i: Array, kept: tuple[Array, Any]) -> tuple[Array, Any]:
        # The last block begins early enough to be full: to wake a row twice is to wake it once.
        # By ids, not as slices: XLA would take these anew after some had been written over, and
        # keep them apart by copies of all rows.
        ids = jnp.minimum(i * size, n - size) + jnp.arange(size, dtype=jnp.int32)
        table, of_rule = jax.tree.map(lambda x: x[ids], kept)
        return jax.tree.map(lambda x, y: x.at[ids].set(y), kept, wake(table, of_rule, step))

    table, of_rule = jax.lax.fori_loop(0, -(-n // size), wake_block, (table, state.rule))
    return table, state._replace(rule=of_rule)
