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
        match = re.fullmatch(r"(\w+)=(\d+)", part)
        if match is None or match[1] not in _AXES or match[1] in axes or not int(match[2]):
            raise ValueError(
                f"--mesh must be the number of devices along data and table, such as "
                f"data=4,table=2, got {spec}."
            )
        axes[match[1]] = int(match[2])
    return {axis: axes.get(axis, 1) for axis in _AXES}


def make_mesh(spec: str | None) -> Mesh | None:
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
    n_needed = math.prod(axes.values())
    if n_needed > len(devices):
        raise ValueError(
            f"--mesh {spec} asks for {n_needed} devices: JAX found {len(devices)} here."
        )
    if n_processes > 1 and n_needed < len(devices):
        raise ValueError(
            f"--mesh {spec} must use all {len(devices)} devices of {n_processes} processes, got "
            f"{n_needed}."
        )
    return Mesh(np.array(devices[:n_needed]).reshape(*axes.values()), tuple(axes))


def check_devices(device: str, mesh: str | None, batch_size: int) -> None:
    """Checks that the devices are available, and that a batch can be sharded over them.

    Args:
      device: Value of ``--device``.
      mesh: See :func:`make_mesh`.
      batch_size: Number of examples per step.

    Raises:
      ValueError: If not.
    """
    backend = jax.default_backend()
    if device not in ("any", backend):
        raise ValueError(f"--device {device}: JAX found only {backend} here.")
    devices = make_mesh(mesh)
    if devices is not None and batch_size % devices.shape["data"]:
        raise ValueError(
            f"--batch-size must be a multiple of the {devices.shape['data']} devices along data of "
            f"--mesh, got {batch_size}."
        )
