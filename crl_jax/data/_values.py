"""Conversion of columns to ids, ratings and timestamps, alike for files and data in memory."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import numpy as np
from jaxtyping import Float32, Int64, Shaped

from .._checks import is_canonical_integer
from .._optional import import_optional

if TYPE_CHECKING:
    import polars as pl

Column: TypeAlias = "np.ndarray | Sequence[Any] | pl.Series"
_INT64 = np.iinfo(np.int64)
# Units of NumPy's datetime64 below a second.
_PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9}
# "4,5", but not "1,000", which may be one thousand.
_DECIMAL_COMMA = re.compile(r"\s*-?\d+,\d{1,2}\s*")


class InvalidValue(ValueError):
    """A value, its position in a column, and a noun phrase for what was expected."""

    def __init__(self, index: int, expected: str, value: object) -> None:
        super().__init__(f"expected {expected}, got {value!r}")
        self.index, self.expected, self.value = index, expected, value


def import_polars(purpose: str) -> Any:
    """Imports polars; the ImportError names what needs it and how to install it."""
    return import_optional("polars", f"{purpose} needs polars", "data")


def parse_ids(column: Any) -> Int64[np.ndarray, " n"] | list[str]:
    """Converts ids to int64 if all are non-negative integers, else to text, not checked."""
    column = _from_series(column)
    if isinstance(column, np.ndarray) and column.dtype.kind in "iuf":
        if column.dtype.kind == "f":
            n_bits = np.finfo(column.dtype).nmant + 1  # beyond, integers share a float
            whole = np.isfinite(column) & (column == np.trunc(column)) & (abs(column) <= 2**n_bits)
            _reject(column, ~whole, f"a whole number up to 2**{n_bits} as a {column.dtype} id")
        _reject(column, column < 0, "a non-negative id")
        if column.dtype.kind == "f" or column.max(initial=0) <= _INT64.max:
            return column.astype(np.int64, copy=False)
    text: Any = column
    if not _is_series(column):
        text = column.tolist() if isinstance(column, np.ndarray) else list(column)
        if set(map(type, text)) != {str}:
            text = [_text(index, value) for index, value in enumerate(text)]
    if (integers := canonical_integers(text)) is not None:
        return integers
    return text if isinstance(text, list) else text.to_list()


def canonical_integers(column: Any) -> Int64[np.ndarray, " n"] | None:
    """Text, a list or a Series, as int64, or None unless each is an integer as Python writes it."""
    if _is_series(column):
        import polars as pl

        integers = column.cast(pl.Int64, strict=False)
        if integers.null_count() or (integers.min() or 0) < 0:
            return None
        return integers.to_numpy() if (integers.cast(pl.String) == column).all() else None
    if not all(map(is_canonical_integer, column)):
        return None
    try:
        return np.fromiter(map(int, column), np.int64, len(column))
    except OverflowError:
        return None


def parse_ratings(column: Column) -> Float32[np.ndarray, " n"]:
    """Converts numbers, or text of numbers, to finite float32; raises :class:`InvalidValue`."""
    column, expected = _from_series(column), "a finite number"
    numbers = _numbers(column, "Float64")
    if numbers is None:
        numbers = _convert(column, _number, expected)
    with np.errstate(over="ignore"):
        ratings = numbers.astype(np.float32)
    _reject(column, ~np.isfinite(ratings), expected)
    return ratings


def parse_times(column: Column) -> Shaped[np.ndarray, " n"]:
    """Converts numbers and dates to finite int64, or to float64 if one is not whole."""
    column, expected = _from_series(column), "a finite number or an ISO date"
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":
        _reject(column, np.isnat(column), "a date")
        return datetime_seconds(column)
    numbers = _numbers(column, "Int64", "Float64")
    if numbers is None:
        numbers = _convert(column, _seconds, expected)
    if numbers.dtype.kind == "f" or numbers.max(initial=0) > _INT64.max:
        _reject(column, ~np.isfinite(numbers), expected)
        return numbers.astype(np.float64)
    return numbers.astype(np.int64)


def datetime_seconds(dates: np.ndarray) -> np.ndarray:
    """Converts datetime64 to seconds since 1970, int64 if all are whole."""
    counts = dates.astype(np.int64)
    unit, step = np.datetime_data(dates.dtype)
    if unit in _PER_SECOND:
        seconds, remainder = np.divmod(counts * step, _PER_SECOND[unit])
        return counts * step / _PER_SECOND[unit] if remainder.any() else seconds
    return dates.astype("datetime64[s]").astype(np.int64)


def _is_series(column: Any) -> bool:
    return type(column).__module__.split(".")[0] == "polars"


def _from_series(column: Any) -> Any:
    """Converts a polars Series to an array or a list, except text, which stays a Series."""
    if not _is_series(column):
        return column
    import polars as pl

    if column.null_count():
        raise InvalidValue(int(column.is_null().arg_max() or 0), "a value", None)
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    if isinstance(column.dtype, pl.Datetime):
        return column.to_physical().to_numpy().astype(f"M8[{column.dtype.time_unit}]")
    if column.dtype == pl.Date:  # in seconds: days beyond the range of datetime.date occur
        return (column.to_physical().to_numpy().astype(np.int64) * 86_400).astype("M8[s]")
    if column.dtype.is_integer() or column.dtype.is_float():
        return column.to_numpy()
    return column.to_list()


def _reject(column: Any, bad: np.ndarray, expected: str) -> None:
    if bad.any():
        index = int(np.argmax(bad))
        value = column[index]
        raise InvalidValue(index, expected, value.item() if hasattr(value, "item") else value)


def _check_present(index: int, value: Any) -> None:
    is_nan = isinstance(value, float | np.floating) and value != value
    if value is None or is_nan or type(value).__name__ in ("NAType", "NaTType"):
        raise InvalidValue(index, "a value", value)


def _text(index: int, value: Any) -> str:
    if isinstance(value, str | UUID):
        return str(value)
    _check_present(index, value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidValue(index, "UTF-8 text", value) from None
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float | np.floating | Decimal):
        if abs(value) > 2**53 or value != int(value):
            raise InvalidValue(index, "a whole number up to 2**53", value)
        return str(value) if isinstance(value, Decimal) else str(float(value))
    raise InvalidValue(index, "integers or text", value)


def _numbers(column: Any, *dtypes: str) -> np.ndarray | None:
    """Numbers of an array, or text cast by polars to the first type that fits; else None."""
    if isinstance(column, np.ndarray):
        return column if column.dtype.kind in "iuf" else None
    if _is_series(column):
        import polars as pl

        for dtype in dtypes:
            numbers = column.cast(getattr(pl, dtype), strict=False)
            if not numbers.null_count():
                return numbers.to_numpy()
    return None


def _convert(
    column: Any, parse: Callable[[Any], int | float], expected: str
) -> Shaped[np.ndarray, " n"]:
    """Converts values one by one, to int64 if all are integers that fit, otherwise to float64."""
    numbers: list[int | float] = []
    for index, value in enumerate(column):
        _check_present(index, value)
        try:
            numbers.append(parse(value))
        except (ValueError, OverflowError, TypeError):
            raise InvalidValue(index, expected, value) from None
    whole = all(isinstance(x, int) and _INT64.min <= x <= _INT64.max for x in numbers)
    return np.array(numbers, np.int64 if whole else np.float64)


def _decode(value: Any) -> Any:
    """Decodes bytes and refuses "1_000" and the digits of other scripts, which Python parses."""
    if isinstance(value, bytes):
        value = value.decode("ascii")
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        raise ValueError
    return value


def _number(value: Any) -> float:
    value = _decode(value)
    if isinstance(value, str):
        return float(value.replace(",", ".") if _DECIMAL_COMMA.fullmatch(value) else value)
    if isinstance(value, bool) or not isinstance(
        value, int | float | np.integer | np.floating | Decimal
    ):
        raise TypeError
    return float(value)


def _seconds(value: Any) -> int | float:
    value = _decode(value)
    if isinstance(value, str):
        for parse in (int, float):
            try:
                return parse(value)
            except ValueError:
                pass
        value = datetime.fromisoformat(re.sub(r" ?UTC$", "+00:00", value.strip()))
    if isinstance(value, np.datetime64):
        return datetime_seconds(np.array([value]))[0].item()
    if isinstance(value, datetime):
        seconds = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        return int(seconds) if seconds == int(seconds) else seconds
    if isinstance(value, date):
        return int(datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp())
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    return _number(value)
