"""Conversion of columns to ids, ratings and timestamps.

Text of a file and values in memory pass through the same functions, so that the same content gives
the same interactions.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import numpy as np
from jaxtyping import Float32, Shaped

if TYPE_CHECKING:
    import polars as pl

Column: TypeAlias = "np.ndarray | Sequence[Any] | pl.Series"
_INT64 = np.iinfo(np.int64)
# Units of NumPy's datetime64 below a second.
_PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9}
# "4,5", but not "1,000", which may be one thousand.
_DECIMAL_COMMA = re.compile(r"\s*-?\d+,\d{1,2}\s*")


class InvalidValue(ValueError):
    """Value of a column that cannot be converted.

    Attributes:
      index: Its position in the column.
      expected: Noun phrase for the message.
      value: The value itself.
    """

    def __init__(self, index: int, expected: str, value: object) -> None:
        super().__init__(f"expected {expected}, got {value!r}")
        self.index, self.expected, self.value = index, expected, value


def import_polars(what: str) -> Any:
    """Imports polars; the ImportError names what needs it and how to install it."""
    try:
        import polars
    except ImportError as error:
        raise ImportError(f"{what} needs polars: pip install 'crl_jax[data]'") from error
    return polars


def parse_ids(column: Any) -> "np.ndarray | list[str] | pl.Series":
    """Converts ids to non-negative integers or text.

    Integers of any type, whole floats, ``Decimal``, text, UTF-8 bytes and ``UUID`` are accepted.
    Floats must be small enough to represent each integer (2**24 in float32, 2**53 in float64).

    Returns:
      An integer array, a list of strings, or a polars Series of strings. Text is not checked.

    Raises:
      InvalidValue: If a value is missing, negative or of another type.
    """
    column = _from_series(column)
    if _is_series(column):
        return column
    if not isinstance(column, np.ndarray):
        return _texts(column)
    match column.dtype.kind:
        case "i" | "u":
            return _reject(column, column < 0, "a non-negative id")
        case "f":
            limit = 2 ** (np.finfo(column.dtype).nmant + 1)  # beyond, integers share a float
            whole = np.isfinite(column) & (column == np.trunc(column)) & (np.abs(column) <= limit)
            expected = f"a whole number up to 2**{np.finfo(column.dtype).nmant + 1}"
            _reject(column, ~whole, f"{expected} as a {column.dtype} id")
            return _reject(column, column < 0, "a non-negative id").astype(np.int64)
        case _:
            return _texts(column.tolist())


def parse_ratings(column: Column) -> Float32[np.ndarray, " n"]:
    """Converts numbers, or text of numbers, to finite float32; raises :class:`InvalidValue`."""
    column = _from_series(column)
    numbers = _cast_text(column, "Float64")
    if numbers is None and isinstance(column, np.ndarray) and column.dtype.kind in "iuf":
        numbers = column
    if numbers is None:
        numbers = _convert(column, float, _number, "a finite number")
    with np.errstate(over="ignore"):
        ratings = numbers.astype(np.float32)
    _reject(column, ~np.isfinite(ratings), "a finite number")
    return ratings


def parse_times(column: Column) -> Shaped[np.ndarray, " n"]:
    """Converts numbers and dates to int64, or to float64 if one is not whole.

    Dates become seconds since 1970; dates without a time zone are taken as UTC. Text may be a
    number or a date of ISO 8601, with or without a trailing " UTC".

    Raises:
      InvalidValue: If a value is missing, not finite, or neither a number nor a date.
    """
    expected = "a finite number or an ISO date"
    column = _from_series(column)
    numbers = _cast_text(column, "Int64")
    if numbers is None:
        numbers = _cast_text(column, "Float64")
    if numbers is None and isinstance(column, np.ndarray):
        if column.dtype.kind == "M":
            _reject(column, np.isnat(column), "a date")
            return datetime_seconds(column)
        if column.dtype.kind in "iuf":
            numbers = column
    if numbers is None:
        numbers = _convert(column, int, _seconds, expected)
    if numbers.dtype.kind == "f" or numbers.max(initial=0) > _INT64.max:
        _reject(column, ~np.isfinite(numbers), expected)
        return numbers.astype(np.float64)
    return numbers.astype(np.int64)


def datetime_seconds(dates: np.ndarray) -> np.ndarray:
    """Converts datetime64 to seconds since 1970, int64 if all are whole."""
    counts = dates.astype(np.int64)
    unit, step = np.datetime_data(dates.dtype)
    if unit in _PER_SECOND:
        seconds, rest = np.divmod(counts * step, _PER_SECOND[unit])
        return counts * step / _PER_SECOND[unit] if rest.any() else seconds
    return dates.astype("datetime64[s]").astype(np.int64)


def _is_series(column: Column) -> bool:
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


def _reject(column: Any, bad: np.ndarray, expected: str) -> Any:
    if bad.any():
        index = int(np.argmax(bad))
        value = column[index]
        raise InvalidValue(index, expected, value.item() if hasattr(value, "item") else value)
    return column


def _is_missing(value: Any) -> bool:
    return (
        value is None
        or (isinstance(value, float | np.floating) and value != value)
        or type(value).__name__ in ("NAType", "NaTType")
    )


def _texts(values: Sequence[Any]) -> list[str]:
    """Ids of any accepted type as text."""
    if set(map(type, values)) == {str}:
        return values if isinstance(values, list) else list(values)
    return [_text(index, value) for index, value in enumerate(values)]


def _text(index: int, value: Any) -> str:
    if _is_missing(value):
        raise InvalidValue(index, "a value", value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidValue(index, "UTF-8 text", value) from None
    if isinstance(value, str | UUID):
        return str(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float | np.floating | Decimal):
        whole = abs(value) <= 2**53 and value == int(value)
        if not whole:
            raise InvalidValue(index, "a whole number up to 2**53", value)
        return str(value) if isinstance(value, Decimal) else str(float(value))
    raise InvalidValue(index, "integers or text", value)


def _cast_text(column: Column, dtype: str) -> np.ndarray | None:
    """Converts a text Series by polars; None if it is another column or a value does not fit."""
    if not _is_series(column):
        return None
    import polars as pl

    numbers = column.cast(getattr(pl, dtype), strict=False)  # pyright: ignore[reportAttributeAccessIssue]
    return None if numbers.null_count() else numbers.to_numpy()


def _convert(
    column: Column, fast: type, parse: Callable[[Any], Any], expected: str
) -> Shaped[np.ndarray, " n"]:
    """Converts values one by one, text by the parser ``fast`` of Python where it suffices."""
    values = column.to_list() if _is_series(column) else list(column)  # pyright: ignore[reportAttributeAccessIssue]
    if set(map(type, values)) == {str} and _is_plain("".join(values)):
        try:
            return np.fromiter(map(fast, values), np.int64 if fast is int else float, len(values))
        except (ValueError, OverflowError):
            pass
    numbers: list[Any] = []
    for index, value in enumerate(values):
        if _is_missing(value):
            raise InvalidValue(index, "a value", value)
        try:
            numbers.append(parse(value))
        except (ValueError, OverflowError, TypeError):
            raise InvalidValue(index, expected, value) from None
    if fast is int and all(isinstance(x, int) and _INT64.min <= x <= _INT64.max for x in numbers):
        return np.array(numbers, np.int64)
    return np.array(numbers, np.float64)


def _is_plain(text: str) -> bool:
    # Python's own parsers also accept "1_000" and the digits of other scripts.
    return "_" not in text and text.isascii()


def _number(value: Any) -> float:
    if isinstance(value, bytes):
        value = value.decode("ascii")
    if isinstance(value, str):
        if not _is_plain(value):
            raise ValueError
        return float(value.replace(",", ".") if _DECIMAL_COMMA.fullmatch(value) else value)
    if isinstance(value, int | float | np.integer | np.floating | Decimal) and not isinstance(
        value, bool
    ):
        return float(value)
    raise TypeError


def _seconds(value: Any) -> int | float:
    if isinstance(value, bytes):
        value = value.decode("ascii")
    if isinstance(value, str):
        if not _is_plain(value):
            raise ValueError
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
