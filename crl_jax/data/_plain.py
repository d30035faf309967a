"""Lines of plain numbers, a block of text at a time, with array operations.

A parser of CSV sees to quotes, blank lines, names and faults, and takes many times as long. A block
with anything of that kind is left to it.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from ._columns import Found

_NEWLINE, _DOT, _ZERO = b"\n.0"
# A whole number of so many digits fits int64, and a decimal one of so many is read exactly: both
# its digits and the power of ten below them are floats.
_WHOLE_DIGITS, _DECIMAL_DIGITS = 18, 15
_TENS = 10.0 ** np.arange(_DECIMAL_DIGITS + 1)


class Numbers(NamedTuple):
    """The columns of a block, each ``[rows]``."""

    users: Int64[np.ndarray, " rows"]
    items: Int64[np.ndarray, " rows"]
    ratings: Float32[np.ndarray, " rows"] | None
    timestamps: Int64[np.ndarray, " rows"] | None


def read_plain(block: bytes, delimiter: str, width: int, columns: Found) -> Numbers | None:
    """The numbers in complete lines, or None if not all fields are numbers without a sign.

    Ids are integers as Python writes them, and times are integers; only ratings may have a point.

    Args:
      block: Text whose lines end in LF or CR LF, all of them.
      delimiter: One ASCII character, or several that stand for one.
      width: Fields of a line.
      columns: The places of those that are read.
    """
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    separator = delimiter.encode()
    if len(separator) > 1:
        if b"\x1f" in block:
            return None
        block, separator = block.replace(separator, b"\x1f"), b"\x1f"
    text = np.frombuffer(block, np.uint8)
    kinds = np.zeros(256, np.uint8)
    kinds[np.frombuffer(b"0123456789", np.uint8)] = 1
    kinds[_DOT] = 2
    kinds[[_NEWLINE, separator[0]]] = 3
    kind = kinds[text]
    if not kind.all():
        return None
    ends = np.flatnonzero(kind == 3)
    if len(ends) % width or not _are_lines(text[ends].reshape(-1, width)):
        return None
    starts = np.append(0, ends[:-1] + 1).reshape(-1, width)
    ends = ends.reshape(-1, width)
    lengths = ends - starts
    if not lengths.all():
        return None
    dots = np.flatnonzero(kind == 2)
    points = np.searchsorted(ends.ravel(), dots)  # the fields with a point
    whole = [place for place in (columns.user, columns.item, columns.time) if place is not None]
    if len(dots) and (np.any(points[1:] == points[:-1]) or np.isin(points % width, whole).any()):
        return None

    found: list[np.ndarray] = []
    for place in whole:
        start, length = starts[:, place], lengths[:, place]
        if length.max() > _WHOLE_DIGITS:
            return None
        is_id = place != columns.time
        if is_id and np.any((text[start] == _ZERO) & (length > 1)):
            return None
        found.append(_digits(text, start, length))
    ratings = None
    if (place := columns.rating) is not None:
        own = points % width == place
        rows, at = points[own] // width, dots[own]
        ratings = _decimals(text, starts[:, place], ends[:, place], rows, at)
        if ratings is None:
            return None
    return Numbers(found[0], found[1], ratings, found[2] if len(found) == 3 else None)


def _are_lines(separators: UInt8[np.ndarray, "rows width"]) -> bool:
    """Whether each row of separators ends in the line's end, and has no other one."""
    is_end = separators == _NEWLINE
    return bool(is_end[:, -1].all() and not is_end[:, :-1].any())


def _decimals(
    text: UInt8[np.ndarray, " bytes"],
    start: Int64[np.ndarray, " rows"],
    end: Int64[np.ndarray, " rows"],
    pointed: Int64[np.ndarray, " pointed"],
    dots: Int64[np.ndarray, " pointed"],
) -> Float32[np.ndarray, " rows"] | None:
    """The numbers of which ``pointed`` have a point, at ``dots``; None if one cannot be told."""
    length = end - start
    if length.max() > _DECIMAL_DIGITS or np.any(length[pointed] == 1):
        return None
    number = _digits(text, start, length).astype(np.float64)
    number[pointed] /= _TENS[end[pointed] - dots - 1]
    return number.astype(np.float32)


def _digits(
    text: UInt8[np.ndarray, " bytes"],
    start: Int64[np.ndarray, " rows"],
    length: Int64[np.ndarray, " rows"],
) -> Int64[np.ndarray, " rows"]:
    """The numbers that the digits of some fields make; points do not count."""
    number = np.zeros(len(start), np.int64)
    rows: slice | np.ndarray = slice(None)
    for place in range(int(length.max(initial=0))):
        if place >= length.min():
            rows = np.flatnonzero(length > place)
        byte = text[start[rows] + place].astype(np.int64)
        digit = byte != _DOT
        number[rows] = np.where(digit, number[rows] * 10 + (byte - _ZERO), number[rows])
    return number
