"""The devices of ``--mesh``."""

import math
import re

import jax
import numpy as np
from jax.sharding import Mesh

_AXES = ("data", "table")


def parse_mesh(spec: str | None) -> dict[str, int]:
    """Devices along each axis; none without a mesh.

    >>> parse_mesh("data=4,table=2")
    {'data': 4, 'table': 2}

    Raises:
      ValueError: If ``spec`` does not say so.
    """
    if spec is None:
        return {}
    axes: dict[str, int] = {}
    for part in spec.split(","):
        found = re.fullmatch(r"(\w+)=(\d+)", part)
        if found is None or found[1] not in _AXES or found[1] in axes or not int(found[2]):
            raise ValueError(
                f"--mesh takes the number of devices along data and table, such as "
                f"data=4,table=2, got {spec}."
            )
        axes[found[1]] = int(found[2])
    return {axis: axes.get(axis, 1) for axis in _AXES}


def mesh_of(spec: str | None) -> Mesh | None:
    """The mesh, on the first of the devices that there are.

    Without ``spec`` there is none, but several processes spread batches over all devices.

    Raises:
      ValueError: If ``spec`` says nothing of the kind, asks for more devices than there are, or
        leaves out some of those that several processes have.
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
            f"--mesh {spec} must take all {len(devices)} devices of {n_processes} processes, got "
            f"{wanted}."
        )
    return Mesh(np.array(devices[:wanted]).reshape(*axes.values()), tuple(axes))


def check_devices(device: str, mesh: str | None, batch_size: int) -> None:
    """Refuses devices that are not there, and batches that they cannot share.

    Args:
      device: What ``--device`` asks for, or any.
      mesh: See :func:`mesh_of`.
      batch_size: Examples of a step.

    Raises:
      ValueError: With the flag that does not go.
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
