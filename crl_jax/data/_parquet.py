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
from collections.abc import Callable
from pathlib import Path

from ._columns import Found, Requested, find_columns
from ._outcomes import DataError
from ._parquet_child import REFUSED
from ._polars import frame_records
from ._records import Records

_MAGIC = b"PAR1"
_CHILD = Path(__file__).with_name("_parquet_child.py")


def read_parquet(path: Path, requested: Requested) -> Records:
    """Reads one interaction a row; messages count rows from 1.

    Raises:
      DataError: If the file is no complete Parquet file, a value is missing, an id is
        neither text nor an integer, a rating is not a finite number, or a time neither a
        finite number nor a date.
      ImportError: If polars is not installed.
    """
    pl = _polars()
    found: dict[str, str] = {}

    def choose(names: list[str]) -> list[str]:
        places = find_columns(names, requested, str(path))._asdict()
        found.update({role: names[place] for role, place in places.items() if place is not None})
        return [*found.values()]

    frame = pl.read_ipc_stream(io.BytesIO(_decode(path, choose)))
    return frame_records(str(path), {role: frame[name] for role, name in found.items()})


def parquet_columns(path: Path, requested: Requested) -> tuple[list[str], Found]:
    """The names of all columns, and which of them are read."""
    _polars()
    names: list[str] = []
    _decode(path, names.extend)
    return names, find_columns(names, requested, str(path))


def _polars():
    try:
        import polars
    except ImportError as error:
        raise ImportError(
            "Reading Parquet needs polars: pip install 'crl_jax[experiments]'"
        ) from error
    return polars


def _decode(path: Path, choose: Callable[[list[str]], list[str] | None]) -> bytes:
    """The columns that ``choose`` takes from all names, as an Arrow stream; none for None."""
    _check_ends(path)
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [sys.executable, "-P", str(_CHILD), str(path)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as child,
    ):
        assert child.stdout is not None
        if line := child.stdout.readline():
            wanted = choose(json.loads(line))
            content, _ = child.communicate(b"" if wanted is None else json.dumps(wanted).encode())
            if child.returncode == 0 and (content or wanted is None):
                return content
        why = "breaks down on"
        if child.wait() == REFUSED:
            errors.seek(0)
            why = f"refuses ({errors.read().decode(errors='replace').strip()})"
    raise DataError(f"{path}: expected a readable Parquet file, got one that polars {why}.")


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
