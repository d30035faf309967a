"""Sharding of the training state over a mesh.

XLA's partitioner does the rest: a look-up in a table sharded by row is a masked gather per device
and a sum over devices, and row updates stay on the device of the row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from .._mesh import LANES, TABLE, filled, row_axes, row_parts
from ._optimizers import AnyOptimizer, RowOptimizer
from ._task import Task
from .rows._packed import IN_PLACE

KeyPath = tuple[Any, ...]


@dataclass(frozen=True)
class Sharding:
    """Sharding of state trees: tables by row, all else replicated.

    The rows are sharded along the axis ``table`` of the mesh, and over all axes with a
    :class:`RowOptimizer`, see :func:`crl_jax._mesh.row_axes`.

    A leaf is sharded with a table if its path contains the table's path and its number of rows is
    that of the table. This covers optimizer moments and copies of the parameters in hooks.

    Between compiled calls, JAX needs equally many rows per device, so tables are padded with rows
    of zeros at their ends; inside a call the padding is removed. Large tables of a
    :class:`RowOptimizer` are padded to multiples of 128 rows per TPU, which it packs in place.
    """

    mesh: Mesh
    rows: tuple[tuple[KeyPath, int], ...]  # path and number of rows of each sharded table
    spread: bool = False  # over all axes of the mesh

    @classmethod
    def from_task(cls, mesh: Mesh, task: Task, optimizer: AnyOptimizer) -> "Sharding":
        """Shards the tables of ``task`` if the mesh has an axis for them."""
        if TABLE not in mesh.shape:
            return cls(mesh, ())
        params, _ = jax.eval_shape(task.init, jax.random.key(0))
        leaves = {
            jax.tree_util.keystr(path, simple=True, separator="."): (path, len(leaf))
            for path, leaf in jax.tree.leaves_with_path(params)
            if leaf.ndim
        }
        if missing := [path for path in task.table_paths() if path not in leaves]:
            raise ValueError(
                f"`table_paths` must be paths of parameters, which are {sorted(leaves)}, "
                f"got {missing}."
            )
        tables = tuple(leaves[path] for path in task.table_paths())
        return cls(mesh, tables, isinstance(optimizer, RowOptimizer))

    @property
    def parts(self) -> int:
        """Number of shards of each table."""
        return row_parts(self.mesh, spread=self.spread)

    def padded_rows(self, n: int) -> int:
        """Number of rows of a table of ``n`` rows between compiled calls."""
        is_packed = self.spread and n >= IN_PLACE * self.parts and _platform(self.mesh) == "tpu"
        return n + -n % (self.parts * (LANES if is_packed else 1))

    def shardings(self, tree: Any, n_batch_axes: int = 1) -> Any:
        """Returns the sharding of each leaf of run states."""
        return self._map(lambda leaf, n, sharding: sharding, tree, n_batch_axes)

    def pad(self, runs: Any) -> Any:
        """Pads the tables of run states; inside a compiled call."""

        def grow(leaf: Array, n: int, sharding: NamedSharding) -> Array:
            axis = len(sharding.spec) - 1
            leaf = filled(leaf, self.padded_rows(n), axis) if n else leaf
            return jax.lax.with_sharding_constraint(leaf, sharding)

        return self._map(grow, runs)

    def unpad(self, tree: Any, n_batch_axes: int = 1) -> Any:
        """Removes the padding inside a compiled call; ``n_batch_axes`` is 0 for a single run."""

        def shrink(leaf: Array, n: int, sharding: NamedSharding) -> Array:
            axis = len(sharding.spec) - 1
            leaf = jax.lax.slice_in_dim(leaf, 0, n, axis=axis) if n else leaf
            return jax.lax.with_sharding_constraint(leaf, sharding)

        return self._map(shrink, tree, n_batch_axes)

    def replicate(self, tree: Any) -> Any:
        """Constrains arrays to be replicated; inside a compiled call."""
        sharding = NamedSharding(self.mesh, PartitionSpec())
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, sharding), tree)

    def remove_padding(self, runs: Any) -> Any:
        """Removes the padding outside of compiled calls; unpadded tables are not copied."""

        def cut(leaf: Any, n: int, sharding: NamedSharding) -> Any:
            del sharding
            return leaf[:, :n] if n and leaf.shape[1] > n else leaf

        return self._map(cut, runs)

    def device_put(self, runs: Any) -> Any:
        """Pads unpadded run states and transfers them to the devices."""

        def put(leaf: Any, n: int, sharding: NamedSharding) -> Any:
            return _put(filled(leaf, self.padded_rows(n), 1) if n else leaf, sharding)

        return self._map(put, runs)

    def _map(
        self, fn: Callable[[Any, int, NamedSharding], Any], tree: Any, n_batch_axes: int = 1
    ) -> Any:
        def one(path: KeyPath, leaf: Any) -> Any:
            n = self._table_rows(path, leaf, n_batch_axes)
            axes = row_axes(self.mesh, spread=self.spread)
            spec = PartitionSpec(*[None] * n_batch_axes, axes) if n else PartitionSpec()
            return fn(leaf, n, NamedSharding(self.mesh, spec))

        return jax.tree.map_with_path(one, tree)

    def _table_rows(self, path: KeyPath, leaf: Any, axis: int) -> int:
        """Number of rows of the table that a leaf belongs to; 0 if there is none."""
        for table, n in self.rows:
            within = any(path[i : i + len(table)] == table for i in range(len(path)))
            if within and leaf.ndim > axis and leaf.shape[axis] in (n, self.padded_rows(n)):
                return n
        return 0


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Replicates arrays that every process has over a mesh; Python numbers are unchanged.

    Arrays that are already on the mesh keep their sharding.
    """
    sharding = NamedSharding(mesh, PartitionSpec())

    def put(x: Any) -> Any:
        is_on_mesh = isinstance(x, Array) and getattr(x.sharding, "mesh", None) == mesh
        return _put(x, sharding) if isinstance(x, Array) and not is_on_mesh else x

    return jax.tree.map(put, tree)


def _put(leaf: Any, sharding: NamedSharding) -> Array:
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if isinstance(leaf, Array) and not leaf.is_fully_addressable:  # already sharded
        return leaf
    # Each process provides its own shards: device_put would first compare the values of all
    # processes.
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda part: host[part])


def _platform(mesh: Mesh) -> str:
    return mesh.devices.flat[0].platform
