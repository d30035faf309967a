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
        yield partial
        partial.replace(path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
