"""Interactions from data in memory: arrays, sparse matrices, tables and mappings of columns."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ._columns import ROLES, ColumnSpec, find_columns
from ._errors import DataError, warn_if
from ._interactions import Interactions
from ._records import RecordBuilder, filter_by_rating, to_interactions
from ._values import Column


def as_interactions(
    x: Any,
    *,
    user_col: str | int | None = None,
    item_col: str | int | None = None,
    rating_col: str | int | None = None,
    time_col: str | int | None = None,
    min_rating: int | float | None = None,
) -> Interactions:
    """Converts data in memory to interactions.

    ===================  ===================================================================
    ``x``                Interpretation
    ===================  ===================================================================
    Interactions         Returned as it is.
    SciPy sparse         Rows are users and columns are items, by index; empty ones are kept.
                         Values are ratings unless all are 1; duplicate entries are summed.
    pandas DataFrame     Named columns, found by name as :func:`read` does.
    polars DataFrame     Likewise.
    Mapping              Likewise, from column names to sequences of values.
    structured array     Likewise.
    array ``[n, 2..4]``  Columns user, item, rating, time, of NumPy or JAX.
    list of tuples       Likewise, one tuple per interaction.
    ===================  ===================================================================

    Values are converted as those of a file are: the same content gives the same interactions. Of
    repeated interactions of a user with an item the last is kept, and a warning counts the
    others. Neither pandas nor polars is imported for other types.

    Args:
      x: The data.
      user_col: Name of the user column, or its position from 0; found by name by default. It
        applies to tables and arrays, as the next three do.
      item_col: Item column.
      rating_col: Rating column, optional; ``""`` reads none.
      time_col: Time column, optional; ``""`` reads none.
      min_rating: Lowest rating to keep. Users and items keep their index.

    Raises:
      ValueError: If ``x`` has another type, or an option does not apply to it.
      DataError: If a column is absent, a value is missing, an id is invalid, or a rating or a
        time is not finite.

    >>> import scipy.sparse
    >>> as_interactions(scipy.sparse.csr_array([[0, 1, 0], [1, 0, 1]]))
    Interactions(2 users, 3 items, 3 interactions)
    >>> as_interactions([("ann", 7, 4.5), ("bob", 7, 3.0)]).user_ids
    array(['ann', 'bob'], dtype='<U3')
    """
    spec = {"user": user_col, "item": item_col, "rating": rating_col, "time": time_col}
    sparse = sys.modules.get("scipy.sparse")  # whose import would take 0.1 s
    if isinstance(x, Interactions) or (sparse is not None and sparse.issparse(x)):
        origin = "Interactions" if isinstance(x, Interactions) else "a sparse matrix"
        for role, column in spec.items():
            if column is not None:
                raise ValueError(f"`{role}_col` applies to tables and arrays, not to {origin}.")
        data = x if isinstance(x, Interactions) else _from_sparse(x)
    else:
        origin, names, get_column = _open_table(x)
        data = from_columns(origin, names, get_column, spec)
    return filter_by_rating(data, min_rating, origin)


def from_columns(
    origin: str, names: Sequence[str], get_column: Callable[[int], Column], spec: ColumnSpec
) -> Interactions:
    """Converts the columns of a table; ``get_column`` returns a column by its position."""
    used = find_columns(names, spec, origin)
    builder = RecordBuilder(origin, {role: str(names[index]) for role, index in used.items()})
    builder.add(
        {role: get_column(index) for role, index in used.items()},
        lambda row: f"{origin}: row {row + 1}",
    )
    return to_interactions([(origin, [builder.build()])])[0]


def _open_table(x: Any) -> tuple[str, list[str], Callable[[int], Column]]:
    """Returns the display name of a table, its column names, and a function of the position."""
    if isinstance(x, jax.Array):
        x = np.asarray(x)
    if isinstance(x, np.ndarray):
        if x.dtype.names is not None:
            names = list(x.dtype.names)
            return "a structured array", names, lambda index: x[names[index]]
        if x.ndim != 2 or not 2 <= x.shape[1] <= len(ROLES):
            raise ValueError(
                "`x` must have a row per interaction and the columns user, item and perhaps "
                f"rating and time, got shape {x.shape}."
            )
        return "an array", [*ROLES[: x.shape[1]]], lambda index: x[:, index]
    if isinstance(x, Mapping):
        columns = list(x.values())
        lengths = {len(column) if hasattr(column, "__len__") else None for column in columns}
        if None in lengths or len(lengths) > 1:
            raise ValueError("`x` must map names to columns of equal length.")
        return "a mapping", [str(name) for name in x], lambda index: _unwrap(columns[index])
    if type(x) in (list, tuple) and all(isinstance(row, list | tuple) for row in x):
        widths = set(map(len, x))
        if len(widths) > 1 or not widths <= {2, 3, 4}:
            raise ValueError(
                "`x` must have tuples (user, item), (user, item, rating) or (user, item, rating, "
                f"time), got tuples of {sorted(widths)} values."
            )
        columns = [list(column) for column in zip(*x, strict=True)] or [[], []]
        return "a list of tuples", [*ROLES[: len(columns)]], columns.__getitem__
    match type(x).__module__.split(".")[0], type(x).__name__:
        case "polars", "DataFrame":
            return "a polars DataFrame", x.columns, lambda index: x[:, index]
        case "pandas", "DataFrame":
            names = [str(name) for name in x.columns]
            return "a pandas DataFrame", names, lambda index: _unwrap(x.iloc[:, index])
    raise ValueError(
        "`x` must be Interactions, a SciPy sparse matrix or array, a DataFrame of pandas or "
        "polars, a mapping of columns, a list of tuples, or an array [n, 2..4], got "
        f"{type(x).__module__}.{type(x).__qualname__}."
    )


def _unwrap(column: Any) -> Column:
    """Converts a column of JAX, pandas or a sequence."""
    if isinstance(column, np.ndarray) or type(column).__module__.startswith("polars"):
        return column
    if not hasattr(column, "iloc"):
        return np.asarray(column) if isinstance(column, jax.Array) else list(column)
    if (missing := column.isna().to_numpy()).any():
        row, name = int(np.argmax(missing)) + 1, column.name
        raise DataError(f"a pandas DataFrame: row {row}: expected a value as {name!r}, got none.")
    if getattr(column.dtype, "tz", None) is not None:
        column = column.dt.tz_convert(None)  # to UTC
    return column.to_numpy()


def _from_sparse(x: Any) -> Interactions:
    if x.ndim != 2:
        raise ValueError(f"`x` must have a row per user and a column per item, got {x.shape}.")
    if x.dtype.kind not in "biuf":
        raise ValueError(f"`x` must hold numbers, got {x.dtype}.")
    # Sums of small integers may overflow; sums of booleans are booleans.
    entries = (x.copy() if x.dtype.kind == "b" else x.astype(np.float64)).tocsr()
    entries.sum_duplicates()
    entries = entries.tocoo()
    nonzero = entries.data != 0  # includes NaN, which is refused as a rating
    warn_if(int(np.sum(~nonzero)), "dropped {n} stored zeros", origin="a sparse matrix")
    values = entries.data[nonzero]
    return Interactions.from_arrays(
        entries.row[nonzero],
        entries.col[nonzero],
        ratings=None if np.all(values == 1) else values,
        user_ids=np.arange(x.shape[0]),
        item_ids=np.arange(x.shape[1]),
    )
