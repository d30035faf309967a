"""The run directory: its lock, and its files, which are written atomically."""

import contextlib
import csv
import errno
import importlib.metadata
import json
import os
import platform
import shlex
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

import crl_jax
from crl_jax import train

from ._files import named, replacing
from ._program import program
from ._ranges import read_json
from ._schema import C, Schema, to_json

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

CONFIG, HISTORY, METRICS, CURVES = "config.json", "history.jsonl", "metrics.json", "curves.png"
SWEEP, SEEDS = "sweep.csv", "metrics_by_seed.json"
CHECKPOINT = "checkpoint"


def create(folder: Path, config: Any, command: str) -> None:
    """Writes the configuration of a new run to a folder that :func:`claim` holds.

    The folder is recorded in its section ``output``.
    """
    device = jax.devices()[0]
    environment = {
        "command": command,
        "crl_jax": crl_jax.__version__,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.platform}: {device.device_kind}",
    }
    config = replace(config, output=replace(config.output, out=folder.absolute()))
    write_json(folder / CONFIG, {**to_json(config), "environment": environment})


def check_out(folder: Path) -> None:
    """Raises ``ValueError`` if a file is where the output folder or a parent of it should be."""
    for parent in (folder, *folder.parents):
        if parent.exists() and not parent.is_dir():
            raise ValueError(f"--out {folder}: {parent} is a file; name a directory.")


def make_out(folder: Path) -> None:
    """Creates the output folder; ``ValueError`` if that is impossible, or it is not writable."""
    check_out(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {folder} cannot be created: {error.strerror}.") from None
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"--out {folder} is not writable: {error.strerror}.") from None


def make_out_for(path: Path) -> None:
    """Creates the folder of an output file; ``ValueError`` if the file cannot be written there."""
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder; name a file.")
    make_out(path.parent)


@contextlib.contextmanager
def claim(folder: Path, advice: str) -> Iterator[None]:
    """Creates the folder of a new run and locks it, see :func:`occupy`.

    Raises:
      ValueError: If it contains a run, with ``advice``, or cannot be created.
    """
    make_out(folder)
    with occupy(folder):
        if (folder / CONFIG).exists():
            raise ValueError(f"--out {folder} holds a run already{advice}")
        yield


@contextlib.contextmanager
def occupy(folder: Path) -> Iterator[None]:
    """Locks a run directory.

    Raises:
      ValueError: If another process has locked it.
    """
    with lock_file(
        folder / ".lock", busy=f"another process is at work in {folder}; let it end first."
    ):
        yield


def open_run(folder: Path, schema: Schema[C]) -> C:
    """Reads the configuration of the run in ``folder``.

    Raises:
      ValueError: If it contains no run, or one of another command, or its configuration is
        invalid.
    """
    path = folder / CONFIG
    try:
        stored = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder} holds no run: there is no {path}.") from None
    command = _recorded_command(stored)
    if command is not None and command != schema.command:
        raise ValueError(
            f"{folder} holds a run of {program(command)}, not of {program(schema.command)}."
        )
    return schema.from_json(stored, path)


def _recorded_command(stored: Any) -> str | None:
    """Returns the command that wrote a configuration, or None if it is not recorded."""
    environment = stored.get("environment") if isinstance(stored, dict) else None
    command = environment.get("command") if isinstance(environment, dict) else None
    return command if isinstance(command, str) else None


def resume_advice(folder: Path, command: str, processes: str | None = None) -> str:
    """Returns the advice on how to resume the run of a command in ``folder``.

    Args:
      folder: Run directory.
      command: The command.
      processes: ``--processes`` of this process.
    """
    if (folder / METRICS).exists():
        return f"The run in {folder} is finished."
    if (folder / CONFIG).exists():
        resume = f"{program(command)} --resume {shlex.quote(str(folder))}"
        if processes is None:
            return f"Go on with: {resume}"
        return (
            f"Go on with, and accordingly in the other processes: {resume} --processes {processes}"
        )
    return "Start again with the same command."


def write_json(path: Path, content: Any) -> None:
    """Writes JSON, atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_history(path: Path, lines: list[dict[str, Any]]) -> None:
    """Replaces the history, atomically."""
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def append_history(path: Path, line: dict[str, Any]) -> None:
    """Appends a line to the history; an error of the system names ``path``."""
    with named(path), path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def write_sweep(
    path: Path, points: list[dict[str, Any]], choice: train.Selection, metric: str
) -> None:
    """Writes the points of a grid with their validation scores, and marks the selected one."""
    names = list(dict.fromkeys(name for point in points for name in point))
    rows = (
        [*(point.get(name, "") for name in names), choice.scores[i], choice.best_epochs[i],
         int(i == choice.point)]
        for i, point in enumerate(points)
    )  # fmt: skip
    write_csv(path, [*names, metric, "best_epoch", "chosen"], rows)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a CSV file, atomically."""
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def write_arrays(path: Path, **arrays: Any) -> None:
    """Writes an npz file, atomically."""
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)


def read_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Reads arrays of a file that :func:`write_arrays` wrote.

    Raises:
      ValueError: If there is no such file, or it is damaged.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return [archive[name] for name in names]
    except FileNotFoundError:
        raise ValueError(f"{path} is missing, which the training wrote; train again.") from None
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path}: expected the arrays {', '.join(names)}, got a damaged file ({error})."
        ) from None


def write_text(path: Path, text: str) -> None:
    """Writes a text file, atomically."""
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def lock_file(path: Path, *, busy: str | None = None) -> Iterator[None]:
    """Holds a lock between processes, which the system releases if the process is killed.

    On a platform or a file system without locks, or if the file cannot be written, holds nothing.

    Args:
      path: Lock file, which exists only while the lock is held; its folder must exist.
      busy: Error message if another process holds the lock; None waits for it.

    Raises:
      ValueError: With ``busy``, if another process holds the lock.
    """
    with contextlib.ExitStack() as stack:
        file = _acquire(path, busy)
        if file is not None:
            stack.enter_context(file)
            stack.callback(
                path.unlink, missing_ok=True
            )  # before it is closed, which releases the lock
        yield


def _acquire(path: Path, busy: str | None) -> IO[bytes] | None:
    if fcntl is None:
        return None
    while True:
        try:
            file = path.open("ab")
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                return None
            raise
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if busy is None else fcntl.LOCK_NB))
            # Another process may have removed the file since it was opened here.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
        except BlockingIOError:
            file.close()
            raise ValueError(busy) from None
        except OSError:
            file.close()
            return None
        file.close()
