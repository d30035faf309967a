"""Several processes that train together: ``--processes``."""

import os
import re
from typing import Any

import jax

# Where Kubeflow's runtime for JAX, and others after it, say who there is.
_VARIABLES = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
_SPEC = re.compile(r"(\d+)/(\d+)@([^\s:]+:\d+)")


def join(spec: str | None) -> None:
    """Joins the other processes, before any device is asked for.

    Args:
      spec: ``auto`` where the cluster says who there is: a TPU pod, Slurm or Open MPI (under which
        each process has one GPU), or the variables ``JAX_COORDINATOR_ADDRESS``,
        ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``. Else ``I/N@HOST:PORT``: this is process I of
        N, from 0, and the first listens on that port of its host. None for a process by itself.

    Raises:
      ValueError: If ``spec`` says nothing of the kind, or the others cannot be reached.
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
                "--processes takes auto, or which of how many this is, from 0, and where the first "
                f"listens, such as 0/2@localhost:1234, got {spec}."
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
    """Whether there are other processes."""
    return jax.distributed.is_initialized()


def is_first() -> bool:
    """Whether this process is the one that prints and writes."""
    return jax.process_index() == 0


def gathered(tree: Any) -> Any:
    """Arrays that lie on the devices of several processes, whole in the memory of each."""
    if jax.process_count() == 1:
        return tree
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(tree, tiled=True)
