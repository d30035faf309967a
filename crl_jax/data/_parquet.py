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
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from . import _ids
from ._columns import Found, Requested, find_columns
from ._outcomes import DataError
from ._parquet_child import REFUSED
from ._records import Records

if TYPE_CHECKING:
    import polars as pl

_MAGIC = b"PAR1"
_PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9}
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
    names, columns = parquet_columns(path, requested)
    chosen = {role: names[place] for role, place in columns._asdict().items() if place is not None}
    frame = pl.read_ipc_stream(io.BytesIO(_decode(path, json.dumps([*chosen.values()]))))
    series = {role: frame[name] for role, name in chosen.items()}
    for values in series.values():
        _reject(path, values, values.is_null(), "a value")

    users, items = _encode(path, series["user"]), _encode(path, series["item"])
    return Records(
        str(path),
        users[0],
        items[0],
        users=users[1],
        items=items[1],
        ratings=_finite(path, series["rating"], pl.Float32()) if "rating" in series else None,
        timestamps=_times(path, series["time"]) if "time" in series else None,
    )


def parquet_columns(path: Path, requested: Requested) -> tuple[list[str], Found]:
    """The names of all columns, and which of them are read."""
    _polars()
    _check_ends(path)
    names = json.loads(_decode(path))
    return names, find_columns(names, requested, str(path))


def _polars():
    try:
        import polars
    except ImportError as error:
        raise ImportError(
            "Reading Parquet needs polars: pip install 'crl_jax[experiments]'"
        ) from error
    return polars


def _decode(path: Path, *arguments: str) -> bytes:
    """What the child process writes."""
    done = subprocess.run(
        [sys.executable, "-P", str(_CHILD), str(path), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
    )
    if done.returncode == 0 and done.stdout:
        return done.stdout
    why = "breaks down on"
    if done.returncode == REFUSED:
        why = f"refuses ({done.stderr.decode(errors='replace').strip()})"
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


def _encode(path: Path, values: "pl.Series") -> tuple[list[str], np.ndarray]:
    import polars as pl

    if values.dtype in (pl.String, pl.Categorical, pl.Enum):
        encoder = _ids.Encoder()
        encoder.add(values.cast(pl.String).to_list())
        names, codes = encoder.result()
        if found := _ids.first_fault(names):
            _reject(path, values, values.cast(pl.String) == found[0], found[1])
        return names, codes
    if not (values.dtype.is_integer() or values.dtype.is_float()):
        raise DataError(
            f"{path}: expected integers or text as {values.name!r}, got {values.dtype}."
        )
    _reject(path, values, values < 0, "a non-negative id")
    try:
        return _ids.encode(values.to_numpy(), repr(values.name))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _times(path: Path, values: "pl.Series") -> np.ndarray:
    """int64 where the column is whole numbers, else float64; dates as seconds since 1970, UTC."""
    import polars as pl

    # In the unit that they have, for in a finer one a date may overflow.
    if isinstance(values.dtype, pl.Datetime):
        values = values.to_physical() / _PER_SECOND[values.dtype.time_unit]
    elif values.dtype == pl.Date:
        values = values.to_physical().cast(pl.Int64) * 86_400
    if values.dtype.is_integer() and (values.max() or 0) <= np.iinfo(np.int64).max:  # pyright: ignore[reportOperatorIssue]
        return values.cast(pl.Int64).to_numpy()
    return _finite(path, values, pl.Float64())


def _finite(path: Path, values: "pl.Series", dtype: "pl.DataType") -> np.ndarray:
    if not values.dtype.is_numeric():
        raise DataError(f"{path}: expected numbers as {values.name!r}, got {values.dtype}.")
    numbers = values.cast(dtype)
    _reject(path, values, ~numbers.is_finite(), "a finite number")
    return numbers.to_numpy()


def _reject(path: Path, values: "pl.Series", bad: "pl.Series", expected: str) -> None:
    if bad.any():
        row = int(np.argmax(bad.to_numpy()))
        raise DataError(
            f"{path}: row {row + 1}: expected {expected} as {values.name!r}, got {values[row]!r}."
        )
