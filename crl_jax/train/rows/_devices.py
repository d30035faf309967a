"""The same for tables whose rows lie on several devices.

All devices get all ids, and each looks after the rows that it holds: their values go from it to
the others, and gradients come back. What a rule keeps of a row stays on its device. So what is
sent has the size of the batch, whatever that of the table.
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
from ._tables import GatheredRows, TableState
from ._transformation import RowTransformation

_BY_ROWS, _WHOLE = PartitionSpec(TABLE), PartitionSpec()
# The batch is the same everywhere. Whose rows stand where, and what is kept of them, is known
# where they lie: these arrays have a part for each device.
_OPENED = GatheredRows(rows=_WHOLE, at=_WHOLE, ids=_BY_ROWS, rule=_BY_ROWS)  # type: ignore[arg-type]


def read_on(
    mesh: Mesh,
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    ids: Int[Array, "m"],
    step: Int[Array, ""] | int,
) -> tuple[GatheredRows, TableState]:
    """:func:`read` where the rows lie along the axis ``table`` of a mesh.

    What is returned is for :func:`write_on` with the same mesh.
    """
    ids = _everywhere(mesh, ids)
    if TABLE not in mesh.shape:
        return local.read(rule, table, state, ids, step, agree=True)

    def here(table: Array, state: TableState, ids: Array, step: Array) -> Any:
        n = len(table)
        ids = ids - n * lax.axis_index(TABLE)
        held = (ids >= 0) & (ids < n)
        opened, state = local.read(rule, table, state, jnp.where(held, ids, n), step, agree=True)
        rows = lax.psum(jnp.where(held[:, None], opened.rows, 0), TABLE)
        at = opened.at if rule.additive else lax.psum(jnp.where(held, opened.at, 0), TABLE)
        return GatheredRows(rows, jnp.asarray(at), opened.ids, opened.rule), state

    specs = (_BY_ROWS, _BY_ROWS, _WHOLE, _WHOLE), (_OPENED, _BY_ROWS)
    opened, after = _on(mesh, here, specs)(*_filled(mesh, (table, state)), ids, _step(step))
    if rule.additive:
        opened = opened._replace(at=local.places(ids))
    return opened, _cut(after, state)


def write_on(
    mesh: Mesh,
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    opened: GatheredRows,
    grads: Float[Array, "m dim"],
    step: Int[Array, ""] | int,
) -> tuple[Float[Array, "n dim"], TableState]:
    """:func:`write` of what :func:`read_on` opened."""
    grads = _everywhere(mesh, grads)
    if TABLE not in mesh.shape:
        return local.write(rule, table, state, opened, grads, step)
    opened = opened._replace(at=jnp.asarray(opened.at))
    specs = (_BY_ROWS, _BY_ROWS, _OPENED, _WHOLE, _WHOLE), (_BY_ROWS, _BY_ROWS)
    write = _on(mesh, partial(local.write, rule), specs)
    after = write(*_filled(mesh, (table, state)), opened, grads, _step(step))
    return _cut(after, (table, state))


def flush_lazy_updates_on(
    mesh: Mesh,
    rule: RowTransformation,
    table: Float[Array, "n dim"],
    state: TableState,
    step: Int[Array, ""] | int,
) -> tuple[Float[Array, "n dim"], TableState]:
    """:func:`flush_lazy_updates` where the rows lie along the axis ``table`` of a mesh."""
    if TABLE not in mesh.shape or rule.wake is None:
        return local.flush_lazy_updates(rule, table, state, step)
    specs = (_BY_ROWS, _BY_ROWS, _WHOLE), (_BY_ROWS, _BY_ROWS)
    wake = _on(mesh, partial(local.flush_lazy_updates, rule), specs)
    return _cut(wake(*_filled(mesh, (table, state)), _step(step)), (table, state))


def _on(mesh: Mesh, function: Callable[..., Any], specs: tuple[Any, Any]) -> Callable[..., Any]:
    in_specs, out_specs = specs
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def _step(step: Int[Array, ""] | int) -> Int[Array, ""]:
    return jnp.asarray(step, jnp.int32)


def _everywhere(mesh: Mesh, x: Array) -> Array:
    return lax.with_sharding_constraint(x, NamedSharding(mesh, _WHOLE))


def _filled(mesh: Mesh, tree: Any) -> Any:
    """With as many rows on each device: the partitioner has the same in memory anyway."""
    return jax.tree.map(lambda x: filled(x, mesh.shape[TABLE]), tree)


def _cut(tree: Any, like: Any) -> Any:
    return jax.tree.map(lambda x, old: x[: len(old)], tree, like)
