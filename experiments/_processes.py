"""Multi-process training: ``--processes``."""

import os
import re
from pathlib import Path
from typing import Any

import jax

from crl_jax import train

# Environment variables set by Kubeflow's runtime for JAX and similar launchers.
_VARIABLES = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
_SPEC = re.compile(r"(\d+)/(\d+)@([^\s:]+:\d+)")


def join(spec: str | None) -> None:
    """Connects to the other processes; must precede any use of the devices.

    Args:
      spec: ``auto`` to detect the cluster: a TPU pod, Slurm or Open MPI (under which each process
        has one GPU), or the variables ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and
        ``JAX_PROCESS_ID``. Or ``I/N@HOST:PORT``: this is process I of N, from 0, and the first
        process listens on this port of its host. None for a single process.

    Raises:
      ValueError: If ``spec`` has another form, or the other processes cannot be reached.
    """
    if spec is None:
        return
    given: dict[str, Any] = {}
    if spec == "auto" and all(name in os.environ for name in _VARIABLES.values()):
        given = {argument: os.environ[name] for argument, name in _VARIABLES.items()}
        for argument in ("num_processes", "process_id"):
            if not given[argument].isdigit():
                raise ValueError(
                    f"{_VARIABLES[argument]} must be a whole number, got {given[argument]!r}."
                )
            given[argument] = int(given[argument])
    elif spec != "auto":
        found = _SPEC.fullmatch(spec)
        if found is None or int(found[1]) >= int(found[2]):
            raise ValueError(
                "--processes must be auto, or INDEX/COUNT@HOST:PORT with the address of the first "
                f"process, such as 0/2@localhost:1234, got {spec}."
            )
        given = {
            "process_id": int(found[1]), "num_processes": int(found[2]),
            "coordinator_address": found[3],
        }  # fmt: skip
    try:
        jax.distributed.initialize(**given)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"--processes {spec}: {error}") from error


def joined() -> bool:
    """Whether several processes are connected."""
    return jax.distributed.is_initialized()


def is_first() -> bool:
    """Whether this process prints and writes the run directory."""
    return jax.process_index() == 0


def gathered(tree: Any) -> Any:
    """Returns arrays that are sharded over several processes as arrays in the memory of each."""
    if jax.process_count() == 1:
        return tree
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(tree, tiled=True)


def checkpoint(path: Path, seconds: float) -> train.Callback:
    """Returns the checkpoint hook: one file, or a folder to which several processes write.

    Args:
      path: The ``.npz`` file; the folder has the same name without the suffix.
      seconds: Minimum number of seconds between two checkpoints.

    Raises:
      ValueError: If several processes are to resume from the file of one process.
    """
    folder = path.with_suffix("")
    if jax.process_count() == 1 and not folder.exists():
        return train.Checkpoint(path, seconds)
    if path.exists():
        raise ValueError(f"{path} was written by one process: resume without --processes.")
    return train.SharedCheckpoint(folder, seconds)
