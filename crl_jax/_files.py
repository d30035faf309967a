"""Atomic file writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yields a temporary path that atomically replaces ``path`` on success; creates parents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    yield partial
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(path)
