"""Parquet tables with named columns, through polars.

Polars decodes the file in a process of its own: on some damaged files it panics, which writes a
backtrace to the standard error, and on others it asks for so much memory that the whole process
is aborted. No exception handler helps against either.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from ._columns import Found, Requested, find_columns
from ._errors import DataError
from ._parquet_child import LENGTH, REFUSED
from ._polars import collect_frame, import_polars
from ._records import Collector

_MAGIC = b"PAR1"
_CHILD = Path(__file__).with_name("_parquet_child.py")


def read_parquet(path: Path, requested: Requested, into: Collector) -> None:
    """Reads one interaction a row, some rows at a time; messages count them from 1.

    Raises:
      DataError: If the file is no complete Parquet file, a value is missing, an id is
        neither text nor an integer, a rating is not a finite number, or a time neither a
        finite number nor a date.
      ImportError: If polars is not installed.
    """
    pl = import_polars("Reading Parquet")
    found: dict[str, str] = {}

    def choose(names: list[str]) -> list[str]:
        places = find_columns(names, requested, str(path))._asdict()
        found.update({role: names[place] for role, place in places.items() if place is not None})
        return [*found.values()]

    first = 1
    for content in _decode(path, choose):
        frame = pl.read_ipc_stream(io.BytesIO(content))
        series = {role: frame[name] for role, name in found.items()}
        collect_frame(str(path), series, into, first=first)
        first += len(frame)


def parquet_columns(path: Path, requested: Requested) -> tuple[list[str], Found]:
    """The names of all columns, and which of them are read."""
    import_polars("Reading Parquet")
    names: list[str] = []
    list(_decode(path, names.extend))
    return names, find_columns(names, requested, str(path))


def _decode(path: Path, choose: Callable[[list[str]], list[str] | None]) -> Iterator[bytes]:
    """The columns that ``choose`` takes from all names, as Arrow streams of some rows each.

    There are none where ``choose`` returns None.
    """
    _check_ends(path)
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [sys.executable, "-P", str(_CHILD), str(path)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            if line := child.stdout.readline():
                wanted = choose(json.loads(line))
                with suppress(BrokenPipeError), child.stdin:
                    child.stdin.write(b"" if wanted is None else json.dumps(wanted).encode())
                if wanted is None or (yield from _streams(child.stdout)):
                    return
        finally:
            child.stdout.close()  # what is not wanted any more ends the child
        why = "breaks down on"
        if child.wait() == REFUSED:
            errors.seek(0)
            why = f"refuses ({errors.read().decode(errors='replace').strip()})"
    raise DataError(f"{path}: expected a readable Parquet file, got one that polars {why}.")


def _streams(file: IO[bytes]) -> Generator[bytes, None, bool]:
    """What stands in the file, each with its length before it; returns whether it ended as said."""
    while head := file.read(LENGTH.size):
        size = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
        if not size:  # the end, as it is said
            return len(head) == LENGTH.size
        content = file.read(size)
        if len(content) < size:
            break
        yield content
    return False


def _check_ends(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
        file.seek(max(0, path.stat().st_size - len(_MAGIC)))
        tail = file.read()
    if head != _MAGIC or tail != _MAGIC:
        raise DataError(
            f"{path}: expected a Parquet file, which begins and ends with {_MAGIC!r}, "
            f"got {head!r} and {tail!r}; it may be truncated."
        )
