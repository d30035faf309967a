"""Atomic file writes."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yields a temporary path that atomically replaces ``path`` on success; creates parents.

    Its name is unique, so that several writers of one path do not disturb each other: the last one
    that finishes wins. It is deleted if writing fails.
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
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def os_errors(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Converts errors of a library that writes ``path``, such as for a full disk, to ``OSError``.

    Args:
      path: The file, which the message names.
      kinds: Classes of the errors.

    Raises:
      OSError: If the body raises one of them.
    """
    try:
        yield
    except kinds as error:
        raise OSError(f"{path} cannot be written: {error}") from error
