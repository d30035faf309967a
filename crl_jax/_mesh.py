"""Device mesh axes and sharding helpers."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh
from jaxtyping import Array, Shaped

DATA, TABLE = "data", "table"
"""Mesh axes of data parallelism (examples of a batch) and of row-sharded embedding tables."""
LANES = 128
"""Number of lanes of a vector register of a TPU."""


def mesh_axis(mesh: Mesh, name: str) -> str | None:
    """Returns ``name`` if the mesh has this axis, else None."""
    return name if name in mesh.shape else None


def axis_size(mesh: Mesh | None, name: str) -> int:
    """Number of shards along a mesh axis; 1 without the axis or without a mesh."""
    return 1 if mesh is None else mesh.shape.get(name, 1)


def row_axes(mesh: Mesh | None, *, spread: bool = True) -> tuple[str, ...]:
    """Mesh axes over which the rows of a table are sharded; none without an axis ``table``.

    Row updates send the rows of a batch only, so with ``spread`` the rows are sharded over all
    axes, unless the axis ``table`` has one device. Otherwise they are sharded along ``table`` and
    replicated along ``data``.
    """
    if mesh is None or TABLE not in mesh.shape:
        return ()
    return tuple(mesh.shape) if spread and mesh.shape[TABLE] > 1 else (TABLE,)


def row_parts(mesh: Mesh, *, spread: bool = True) -> int:
    """Number of shards of the rows of a table, see :func:`row_axes`."""
    return math.prod(mesh.shape[name] for name in row_axes(mesh, spread=spread))


def filled(
    x: Shaped[Array | np.ndarray, "..."], parts: int, axis: int = 0, value: float = 0.0
) -> Any:
    """Pads an axis of ``x`` to a multiple of ``parts``; NumPy arrays stay on the host."""
    more = -x.shape[axis] % parts
    if not more:
        return x
    widths = [(0, more if i == axis else 0) for i in range(x.ndim)]
    return (np if isinstance(x, np.ndarray) else jnp).pad(x, widths, constant_values=value)


def use_batch_mesh(mesh: Mesh | None) -> AbstractContextManager[Any]:
    """Context manager in which traced batches are sharded over a mesh, see :func:`batch_mesh`."""
    return nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def batch_mesh(n: int) -> AbstractMesh | None:
    """Returns the mesh whose ``data`` axis shards a batch of ``n`` examples.

    None if no mesh with a ``data`` axis is set, if an axis is not of type ``Auto``, or if ``n`` is
    not divisible by the size of the ``data`` axis.
    """
    mesh = jax.sharding.get_abstract_mesh()
    is_whole = DATA in mesh.shape and n % mesh.shape[DATA] == 0
    return mesh if is_whole and all(kind == AxisType.Auto for kind in mesh.axis_types) else None
