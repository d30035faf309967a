"""Gather and scatter of optimized table rows, at a cost independent of the table size."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from ._rules import RowTransformation

# Number of rows flushed at a time: all at once would need the memory of a second table and state.
# On an H100, each block costs its kernel launches: 1M rows of 64 take 3.2 ms in blocks of 8,192,
# 2.0 in blocks of 32,768 and 1.7 in blocks of 262,144. A CPU is a fifth faster with blocks of 8,192
# than of 32,768, which exceed its cache.
_BLOCK = 1 << 13
_GPU_BLOCK = 1 << 18


class TableState(NamedTuple):
    """Optimizer state of a table.

    Attributes:
      rule_state: State of the row transformation; every leaf ``[rows, ...]``.
      position: Position of each row in the last batch that read it, int32 ``[rows]``; ``[0]`` for
        additive transformations.
    """

    rule_state: Any
    position: Int[Array, "rows"]


class GatheredRows(NamedTuple):
    """Rows that a batch reads, without duplicates.

    Attributes:
      rows: Row values, ``[m, dim]``.
      inverse: For each requested id, the index of its row in ``rows``, int32 ``[m]``; a constant
        while tracing if the transformation is additive.
      ids: Table index of each row; the number of table rows for duplicates, which are ignored.
      rule_state: State of the row transformation, every leaf ``[m, ...]``.
    """

    rows: Float[Array, "m dim"]
    inverse: Int[Array | np.ndarray, "m"]
    ids: Int[Array, "m"]
    rule_state: Any


def init(rule: RowTransformation, table: Float[Array, "n dim"]) -> TableState:
    """Returns the state of a table before the first step."""
    n_positions = 0 if rule.additive else len(table)
    return TableState(rule.init(table), jnp.zeros(n_positions, jnp.int32))


def gather(
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    ids: Int[Array, "m"],
    step: Int[Array, ""] | int,
    *,
    deterministic: bool = False,
) -> tuple[GatheredRows, TableState]:
    """Gathers rows with their pending lazy updates applied.

    Duplicate ids share one row, so that the gradient with respect to
    ``gathered.rows[gathered.inverse]`` is summed over them.

    Args:
      rule: The row transformation.
      table: The table.
      state: Its state.
      ids: Row indices in ``[0, n)``; ``n`` for none.
      step: Number of completed steps.
      deterministic: Whether a duplicate id's row is that of its last position, on which all devices
        agree; otherwise of any position, which is faster. Static.

    Returns:
      The rows and the state for :func:`scatter`.
    """
    step = jnp.asarray(step, jnp.int32)
    own = positions(ids)
    rows, rule_state = jax.tree.map(lambda x: x[ids], (table, state.rule_state))
    if rule.additive:
        return GatheredRows(rows, own, ids, rule_state), state
    position, inverse = represent(state.position, ids, deterministic)
    if rule.flush is not None:
        rows, rule_state = rule.flush(rows, rule_state, step)
    unique_ids = jnp.where(inverse == own, ids, len(table))
    gathered = GatheredRows(rows, inverse, unique_ids, rule_state)
    return gathered, state._replace(position=position)


def positions(ids: Int[Array, "m"]) -> Int[np.ndarray, "m"]:
    """Positions of the ids in their batch, as a constant."""
    return np.arange(len(ids), dtype=np.int32)


def represent(
    position: Int[Array, "n"], ids: Int[Array, "m"], deterministic: bool
) -> tuple[Int[Array, "n"], Int[Array, "m"]]:
    """Chooses one position of the batch for each id, see ``deterministic`` of :func:`gather`.

    Returns:
      The last position of each row, and the position that represents each id; its own for ids
      that are no row.
    """
    own = positions(ids)
    # Each id writes its position; the one that remains represents all duplicates.
    if deterministic:
        position = position.at[ids].set(-1).at[ids].max(own)
    else:
        position = position.at[ids].set(own)
    return position, jnp.where(ids < len(position), position[ids], own)


def scatter(
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    gathered: GatheredRows,
    grads: Float[Array, "m dim"],
    step: Int[Array, ""] | int,
) -> tuple[Float[Array, "n dim"], TableState]:
    """Updates gathered rows and scatters them into the table.

    Args:
      rule: The row transformation.
      table: The table.
      state: State returned by :func:`gather`.
      gathered: The rows.
      grads: Gradients with respect to ``gathered.rows``.
      step: Number of completed steps.

    Returns:
      The table and its state after the step.
    """
    step = jnp.asarray(step, jnp.int32)
    updates, rule_state = rule.update(grads, gathered.rule_state, gathered.rows, step)
    if rule.additive:
        return table.at[gathered.ids].add(updates.astype(table.dtype), mode="drop"), state

    def put(full: Array, rows: Array) -> Array:
        return full.at[gathered.ids].set(rows, mode="drop")

    table = put(table, (gathered.rows + updates).astype(table.dtype))
    return table, state._replace(rule_state=jax.tree.map(put, state.rule_state, rule_state))


def flush_lazy_updates(
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    step: Int[Array, ""] | int,
) -> tuple[Float[Array, "n dim"], TableState]:
    """Applies the pending lazy updates of all rows, before the whole table is read."""
    flush = rule.flush
    if flush is None:
        return table, state
    step, n = jnp.asarray(step, jnp.int32), len(table)

    def flush_all(size: int, by_slices: bool, *tables: Any) -> Any:
        size = min(n, size)

        def read(tables: Any, start: Array) -> Any:
            # A fused update would read slices again after parts of them were overwritten, and XLA
            # would copy all rows to avoid this. The barrier prevents it, except on CPUs with JAX
            # 0.7: these gather the rows by index, at the same cost.
            if not by_slices:
                ids = start + jnp.arange(size, dtype=jnp.int32)
                return jax.tree.map(lambda x: x[ids], tables)
            block = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size), tables)
            return lax.optimization_barrier(block)

        def flush_block(i: Array, tables: Any) -> Any:
            # The last block starts early enough to be full, since a flush is idempotent.
            start = jnp.minimum(i * size, n - size)
            rows, rule_state = read(tables, start)
            return jax.tree.map(
                lambda x, y: lax.dynamic_update_slice_in_dim(x, y, start, 0),
                tables, flush(rows, rule_state, step),
            )  # fmt: skip

        return lax.fori_loop(0, -(-n // size), flush_block, tables)

    on_gpu = partial(flush_all, _GPU_BLOCK, True)
    table, rule_state = lax.platform_dependent(
        table, state.rule_state,
        cuda=on_gpu, rocm=on_gpu, tpu=partial(flush_all, _BLOCK, True),
        default=partial(flush_all, _BLOCK, False),
    )  # fmt: skip
    return table, state._replace(rule_state=rule_state)
