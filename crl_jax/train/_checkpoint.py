"""Checkpoints: npz files of one process, Orbax directories of several.

Both formats are needed. An ``.npz`` file needs no dependency and is a single file to copy, but
holds complete arrays, which no single process has when tables are sharded over several hosts.
Orbax is an optional dependency that writes each process's shards and restores them on any mesh.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._files import write_npz
from ._hooks import Callback, TrainingLoop

_HEADER = "header"
_STATE, _META = "state", "meta"


def save_checkpoint(path: str | os.PathLike[str], tree: Any, meta: dict[str, Any]) -> None:
    """Writes a tree of arrays and JSON metadata to an ``.npz`` file, atomically and without pickle.

    The file is written to a temporary name, flushed and renamed, so that ``path`` is always a
    complete checkpoint, whenever the process is killed.

    Args:
      path: The file; missing parent directories are created.
      tree: Containers of numeric arrays of any dtype (including bfloat16) or strings; no PRNG key
        arrays.
      meta: Metadata that JSON can represent.

    Raises:
      ValueError: If an array has dtype ``object``, two leaves have the same path, joined by ``/``,
        or a leaf is named ``header``.
    """
    path = Path(path)
    arrays, dtypes = {}, {}
    names = [*_names(tree, "/"), _HEADER]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"`tree` must have one leaf of each name besides {_HEADER}, got {repeated}."
        )
    for name, leaf in _leaves_by_name(tree, "/").items():
        array = np.asarray(leaf)
        if array.dtype.hasobject:
            raise ValueError(f"`tree` must hold numbers and strings, got objects in {name}.")
        if array.dtype.kind not in "biufcU":  # .npy supports NumPy's own dtypes only:
            dtypes[name] = array.dtype.name  # others are stored as bytes
            array = np.ascontiguousarray(array).view(np.uint8)
        arrays[name] = array
    header = json.dumps({"meta": meta, "dtypes": dtypes}).encode()
    write_npz(path, {**arrays, _HEADER: np.frombuffer(header, np.uint8)})


def load_checkpoint(path: str | os.PathLike[str], like: Any = None) -> tuple[Any, dict[str, Any]]:
    """Reads a checkpoint written by :func:`save_checkpoint`.

    Args:
      path: The file.
      like: Tree of arrays or ``jax.ShapeDtypeStruct`` with the expected structure, shapes and
        dtypes; None accepts any.

    Returns:
      The tree of NumPy arrays and the metadata. If ``like`` is None, the tree is a flat dictionary
      keyed by the paths of the leaves, joined by ``/``.

    Raises:
      FileNotFoundError: If the file does not exist.
      ValueError: If the file is not a complete checkpoint or does not match ``like``.
    """
    try:
        # np.load does not close a file that is not an archive.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            stored = {name: archive[name] for name in archive.files}
        header = json.loads(stored.pop(_HEADER).tobytes())
        for name, dtype in header["dtypes"].items():
            stored[name] = stored[name].view(jnp.dtype(dtype))
        meta = header["meta"]
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile and NumPy raise many types on damaged files
        raise ValueError(f"{path}: expected a complete checkpoint, got {error!r}.") from error
    if like is None:
        return stored, meta

    expected = _leaves_by_name(like, "/")
    if stored.keys() != expected.keys():
        raise ValueError(f"{path}: expected the arrays {sorted(expected)}, got {sorted(stored)}.")
    for name, leaf in expected.items():
        got = stored[name]
        if got.shape != leaf.shape or got.dtype != leaf.dtype:
            raise ValueError(
                f"{path}: expected {name} as {leaf.dtype}{list(leaf.shape)}, "
                f"got {got.dtype}{list(got.shape)}."
            )
    leaves = [stored[name] for name in expected]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), meta


class Checkpoint(Callback):
    """Callback that saves the training state to a file and resumes from it.

    Args:
      path: The ``.npz`` file, see :func:`save_checkpoint`. If it exists, training resumes from it.
      seconds: Minimum time between two saves; the final state is always saved.

    Raises:
      ValueError: At the start, if the file belongs to another training, with other data, run
        parameters or functions (compared by the computation that they trace to).
    """

    def __init__(self, path: str | os.PathLike[str], seconds: float = 5.0):
        self._path, self._seconds, self._saved = path, seconds, time.monotonic()

    def on_start(self, loop: TrainingLoop) -> None:
        """Restores the state if the file exists."""
        self._saved = time.monotonic()
        loop.fingerprint()  # computed before the first epoch
        if not os.path.exists(self._path):
            return
        shapes = jax.eval_shape(_unwrap_keys, loop.unpadded_state())
        state, meta = load_checkpoint(self._path, shapes)
        loop.restore_metadata(self._path, meta)
        loop.state = _wrap_keys(state, loop.state)

    def on_report(self, loop: TrainingLoop) -> None:
        """Saves the state if enough time has passed."""
        if time.monotonic() - self._saved >= self._seconds:
            self.on_end(loop)

    def on_end(self, loop: TrainingLoop) -> None:
        """Saves the state."""
        state = jax.device_get(_unwrap_keys(loop.unpadded_state()))
        save_checkpoint(self._path, state, loop.metadata())
        self._saved = time.monotonic()


class SharedCheckpoint(Callback):
    """:class:`Checkpoint` for several processes, in a shared directory, by Orbax.

    Each process writes the shards on its devices. Training may resume with another number of
    processes and devices and on another mesh. The directory holds one checkpoint, which is
    complete whenever the processes are killed.

    Args:
      folder: The directory. If it holds a checkpoint, training resumes from it.
      seconds: Minimum time between two saves; the final state is always saved.

    Raises:
      ImportError: If ``orbax-checkpoint`` is not installed.
      ValueError: At the start, if the checkpoint is damaged or belongs to another training.
    """

    def __init__(self, folder: str | os.PathLike[str], seconds: float = 5.0):
        import orbax.checkpoint

        self._orbax: Any = orbax.checkpoint
        self._folder, self._seconds = Path(folder).absolute(), seconds
        self._saved = time.monotonic()
        self._manager: Any = None

    def on_start(self, loop: TrainingLoop) -> None:
        """Restores the latest checkpoint, if there is one."""
        orbax = self._orbax
        options = orbax.CheckpointManagerOptions(
            max_to_keep=1, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self._manager = orbax.CheckpointManager(self._folder, options=options)
        self._saved = time.monotonic()
        loop.fingerprint()  # computed before the first epoch
        latest = self._manager.latest_step()
        if latest is None:
            return
        meta = self._restore(latest, _META, orbax.args.JsonRestore())
        loop.restore_metadata(self._folder, meta)
        leaves = _leaves_by_name(_unwrap_keys(loop.state), ".")
        # Tables are padded for the mesh that wrote them. With strict=False Orbax truncates the
        # padding or adds that of the current mesh.
        args = {
            name: orbax.ArrayRestoreArgs(
                sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype, strict=False
            )
            for name, leaf in leaves.items()
            if leaf.size
        }
        leaves |= self._restore(latest, _STATE, orbax.args.PyTreeRestore(restore_args=args))
        loop.state = _wrap_keys(
            jax.tree.unflatten(jax.tree.structure(loop.state), leaves.values()), loop.state
        )

    def _restore(self, step: int, name: str, item_args: Any) -> Any:
        args = self._orbax.args.Composite(**{name: item_args})
        try:
            return self._manager.restore(step, args=args)[name]
        except jax.errors.JaxRuntimeError:  # of another process
            raise
        except Exception as error:  # Orbax and its backends raise many types
            raise ValueError(
                f"{self._folder}: expected a complete checkpoint, got {error!r}."
            ) from error

    def on_report(self, loop: TrainingLoop) -> None:
        """Saves the state if enough time has passed on the first process's clock."""
        is_due = np.asarray(time.monotonic() - self._saved >= self._seconds)
        if jax.process_count() > 1:  # either all processes save or none
            from jax.experimental.multihost_utils import broadcast_one_to_all

            is_due = broadcast_one_to_all(is_due)
        if is_due:
            self._save(loop)

    def on_end(self, loop: TrainingLoop) -> None:
        """Saves the final state."""
        if self._manager.latest_step() != loop.epoch:
            self._save(loop)
        self._manager.close()

    def _save(self, loop: TrainingLoop) -> None:
        args = self._orbax.args
        # Orbax does not support empty arrays.
        leaves = {k: x for k, x in _leaves_by_name(_unwrap_keys(loop.state), ".").items() if x.size}
        items = {_STATE: args.PyTreeSave(leaves), _META: args.JsonSave(loop.metadata())}
        self._manager.save(loop.epoch, args=args.Composite(**items), force=True)
        self._saved = time.monotonic()


def _leaves_by_name(tree: Any, separator: str) -> dict[str, Any]:
    return dict(zip(_names(tree, separator), jax.tree.leaves(tree), strict=True))


def _names(tree: Any, separator: str) -> list[str]:
    return [
        jax.tree_util.keystr(path, simple=True, separator=separator)
        for path, _ in jax.tree.leaves_with_path(tree)
    ]


def _is_key(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _unwrap_keys(tree: Any) -> Any:
    """Replaces PRNG key arrays by their data."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)


def _wrap_keys(tree: Any, like: Any) -> Any:
    """Restores the PRNG key arrays of ``like``."""
    return jax.tree.map(
        lambda x, old: jax.random.wrap_key_data(x) if _is_key(old) else x, tree, like
    )
