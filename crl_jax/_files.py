"""Atomic file writes."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
