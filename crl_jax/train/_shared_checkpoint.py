"""Checkpoints that all processes write together, each what lies on its devices."""

import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ._callbacks import Callback, TrainingLoop, as_data, from_data

_STATE, _META = "state", "meta"


class SharedCheckpoint(Callback):
    """A :class:`Checkpoint` in a folder that all processes reach, by Orbax.

    No process needs memory for more than its own part. The training goes on with as many processes
    and devices as there then are, and any mesh. A folder holds one checkpoint, complete whenever
    the processes are killed.

    Args:
      folder: The folder. If it holds a checkpoint, training goes on from it.
      seconds: Least time between two writings, besides that at the end.

    Raises:
      ImportError: If ``orbax-checkpoint`` is not installed.
      ValueError: At the start, if the checkpoint is damaged or of another training.
    """

    def __init__(self, folder: str | os.PathLike[str], seconds: float = 5.0):
        import orbax.checkpoint

        self._orbax: Any = orbax.checkpoint
        self._folder, self._seconds = Path(folder).absolute(), seconds
        self._saved, self._identity = time.monotonic(), {}
        self._manager: Any = None

    def on_start(self, loop: TrainingLoop) -> None:
        """Reads the last checkpoint, if there is one."""
        orbax = self._orbax
        options = orbax.CheckpointManagerOptions(
            max_to_keep=1, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self._manager = orbax.CheckpointManager(self._folder, options=options)
        self._saved, self._identity = time.monotonic(), loop.identity()
        last = self._manager.latest_step()
        if last is None:
            return
        meta = self._read(last, _META, orbax.args.JsonRestore())
        loop.go_on_from(self._folder, meta, self._identity)
        now = _by_name(as_data(loop.state))
        where = {name: self._where(leaf) for name, leaf in now.items() if leaf.size}
        now |= self._read(last, _STATE, orbax.args.PyTreeRestore(restore_args=where))
        loop.state = from_data(
            jax.tree.unflatten(jax.tree.structure(loop.state), now.values()), loop.state
        )

    def _where(self, leaf: jax.Array) -> Any:
        # Rows of zeros fill tables up for the devices that wrote them: not strict, Orbax cuts
        # these off, or adds what others need.
        return self._orbax.ArrayRestoreArgs(
            sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype, strict=False
        )

    def _read(self, step: int, name: str, how: Any) -> Any:
        args = self._orbax.args.Composite(**{name: how})
        try:
            return self._manager.restore(step, args=args)[name]
        except jax.errors.JaxRuntimeError:  # of another process
            raise
        except Exception as error:  # Orbax and what it reads by raise nearly anything
            raise ValueError(
                f"{self._folder}: expected a complete checkpoint, got {error!r}."
            ) from error

    def on_report(self, loop: TrainingLoop) -> None:
        """Writes a checkpoint, if it is time by the clock of the first process."""
        if _agreed(time.monotonic() - self._saved >= self._seconds):
            self._write(loop)

    def on_end(self, loop: TrainingLoop) -> None:
        """Writes the last checkpoint."""
        if self._manager.latest_step() != loop.epoch:
            self._write(loop)
        self._manager.close()

    def _write(self, loop: TrainingLoop) -> None:
        args = self._orbax.args
        meta = loop.record(self._identity)
        # Orbax writes no empty arrays.
        leaves = {name: x for name, x in _by_name(as_data(loop.state)).items() if x.size}
        both = {_STATE: args.PyTreeSave(leaves), _META: args.JsonSave(meta)}
        self._manager.save(loop.epoch, args=args.Composite(**both), force=True)
        self._saved = time.monotonic()


def _by_name(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _agreed(due: bool) -> bool:
    """What the first process says: all have to write, or none."""
    if jax.process_count() == 1:
        return due
    from jax.experimental.multihost_utils import broadcast_one_to_all

    return bool(broadcast_one_to_all(np.asarray(due)))
