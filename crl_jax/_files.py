"""Atomic file writes."""

import errno
import os
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np


@contextmanager
def whole(path: Path, *errors: type[Exception]) -> Iterator[Path]:
    """Yields a temporary path that atomically replaces ``path`` on success; creates parents.

    Its name is unique, so that several writers of one path do not disturb each other: the last one
    that finishes wins. It is deleted if writing fails. Errors of the classes ``errors``, of a
    library that writes the file, become an ``OSError`` that names it.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        if error.errno and error.filename is None:  # as for a full disk
            error.filename = str(path)
        raise
    except errors as error:
        raise OSError(f"{path} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays of any names to an ``.npz`` file, atomically.

    ``np.savez`` reserves the names ``file`` and ``allow_pickle``, and its older versions leave the
    archive open if writing fails.
    """
    with whole(path) as partial, zipfile.ZipFile(partial, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
