"""The axes of a mesh of devices."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Shaped

DATA, TABLE = "data", "table"
"""The examples of a batch are spread over the first axis, rows of tables over the second."""


def axis_of(mesh: Mesh, name: str) -> str | None:
    """The axis, if the mesh has it."""
    return name if name in mesh.shape else None


def devices_along(mesh: Mesh | None, name: str) -> int:
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
