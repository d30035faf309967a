"""Columns of polars as records."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from . import _ids
from ._outcomes import DataError
from ._records import Records

if TYPE_CHECKING:
    import polars as pl

_PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9}


def frame_records(origin: str, series: Mapping[str, "pl.Series"]) -> Records:
    """One interaction a row; messages count rows from 1.

    Args:
      origin: What messages call the table.
      series: The columns by their roles, ``user`` and ``item`` at least.

    Raises:
      DataError: If a value is missing, an id is neither text nor an integer, a rating is not a
        finite number, or a time neither a finite number nor a date.
    """
    import polars as pl

    for values in series.values():
        _reject(origin, values, values.is_null(), "a value")
    users, items = _encode(origin, series["user"]), _encode(origin, series["item"])
    return Records(
        origin,
        users[0],
        items[0],
        users=users[1],
        items=items[1],
        ratings=_finite(origin, series["rating"], pl.Float32()) if "rating" in series else None,
        timestamps=_times(origin, series["time"]) if "time" in series else None,
    )


def _encode(origin: str, values: "pl.Series") -> tuple[list[str], np.ndarray]:
    import polars as pl

    if values.dtype in (pl.String, pl.Categorical, pl.Enum):
        encoder = _ids.Encoder()
        encoder.add(values.cast(pl.String).to_list())
        names, codes = encoder.result()
        if found := _ids.first_fault(names):
            _reject(origin, values, values.cast(pl.String) == found[0], found[1])
        return names, codes
    if not (values.dtype.is_integer() or values.dtype.is_float()):
        raise DataError(
            f"{origin}: expected integers or text as {values.name!r}, got {values.dtype}."
        )
    _reject(origin, values, values < 0, "a non-negative id")
    try:
        return _ids.encode(values.to_numpy(), repr(values.name))
    except DataError as error:
        raise DataError(f"{origin}: {error}") from None


def _times(origin: str, values: "pl.Series") -> np.ndarray:
    """int64 where the column is whole numbers, else float64; dates as seconds since 1970, UTC."""
    import polars as pl

    # In the unit that they have, for in a finer one a date may overflow.
    if isinstance(values.dtype, pl.Datetime):
        values = values.to_physical() / _PER_SECOND[values.dtype.time_unit]
    elif values.dtype == pl.Date:
        values = values.to_physical().cast(pl.Int64) * 86_400
    if values.dtype.is_integer() and (values.max() or 0) <= np.iinfo(np.int64).max:  # pyright: ignore[reportOperatorIssue]
        return values.cast(pl.Int64).to_numpy()
    return _finite(origin, values, pl.Float64())


def _finite(origin: str, values: "pl.Series", dtype: "pl.DataType") -> np.ndarray:
    if not values.dtype.is_numeric():
        raise DataError(f"{origin}: expected numbers as {values.name!r}, got {values.dtype}.")
    numbers = values.cast(dtype)
    _reject(origin, values, ~numbers.is_finite(), "a finite number")
    return numbers.to_numpy()


def _reject(origin: str, values: "pl.Series", bad: "pl.Series", expected: str) -> None:
    if bad.any():
        row = int(np.argmax(bad.to_numpy()))
        raise DataError(
            f"{origin}: row {row + 1}: expected {expected} as {values.name!r}, got {values[row]!r}."
        )
