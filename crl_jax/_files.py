"""Files that appear under their names when they are complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file beside ``path``, whose folder is made, that takes its place when it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    yield partial
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(path)
