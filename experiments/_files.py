"""Atomic file writes of the commands and benchmarks."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a new file, which replaces ``path`` after the body.

    Its name is unique, so that several writers of one path do not disturb each other: the last one
    that finishes wins. If the body fails, the new file is removed, and an error of the system names
    ``path``.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        with named(path):
            yield partial
            partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def remove_partial(folder: Path) -> None:
    """Removes the new files that processes left in a folder when they were killed.

    No other process may be writing to the folder.
    """
    for path in folder.glob("*.[0-9]*-????????.partial"):
        path.unlink()


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Names ``path``, and no other file, in an error of the system that the body raises."""
    try:
        yield
    except OSError as error:
        if error.errno:  # an error of the body may only have a message
            error.filename = str(path)
            del error.filename2  # None would be printed
        raise
