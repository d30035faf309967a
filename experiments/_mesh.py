"""Device mesh of ``--mesh``."""

import math
import re

import jax
import numpy as np
from jax.sharding import Mesh

_AXES = ("data", "table")


def parse_mesh(spec: str | None) -> dict[str, int]:
    """Returns the number of devices along each axis; empty without a mesh.

    >>> parse_mesh("data=4,table=2")
    {'data': 4, 'table': 2}

    Raises:
      ValueError: If ``spec`` has another form.
    """
    if spec is None:
        return {}
    axes: dict[str, int] = {}
    for part in spec.split(","):
        found = re.fullmatch(r"(\w+)=(\d+)", part)
        if found is None or found[1] not in _AXES or found[1] in axes or not int(found[2]):
            raise ValueError(
                f"--mesh must be the number of devices along data and table, such as "
                f"data=4,table=2, got {spec}."
            )
        axes[found[1]] = int(found[2])
    return {axis: axes.get(axis, 1) for axis in _AXES}


def mesh_of(spec: str | None) -> Mesh | None:
    """Returns the mesh, on the first available devices.

    Without ``spec`` there is none, except that several processes shard batches over all devices.

    Raises:
      ValueError: If ``spec`` is invalid, or needs more devices than are available, or fewer than
        those of several processes.
    """
    devices, n_processes = jax.devices(), jax.process_count()
    if spec is None and n_processes > 1:
        spec = f"data={len(devices)}"
    axes = parse_mesh(spec)
    if not axes:
        return None
    wanted = math.prod(axes.values())
    if wanted > len(devices):
        raise ValueError(f"--mesh {spec} asks for {wanted} devices: JAX found {len(devices)} here.")
    if n_processes > 1 and wanted < len(devices):
        raise ValueError(
            f"--mesh {spec} must use all {len(devices)} devices of {n_processes} processes, got "
            f"{wanted}."
        )
    return Mesh(np.array(devices[:wanted]).reshape(*axes.values()), tuple(axes))


def check_devices(device: str, mesh: str | None, batch_size: int) -> None:
    """Checks that the devices are available, and that a batch can be sharded over them.

    Args:
      device: Value of ``--device``.
      mesh: See :func:`mesh_of`.
      batch_size: Number of examples per step.

    Raises:
      ValueError: If not.
    """
    found = jax.default_backend()
    if device not in ("any", found):
        raise ValueError(f"--device {device}: JAX found only {found} here.")
    devices = mesh_of(mesh)
    if devices is not None and batch_size % devices.shape["data"]:
        raise ValueError(
            f"--batch-size must be a multiple of the {devices.shape['data']} devices along data of "
            f"--mesh, got {batch_size}."
        )
