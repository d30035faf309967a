"""Multi-process training: ``--processes``."""

import json
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from crl_jax import train

# Environment variables set by Kubeflow's runtime for JAX and similar launchers.
_VARIABLES = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
_SPEC = re.compile(r"(\d+)/(\d+)@([^\s:]+:\d+)")
_PATIENCE = 300
"""Number of seconds to wait for the other processes to start."""


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
    arguments: dict[str, Any] = {}
    if spec == "auto" and all(name in os.environ for name in _VARIABLES.values()):
        arguments = {argument: os.environ[name] for argument, name in _VARIABLES.items()}
        for argument in ("num_processes", "process_id"):
            if not arguments[argument].isdigit():
                raise ValueError(
                    f"{_VARIABLES[argument]} must be a whole number, got {arguments[argument]!r}."
                )
            arguments[argument] = int(arguments[argument])
    elif spec != "auto":
        match = _SPEC.fullmatch(spec)
        if match is None or int(match[1]) >= int(match[2]):
            raise ValueError(
                "--processes must be auto, or INDEX/COUNT@HOST:PORT with the address of the first "
                f"process, such as 0/2@localhost:1234, got {spec}."
            )
        arguments = {
            "process_id": int(match[1]), "num_processes": int(match[2]),
            "coordinator_address": match[3],
        }  # fmt: skip
    host = arguments.get("coordinator_address", "the address that the cluster gives")
    peers = f"the other processes of --processes {spec}, which meet at {host}"
    sys.stderr.write(f"waiting for {peers}\n")
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        with _limit(_PATIENCE, f"{peers}, did not all start within {_PATIENCE} seconds."):
            jax.distributed.initialize(**arguments, initialization_timeout=2 * _PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"--processes {spec}: {error}") from error
    # JAX's own handler only informs the program of the signal.
    signal.signal(signal.SIGTERM, terminate)


@contextmanager
def _limit(seconds: float, message: str) -> Iterator[None]:
    """Ends the program with a message if the body takes longer.

    When JAX gives up, it aborts the program with a C++ stack trace, which cannot be caught.
    """

    def end() -> None:
        sys.stderr.write(f"error: {message}\n")
        sys.stderr.flush()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check_same(settings: dict[str, dict[str, Any]]) -> None:
    """Compares the settings of all processes; each process calls it.

    Args:
      settings: JSON values by section and name.

    Raises:
      ValueError: In every process, if the settings of two processes differ. The message names the
        first difference.
    """
    if jax.process_count() == 1:
        return
    from jax.experimental.multihost_utils import process_allgather

    encoded = json.dumps(settings).encode()
    longest = int(process_allgather(np.array(len(encoded), np.int32)).max())
    padded = process_allgather(np.frombuffer(encoded.ljust(longest), np.uint8))
    first, *others = (json.loads(bytes(row)) for row in np.asarray(padded))
    for process, other in enumerate(others, 1):
        for section, values in other.items():
            for name, value in values.items():
                if value != first[section][name]:
                    raise ValueError(
                        f"--processes: all need the same flags and data, but {name} is "
                        f"{first[section][name]} in process 0 and {value} in process {process}."
                    )


def is_distributed() -> bool:
    """Whether several processes are connected."""
    return jax.distributed.is_initialized()


def is_first() -> bool:
    """Whether this process prints and writes the run directory."""
    return jax.process_index() == 0


def gather(tree: Any) -> Any:
    """Returns arrays that are sharded over several processes as arrays in the memory of each."""
    if jax.process_count() == 1:
        return tree
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(tree, tiled=True)


def broadcast_from_first(number: float) -> float:
    """Returns the number of the first process, for decisions that all must take alike."""
    if jax.process_count() == 1:
        return number
    from jax.experimental.multihost_utils import broadcast_one_to_all

    return float(broadcast_one_to_all(np.float32(number)))


def remove_checkpoint(path: Path) -> None:
    """Removes what the hook of :func:`checkpoint` wrote; for the first process only."""
    path.unlink(missing_ok=True)
    if (folder := path.with_suffix("")).exists():
        shutil.rmtree(folder)


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
