"""Argument validation with one message style: name, condition, value."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._floats import rounded

_WHOLE = re.compile(r"0|[1-9][0-9]{0,18}")
_NUMBERS = (int, float, list, tuple, np.generic, np.ndarray, jax.Array)


def is_static(*sizes: Any) -> bool:
    """Whether all sizes are integers; ``jax.export`` also traces with symbolic ones.

    An algorithm that is chosen by size must have a default for sizes that are not known.
    """
    return all(isinstance(size, int) for size in sizes)


def check_shape(name: str, array: Any, expected: tuple[int, ...]) -> None:
    """Raises ``ValueError`` unless ``array`` is None or has the shape ``expected``."""
    if array is not None and tuple(np.shape(array)) != tuple(expected):
        raise ValueError(f"`{name}` must have shape {tuple(expected)}, got {np.shape(array)}.")


def check_int32(name: str, array: Any) -> None:
    """Raises ``ValueError`` if NumPy integers do not fit into 32 bits: JAX would wrap them."""
    if isinstance(array, np.ndarray) and array.size and array.dtype.kind in "iu":
        info = np.iinfo(np.int32)
        for worst in (array.min(), array.max()):
            if not info.min <= worst <= info.max:
                raise ValueError(f"`{name}` must fit into 32 bits, got {worst}.")


def check_negatives(neg: Any) -> None:
    """Raises ``ValueError`` if the last axis, that of the negatives of an anchor, is empty."""
    if is_static(neg.shape[-1]) and not neg.shape[-1]:
        raise ValueError(
            f"`neg` must have at least one negative per anchor, got shape {neg.shape}."
        )


@dataclass(frozen=True)
class Range:
    """Interval of valid values, as metadata of an annotation: ``Annotated[float, Range(0, 1)]``.

    Attributes:
      low: Lower end.
      high: Upper end.
      low_open: Whether the lower end is excluded.
      high_open: Whether the upper end is excluded.

    >>> print(Range(0, 1, high_open=True))
    [0, 1)
    """

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def __str__(self) -> str:
        left, right = "(" if self.low_open else "[", ")" if self.high_open else "]"
        return f"{left}{self.low}, {self.high}{right}"

    def check(self, name: str, value: Any, dtype: Any = None) -> None:
        """Raises ``ValueError`` if a concrete ``value`` lies outside the interval.

        Open ends are compared with the value rounded to ``dtype``: in float32, 1 - 1e-8 is 1, which
        lies outside [0, 1).

        Args:
          name: Name of the argument, for the message.
          value: Number or array of numbers; traced values and objects that are not numbers pass.
          dtype: Floating type that the value is rounded to before it is used; ``None`` is JAX's
            default: float64 under ``jax_enable_x64``, float32 otherwise.
        """
        if isinstance(value, str):
            raise ValueError(f"`{name}` must be a number or an array of numbers, got {value!r}.")
        if isinstance(value, Tracer) or not isinstance(value, _NUMBERS):
            return
        numbers = np.asarray(value, dtype=np.float64)
        used = rounded(value, dtype)
        above = used > self.low if self.low_open else numbers >= self.low
        below = used < self.high if self.high_open else numbers <= self.high
        outside = np.argwhere(~(above & below))
        if len(outside):
            at = tuple(outside[0].tolist())
            got = shortest_repr(np.asarray(value)[at]) + (f" at index {list(at)}" if at else "")
            if self.low < numbers[at] < self.high:  # reaches an open end only by rounding
                got += f", which is {shortest_repr(used[at])} in {used.dtype}"
            raise ValueError(f"`{name}` must lie in {self}, got {got}.")


def check_range(
    name: str,
    value: Any,
    low: int | float,
    high: int | float,
    *,
    low_open: bool = False,
    high_open: bool = False,
    dtype: Any = None,
) -> None:
    """Raises ``ValueError`` if a value lies outside an interval, see :meth:`Range.check`."""
    Range(low, high, low_open, high_open).check(name, value, dtype)


def check_registered(name: str, value: Any) -> None:
    """Raises ``ValueError`` unless ``value`` is a registered pytree."""
    if jax.tree_util.all_leaves([value]):
        raise ValueError(
            f"`{name}` must be a pytree: decorate it with @crl_jax.pytree_dataclass, got "
            f"{type(value).__name__}."
        )


def shortest_repr(number: Any) -> str:
    """Shortest decimal representation that is unique in the number's type.

    A float64 that float32 represents exactly is printed as a float32, so that the elements of
    ``array.tolist()`` print like the array.

    >>> shortest_repr(jnp.array([0.3]).tolist()[0]), shortest_repr(0.3), shortest_repr(1 - 1e-8)
    ('0.3', '0.3', '0.99999999')
    """
    exact = np.asarray(number)
    if not jnp.issubdtype(exact.dtype, jnp.floating):  # also integers beyond 64 bits
        return str(number)
    exact = exact[()]
    with np.errstate(over="ignore"):
        single = exact.astype(np.float32)
    return str(single if single == exact else exact)


def is_canonical_integer(name: str) -> bool:
    """Whether an id is an integer as Python writes it: "10", but not "010", "+10" or "1e1"."""
    return _WHOLE.fullmatch(name) is not None


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises ``ValueError`` unless ``value`` is one of the strings ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(choices)}, got {value!r}.")


def check_float_dtype(name: str, dtype: Any) -> None:
    """Raises ``ValueError`` unless ``dtype`` is None or the name of a floating dtype.

    >>> check_float_dtype("compute_dtype", "int8")
    Traceback (most recent call last):
    ValueError: `compute_dtype` must be a floating dtype, such as bfloat16, got 'int8'.
    """
    try:
        is_float = dtype is None or jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:  # an unknown name
        is_float = False
    if not is_float:
        raise ValueError(f"`{name}` must be a floating dtype, such as bfloat16, got {dtype!r}.")


def check_count(name: str, count: Any, minimum: float = 1) -> None:
    """Raises ``ValueError`` unless ``count`` is whole and at least ``minimum``."""
    if not isinstance(count, (int, np.integer)):
        raise ValueError(f"`{name}` must be a whole number, got {count!r}.")
    if count < minimum:
        raise ValueError(f"`{name}` must be at least {minimum}, got {count}.")


def check_finite(name: str, array: np.ndarray) -> None:
    """Raises ``ValueError`` if a number is NaN or infinite."""
    if not (finite := np.isfinite(array)).all():
        raise ValueError(f"`{name}` must be finite, got {array[~finite][0]}.")


def check_distinct(name: str, values: Sequence[Hashable] | np.ndarray) -> None:
    """Raises ``ValueError`` if a value occurs more than once."""
    if isinstance(values, np.ndarray):  # millions of ids, of which a dictionary takes much memory
        unique, counts = np.unique(values, return_counts=True)
        items = zip(unique[counts > 1].tolist(), counts[counts > 1].tolist())
    else:
        items = (item for item in Counter(values).items() if item[1] > 1)
    if repeated := next(items, None):
        value, count = repeated
        raise ValueError(f"`{name}` must be distinct, got {value!r} {count} times.")


def check_sequences(name: str, rows: Any) -> None:
    """Raises ``ValueError`` unless ``rows`` are integers ``[n, width]``, padded on the left alone.

    Of traced rows the shape and the type are checked.
    """
    shape, dtype = getattr(rows, "shape", ()), getattr(rows, "dtype", None)
    if len(shape) != 2 or dtype is None or not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(
            f"`{name}` must be integers [n, width], got {type(rows).__name__} of shape {shape}."
        )
    if isinstance(rows, Tracer):
        return
    is_item = np.asarray(rows) >= 0
    is_wrong = (is_item[:, :-1] & ~is_item[:, 1:]).any(axis=1)
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise ValueError(
            f"`{name}` must have padding on the left of the items alone, got {rows[row]} in row "
            f"{row}."
        )


def as_mask(name: str, mask: Any) -> Any:
    """Converts a mask of booleans, or of zeros and ones, to a boolean array; None passes.

    Raises:
      ValueError: If a concrete mask contains other values.

    >>> as_mask("where", [1, 0])
    Array([ True, False], dtype=bool)
    """
    if mask is None:
        return None
    array = jnp.asarray(mask)
    if array.dtype == bool:
        return array
    if not isinstance(array, Tracer):
        other = np.asarray(array)
        other = other[(other != 0) & (other != 1)]
        if other.size:
            raise ValueError(
                f"`{name}` must be boolean or contain only 0 and 1, got {shortest_repr(other[0])}."
            )
    return array != 0
