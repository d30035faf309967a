"""Row access on a mesh with an axis ``table``, and on a single device if the mesh is None.

Every device receives all ids and handles the rows of its shard: row values are sent to the other
devices, gradients are replicated, and optimizer states are never sent. Communication therefore
depends on the batch size only, and rows are sharded over all devices, see
:func:`crl_jax._mesh.row_axes`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from ..._mesh import filled, row_axes, row_parts
from ._packed import PackedState, gather_packed, pack, scatter_packed, unpack, unpacked_table
from ._rules import RowTransformation
from ._tables import GatheredRows, TableState, flush_lazy_updates, gather, scatter

_REPLICATED = PartitionSpec()


def gather_sharded(
    mesh: Mesh | None,
    rule: RowTransformation,
    table: Float[Array, "_ _"],
    state: TableState | PackedState,
    ids: Int[Array, "m"],
    step: Int[Array, ""] | int,
) -> tuple[GatheredRows, Any]:
    """:func:`gather` from a table whose rows are sharded over a mesh, or on a single device.

    The result is input of :func:`scatter_sharded` on the same mesh.
    """
    ids, step = _replicate(mesh, ids), jnp.asarray(step, jnp.int32)
    axes = row_axes(mesh)
    if mesh is None or not axes:
        return _gather(rule, table, state, ids, step, deterministic=mesh is not None)

    def gather_shard(table: Array, state: Any, ids: Array, step: Array) -> Any:
        n = state.packing.n_rows if isinstance(state, PackedState) else len(table)
        ids = ids - n * lax.axis_index(axes)
        is_local = (ids >= 0) & (ids < n)
        gathered, state = _gather(
            rule, table, state, jnp.where(is_local, ids, n), step, deterministic=True
        )
        rows = lax.psum(jnp.where(is_local[:, None], gathered.rows, 0), axes)
        inverse = gathered.inverse
        if not isinstance(inverse, np.ndarray):
            inverse = lax.psum(jnp.where(is_local, inverse, 0), axes)
        return gathered._replace(rows=rows, inverse=jnp.asarray(inverse)), state

    gathered, after = _on_shards(
        mesh, gather_shard, (table, state), (ids, step), (_REPLICATED, _REPLICATED),
        (_gathered(mesh), _sharded(mesh)),
    )  # fmt: skip
    if rule.additive or isinstance(state, PackedState):
        gathered = gathered._replace(inverse=np.arange(len(ids), dtype=np.int32))
    return gathered, _unpad(after, state)


def scatter_sharded(
    mesh: Mesh | None,
    rule: RowTransformation,
    table: Float[Array, "_ _"],
    state: TableState | PackedState,
    gathered: GatheredRows,
    grads: Float[Array, "m dim"],
    step: Int[Array, ""] | int,
) -> tuple[Float[Array, "_ _"], Any]:
    """:func:`scatter` of the rows returned by :func:`gather_sharded`."""
    grads, step = _replicate(mesh, grads), jnp.asarray(step, jnp.int32)
    put: Any = scatter_packed if isinstance(state, PackedState) else scatter
    if mesh is None or not row_axes(mesh):
        return put(rule, table, state, gathered, grads, step)
    gathered = gathered._replace(inverse=jnp.asarray(gathered.inverse))
    after = _on_shards(
        mesh, partial(put, rule), (table, state), (gathered, grads, step),
        (_gathered(mesh), _REPLICATED, _REPLICATED), (_sharded(mesh), _sharded(mesh)),
    )  # fmt: skip
    return _unpad(after, (table, state))


def flush_lazy_updates_sharded(
    mesh: Mesh | None,
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    step: Int[Array, ""] | int,
) -> tuple[Float[Array, "n dim"], TableState]:
    """:func:`flush_lazy_updates` of a table whose rows are sharded over a mesh."""
    if mesh is None or not row_axes(mesh) or rule.flush is None:
        return flush_lazy_updates(rule, table, state, step)
    after = _on_shards(
        mesh, partial(flush_lazy_updates, rule), (table, state), (jnp.asarray(step, jnp.int32),),
        (_REPLICATED,), (_sharded(mesh), _sharded(mesh)),
    )  # fmt: skip
    return _unpad(after, (table, state))


def pack_sharded(
    mesh: Mesh | None, table: Float[Array, "n dim"], state: TableState
) -> tuple[Array, Any]:
    """:func:`pack` of a table whose rows are sharded over a mesh; each device packs its shard."""
    if mesh is None or not row_axes(mesh):
        return pack(table, state)
    return _on_shards(mesh, pack, (table, state), (), (), _sharded(mesh))


def unpack_sharded(
    mesh: Mesh | None, table: Array, state: Any, into: tuple[Array, TableState]
) -> tuple[Array, TableState]:
    """Inverse of :func:`pack_sharded`, see :func:`unpack`."""
    if mesh is None or not row_axes(mesh):
        return unpack(table, state, into)
    sharded = _sharded(mesh)
    after = _on_shards(mesh, unpack, (table, state), (_padded(mesh, into),), (sharded,), sharded)
    return _unpad(after, into)


def unpacked_table_sharded(mesh: Mesh | None, table: Array, state: Any) -> Array:
    """:func:`unpacked_table` on a mesh; rows are padded to equally many per device."""
    if mesh is None or not row_axes(mesh):
        return unpacked_table(table, state)
    return _on_shards(mesh, unpacked_table, (table, state), (), (), _sharded(mesh))


def _gather(
    rule: RowTransformation, table: Array, state: Any, ids: Array, step: Array, deterministic: bool
) -> tuple[GatheredRows, Any]:
    if isinstance(state, PackedState):
        return gather_packed(rule, table, state, ids, step, deterministic)
    return gather(rule, table, state, ids, step, deterministic=deterministic)


def _sharded(mesh: Mesh) -> PartitionSpec:
    return PartitionSpec(row_axes(mesh))


def _gathered(mesh: Mesh) -> Any:
    """Batches are replicated; ids and states of gathered rows have a part per device.

    The part is valid for the rows of that device's shard.
    """
    sharded: Any = _sharded(mesh)
    return GatheredRows(_REPLICATED, _REPLICATED, sharded, sharded)  # type: ignore[arg-type]


def _on_shards(
    mesh: Mesh, function: Callable[..., Any], tables: Any, arguments: Any, specs: Any, outs: Any
) -> Any:
    """Calls ``function(*tables, *arguments)`` on each device.

    Tables are padded to equally many rows per device, which is their layout in memory anyway.
    """
    sharded = _sharded(mesh)
    return jax.shard_map(
        function, mesh=mesh, in_specs=(sharded, sharded, *specs), out_specs=outs, check_vma=False
    )(*_padded(mesh, tables), *arguments)


def _padded(mesh: Mesh, tables: Any) -> Any:
    return jax.tree.map(lambda x: filled(x, row_parts(mesh)), tables)


def _replicate(mesh: Mesh | None, x: Array) -> Array:
    return (
        x if mesh is None else (lax.with_sharding_constraint(x, NamedSharding(mesh, _REPLICATED)))
    )


def _unpad(tree: Any, like: Any) -> Any:
    return jax.tree.map(lambda x, old: x[: len(old)], tree, like)
