"""Columns of polars as records."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _ids
from ._errors import DataError
from ._records import Collector

if TYPE_CHECKING:
    import polars as pl

_PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9}


def import_polars(what: str) -> Any:
    """Polars, or an ImportError that says ``what`` needs it."""
    try:
        import polars
    except ImportError as error:
        raise ImportError(f"{what} needs polars: pip install 'crl_jax[experiments]'") from error
    return polars


def collect_frame(
    origin: str, series: Mapping[str, "pl.Series"], into: Collector, *, first: int = 1
) -> None:
    """Takes one interaction a row.

    Args:
      origin: What messages call the table.
      series: The columns by their roles, ``user`` and ``item`` at least.
      into: What takes them.
      first: What messages call the first row.

    Raises:
      DataError: If a value is missing, an id is neither text nor an integer, a rating is not a
        finite number, or a time neither a finite number nor a date.
    """
    import polars as pl

    checked = _Checked(origin, first)
    for values in series.values():
        checked.reject(values, values.is_null(), "a value")
    checked.encode(series["user"], into.users)
    checked.encode(series["item"], into.items)
    into.add_numbers(
        checked.finite(series["rating"], pl.Float32()) if "rating" in series else None,
        checked.times(series["time"]) if "time" in series else None,
    )


@dataclass(frozen=True)
class _Checked:
    """Columns as arrays, whose faults are told by origin and row."""

    origin: str
    first: int

    def encode(self, values: "pl.Series", encoder: _ids.Encoder) -> None:
        import polars as pl

        if values.dtype in (pl.String, pl.Categorical, pl.Enum):
            values = values.cast(pl.String)
            try:
                encoder.add(values.to_list())
            except _ids.InvalidId as error:
                self.reject(values, values == error.name, error.expected)
            return
        if not (values.dtype.is_integer() or values.dtype.is_float()):
            raise DataError(
                f"{self.origin}: expected integers or text as {values.name!r}, got {values.dtype}."
            )
        self.reject(values, values < 0, "a non-negative id")
        try:
            encoder.add_integers(_ids.whole(values.to_numpy(), repr(values.name)))
        except DataError as error:
            raise DataError(f"{self.origin}: {error}") from None

    def times(self, values: "pl.Series") -> np.ndarray:
        """int64 where all are whole numbers, else float64; dates as seconds since 1970, UTC."""
        import polars as pl

        # In the unit that they have, for in a finer one a date may overflow.
        if isinstance(values.dtype, pl.Datetime):
            values = values.to_physical() / _PER_SECOND[values.dtype.time_unit]
        elif values.dtype == pl.Date:
            values = values.to_physical().cast(pl.Int64) * 86_400
        if values.dtype.is_integer() and (values.max() or 0) <= np.iinfo(np.int64).max:  # pyright: ignore[reportOperatorIssue]
            return values.cast(pl.Int64).to_numpy()
        return self.finite(values, pl.Float64())

    def finite(self, values: "pl.Series", dtype: "pl.DataType") -> np.ndarray:
        if not values.dtype.is_numeric():
            raise DataError(
                f"{self.origin}: expected numbers as {values.name!r}, got {values.dtype}."
            )
        numbers = values.cast(dtype)
        self.reject(values, ~numbers.is_finite(), "a finite number")
        return numbers.to_numpy()

    def reject(self, values: "pl.Series", bad: "pl.Series", expected: str) -> None:
        if bad.any():
            row = int(np.argmax(bad.to_numpy()))
            raise DataError(
                f"{self.origin}: row {self.first + row}: expected {expected} as {values.name!r}, "
                f"got {values[row]!r}."
            )
