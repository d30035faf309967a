"""Where the state of a training lies on the devices of a mesh.

The partitioner of XLA does the rest: where a table lies by rows, a look-up is a masked gather on
each device and a sum over them, and what a step does to rows stays with the rows.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from .._mesh import TABLE, axis_size, filled
from ._task import Task

KeyPath = tuple[Any, ...]


@dataclass(frozen=True)
class Sharding:
    """Which leaves of a state lie by rows on the devices, and how.

    A leaf goes with a table if the table's path among the parameters is part of its own and it
    has a row for each of the table's: the optimiser's averages do, and copies that hooks keep. All
    others lie whole on every device.

    Between compiled calls, JAX needs as many rows on each device. Rows of zeros fill tables up at
    their ends; within a call nobody sees them.

    Attributes:
      mesh: The devices.
      rows: The path of each table that is spread, and its number of rows.
    """

    mesh: Mesh
    rows: tuple[tuple[KeyPath, int], ...]

    @classmethod
    def from_task(cls, mesh: Mesh, task: Task) -> "Sharding":
        """What ``task`` says may be spread, if the mesh has an axis for it."""
        params, _ = jax.eval_shape(task.init, jax.random.key(0))
        spread = jax.tree.leaves(task.is_table(params)) if TABLE in mesh.shape else []
        leaves = jax.tree.leaves_with_path(params)
        return cls(mesh, tuple((path, len(x)) for (path, x), own in zip(leaves, spread) if own))

    def close(self, runs: Any) -> Any:
        """States of runs as they lie between compiled calls; within one."""
        return self._map(partial(_with_rows, full=True), runs)

    def open(self, tree: Any, lead: int = 1) -> Any:
        """The same without the rows that fill up; ``lead`` is 0 for one run by itself."""
        return self._map(partial(_with_rows, full=False), tree, lead)

    def everywhere(self, tree: Any) -> Any:
        """Arrays that lie whole on every device; within a compiled call."""
        over = NamedSharding(self.mesh, PartitionSpec())
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, over), tree)

    def whole(self, runs: Any) -> Any:
        """The same outside of compiled calls: a table that is not filled up stays where it is."""

        def cut(leaf: Any, n: int, over: NamedSharding) -> Any:
            del over
            return leaf[:, :n] if n and leaf.shape[1] > n else leaf

        return self._map(cut, runs)

    def place(self, runs: Any) -> Any:
        """Arrays that :meth:`whole` gave, or a file, put on the devices."""

        def put(leaf: Any, n: int, over: NamedSharding) -> Any:
            return _put(filled(leaf, axis_size(self.mesh, TABLE), 1) if n else leaf, over)

        return self._map(put, runs)

    def _map(self, change: Any, tree: Any, lead: int = 1) -> Any:
        def one(path: KeyPath, leaf: Any) -> Any:
            n = self._rows_of(path, leaf, lead)
            spec = PartitionSpec(*[None] * lead, TABLE) if n else PartitionSpec()
            return change(leaf, n, NamedSharding(self.mesh, spec))

        return jax.tree.map_with_path(one, tree)

    def _rows_of(self, path: KeyPath, leaf: Any, lead: int) -> int:
        """How many rows the table has that a leaf goes with; 0 for none."""
        for own, n in self.rows:
            within = any(path[i : i + len(own)] == own for i in range(len(path)))
            if within and leaf.ndim > lead and leaf.shape[lead] in (n, self._full(n)):
                return n
        return 0

    def _full(self, n: int) -> int:
        parts = axis_size(self.mesh, TABLE)
        return -(-n // parts) * parts


def put_everywhere(mesh: Mesh, tree: Any) -> Any:
    """Arrays that every process has, whole on every device; numbers stay numbers.

    What lies on the mesh already stays as it lies.
    """
    over = NamedSharding(mesh, PartitionSpec())

    def put(x: Any) -> Any:
        lies_there = isinstance(x, Array) and getattr(x.sharding, "mesh", None) == mesh
        return _put(x, over) if isinstance(x, Array) and not lies_there else x

    return jax.tree.map(put, tree)


def _put(leaf: Any, over: NamedSharding) -> Array:
    if over.is_fully_addressable:
        return jax.device_put(leaf, over)
    if isinstance(leaf, Array) and not leaf.is_fully_addressable:  # it lies there already
        return leaf
    # Each process puts its own part there: to compare all parts first would cost their size.
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, over, lambda part: host[part])


def _with_rows(leaf: Array, n: int, over: NamedSharding, *, full: bool) -> Array:
    if n:
        axis = over.spec.index(TABLE)
        if full:
            leaf = filled(leaf, over.mesh.shape[TABLE], axis)
        else:
            leaf = jax.lax.slice_in_dim(leaf, 0, n, axis=axis)
    return jax.lax.with_sharding_constraint(leaf, over)
