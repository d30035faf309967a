"""Atomic file writes of the commands and benchmarks."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a new file, which replaces ``path`` after the body.

    If the body fails, the new file is removed, and an error of the system names ``path``.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with named(path):
            yield partial
            partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


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
