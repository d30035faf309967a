"""The axes of a mesh of devices."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh
from jaxtyping import Array, Shaped

DATA, TABLE = "data", "table"
"""The examples of a batch are spread over the first axis, rows of tables over the second."""


def mesh_axis(mesh: Mesh, name: str) -> str | None:
    """The axis, if the mesh has it."""
    return name if name in mesh.shape else None


def axis_size(mesh: Mesh | None, name: str) -> int:
    """How many parts an axis makes of what is spread over it; 1 without the axis, or a mesh."""
    return 1 if mesh is None else mesh.shape.get(name, 1)


def filled(
    x: Shaped[Array | np.ndarray, "..."], parts: int, axis: int = 0, value: float = 0.0
) -> Any:
    """``x`` with ``value`` behind its end, so that all parts of an axis are as long.

    Arrays of NumPy stay on the host.
    """
    more = -x.shape[axis] % parts
    if not more:
        return x
    widths = [(0, more if place == axis else 0) for place in range(x.ndim)]
    return (np if isinstance(x, np.ndarray) else jnp).pad(x, widths, constant_values=value)


def use_batch_mesh(mesh: Mesh | None) -> AbstractContextManager[Any]:
    """What is traced inside has its batches spread over a mesh, see :func:`batch_mesh`."""
    return nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def batch_mesh(n: int) -> AbstractMesh | None:
    """The mesh that n examples are spread over along the axis ``data``.

    None where none is at hand, where its axes are not left to the compiler, or where the examples
    do not come out even.
    """
    mesh = jax.sharding.get_abstract_mesh()
    is_whole = DATA in mesh.shape and n % mesh.shape[DATA] == 0
    return mesh if is_whole and all(of == AxisType.Auto for of in mesh.axis_types) else None
