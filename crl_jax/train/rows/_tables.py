"""Gather and scatter of optimized table rows, at a cost independent of the table size.

On a mesh with an axis ``table``, every device receives all ids and handles the rows of its shard:
row values are sent to the other devices, gradients are replicated, and optimizer states are never
sent. Communication therefore depends on the batch size only.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from ..._mesh import TABLE, filled
from ._rules import RowTransformation

# Number of rows flushed at a time: all at once would need the memory of a second table and state.
_BLOCK = 1 << 15


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
    # Each id writes its position; the one that remains represents all duplicates.
    if deterministic:
        position = state.position.at[ids].set(-1).at[ids].max(own)
    else:
        position = state.position.at[ids].set(own)
    inverse = position[ids]
    if rule.flush is not None:
        rows, rule_state = rule.flush(rows, rule_state, step)
    unique_ids = jnp.where(inverse == own, ids, len(table))
    gathered = GatheredRows(rows, inverse, unique_ids, rule_state)
    return gathered, state._replace(position=position)


def positions(ids: Int[Array, "m"]) -> Int[np.ndarray, "m"]:
    """Positions of the ids in their batch, as a constant."""
    return np.arange(len(ids), dtype=np.int32)


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
    step, n, size = jnp.asarray(step, jnp.int32), len(table), min(len(table), _BLOCK)

    def flush_block(i: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        # The last block starts early enough to be full, since a flush is idempotent. Gathers
        # instead of slices: XLA would read slices again after parts of them were overwritten, and
        # copy all rows to avoid this.
        ids = jnp.minimum(i * size, n - size) + jnp.arange(size, dtype=jnp.int32)
        rows, rule_state = jax.tree.map(lambda x: x[ids], carry)
        return jax.tree.map(lambda x, y: x.at[ids].set(y), carry, flush(rows, rule_state, step))

    table, rule_state = jax.lax.fori_loop(0, -(-n // size), flush_block, (table, state.rule_state))
    return table, state._replace(rule_state=rule_state)


_SHARDED, _REPLICATED = PartitionSpec(TABLE), PartitionSpec()
# Batches are replicated; ids and states of gathered rows have a part per device, which is valid for
# the rows of that device's shard.
_GATHERED = GatheredRows(_REPLICATED, _REPLICATED, _SHARDED, _SHARDED)  # type: ignore[arg-type]


def gather_sharded(
    mesh: Mesh,
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    ids: Int[Array, "m"],
    step: Int[Array, ""] | int,
) -> tuple[GatheredRows, TableState]:
    """:func:`gather` from a table sharded along the axis ``table`` of a mesh.

    The result is input of :func:`scatter_sharded` on the same mesh.
    """
    ids = _replicate(mesh, ids)
    if TABLE not in mesh.shape:
        return gather(rule, table, state, ids, step, deterministic=True)

    def gather_shard(table: Array, state: TableState, ids: Array, step: Array) -> Any:
        n = len(table)
        ids = ids - n * lax.axis_index(TABLE)
        is_local = (ids >= 0) & (ids < n)
        gathered, state = gather(
            rule, table, state, jnp.where(is_local, ids, n), step, deterministic=True
        )
        rows = lax.psum(jnp.where(is_local[:, None], gathered.rows, 0), TABLE)
        inverse = gathered.inverse
        if not rule.additive:
            inverse = lax.psum(jnp.where(is_local, inverse, 0), TABLE)
        return gathered._replace(rows=rows, inverse=jnp.asarray(inverse)), state

    gathered, after = _on_shards(
        mesh, gather_shard, (table, state), (ids, jnp.asarray(step, jnp.int32)),
        (_REPLICATED, _REPLICATED), (_GATHERED, _SHARDED),
    )  # fmt: skip
    if rule.additive:
        gathered = gathered._replace(inverse=positions(ids))
    return gathered, _unpad(after, state)


def scatter_sharded(
    mesh: Mesh,
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    gathered: GatheredRows,
    grads: Float[Array, "m dim"],
    step: Int[Array, ""] | int,
) -> tuple[Float[Array, "n dim"], TableState]:
    """:func:`scatter` of the rows returned by :func:`gather_sharded`."""
    grads = _replicate(mesh, grads)
    if TABLE not in mesh.shape:
        return scatter(rule, table, state, gathered, grads, step)
    gathered = gathered._replace(inverse=jnp.asarray(gathered.inverse))
    after = _on_shards(
        mesh, partial(scatter, rule), (table, state),
        (gathered, grads, jnp.asarray(step, jnp.int32)),
        (_GATHERED, _REPLICATED, _REPLICATED), (_SHARDED, _SHARDED),
    )  # fmt: skip
    return _unpad(after, (table, state))


def flush_lazy_updates_sharded(
    mesh: Mesh,
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    step: Int[Array, ""] | int,
) -> tuple[Float[Array, "n dim"], TableState]:
    """:func:`flush_lazy_updates` of a table sharded along the axis ``table`` of a mesh."""
    if TABLE not in mesh.shape or rule.flush is None:
        return flush_lazy_updates(rule, table, state, step)
    flush = partial(flush_lazy_updates, rule)
    after = _on_shards(
        mesh, flush, (table, state), (jnp.asarray(step, jnp.int32),), (_REPLICATED,),
        (_SHARDED, _SHARDED),
    )  # fmt: skip
    return _unpad(after, (table, state))


def _on_shards(
    mesh: Mesh, function: Callable[..., Any], tables: Any, arguments: Any, specs: Any, outs: Any
) -> Any:
    """Calls ``function(*tables, *arguments)`` on each device.

    Tables are padded to equally many rows per device, which is their layout in memory anyway.
    """
    padded = jax.tree.map(lambda x: filled(x, mesh.shape[TABLE]), tables)
    return jax.shard_map(
        function, mesh=mesh, in_specs=(_SHARDED, _SHARDED, *specs), out_specs=outs, check_vma=False
    )(*padded, *arguments)


def _replicate(mesh: Mesh, x: Array) -> Array:
    return lax.with_sharding_constraint(x, NamedSharding(mesh, _REPLICATED))


def _unpad(tree: Any, like: Any) -> Any:
    return jax.tree.map(lambda x, old: x[: len(old)], tree, like)
