"""Gather and scatter of tables that are sharded by row.

Every device receives all ids and handles the rows of its shard: row values are sent to the other
devices, gradients are replicated, and optimizer states are never sent. Communication therefore
depends on the batch size only.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from ..._mesh import TABLE, filled
from . import _tables as local
from ._rules import RowTransformation
from ._tables import GatheredRows, TableState

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
        return local.gather(rule, table, state, ids, step, deterministic=True)

    def gather_shard(table: Array, state: TableState, ids: Array, step: Array) -> Any:
        n = len(table)
        ids = ids - n * lax.axis_index(TABLE)
        is_local = (ids >= 0) & (ids < n)
        gathered, state = local.gather(
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
        gathered = gathered._replace(inverse=local.positions(ids))
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
        return local.scatter(rule, table, state, gathered, grads, step)
    gathered = gathered._replace(inverse=jnp.asarray(gathered.inverse))
    after = _on_shards(
        mesh, partial(local.scatter, rule), (table, state),
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
        return local.flush_lazy_updates(rule, table, state, step)
    flush = partial(local.flush_lazy_updates, rule)
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
