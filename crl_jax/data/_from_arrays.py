"""What people hold in memory as interactions: arrays, sparse matrices and tables."""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ._columns import Requested, find_columns
from ._errors import DataError, warn_if
from ._interactions import Interactions
from ._polars import collect_frame
from ._records import Collector, rated_at_least, to_interactions

_ROLES = ("user", "item", "rating", "time")


def as_interactions(
    x: Any,
    *,
    user_col: str | int | None = None,
    item_col: str | int | None = None,
    rating_col: str | int | None = None,
    time_col: str | int | None = None,
    min_rating: int | float | None = None,
) -> Interactions:
    """Interactions from what is already in memory. Ids stay what they are.

    ==================  ====================================================================
    ``x``               What is read
    ==================  ====================================================================
    Interactions        Itself.
    SciPy sparse        Users are rows and items are columns, by index. Rows and columns
                        without an entry keep their place. The values are ratings, unless
                        all are 1. Values at one place add up, as SciPy has it.
    pandas DataFrame    Named columns, guessed as :func:`read` guesses those of a file.
    polars DataFrame    The same.
    NumPy ``[n, 2..4]`` Columns user, item, rating, time.
    ==================  ====================================================================

    Of repeated interactions of a user with an item the last is kept, and a warning counts the
    others. Dates are read as seconds since 1970, UTC. A DataFrame is recognised by the module of
    its class: neither pandas nor polars is imported for anything else.

    Args:
      x: The data.
      user_col: The name of the column with the users, or its position from 0. By default it is
        guessed. It belongs to tables and arrays, as the next three do.
      item_col: The same for the items.
      rating_col: The same for the ratings. There need be none, and ``""`` reads none.
      time_col: The same for the times. There need be none, and ``""`` reads none.
      min_rating: Only interactions rated at least this are kept. Their users and items keep
        their index.

    Raises:
      ValueError: If ``x`` is none of these, or an option does not belong to it.
      DataError: If a column is absent, a value is missing, an id is invalid, or a rating or a
        time is not finite.

    >>> import scipy.sparse
    >>> as_interactions(scipy.sparse.csr_array([[0, 1, 0], [1, 0, 1]]))
    Interactions(2 users, 3 items, 3 interactions)
    >>> as_interactions(np.array([["ann", "7"], ["bob", "7"]])).user_ids
    array(['ann', 'bob'], dtype='<U3')
    """
    requested = Requested(user_col, item_col, rating_col, time_col)
    read, what, has_columns = _reader(x)
    for role, column in requested._asdict().items():
        if column is not None and not has_columns:
            raise ValueError(f"`{role}_col` belongs to tables and arrays, not to {what}.")
    return rated_at_least(read(x, requested), min_rating, what)


def _reader(x: Any) -> tuple[Callable[[Any, Requested], Interactions], str, bool]:
    """How ``x`` is read, what it is called, and whether columns may be named."""
    if isinstance(x, Interactions):
        return lambda x, _: x, "Interactions", False
    if _is_sparse(x):
        return _from_sparse, "a sparse matrix", False
    if isinstance(x, np.ndarray):
        return _from_array, "an array", True
    module = type(x).__module__.split(".")[0]
    if module in ("pandas", "polars") and type(x).__name__ == "DataFrame":
        read = _from_pandas if module == "pandas" else _from_polars
        return read, f"a {module} DataFrame", True
    raise ValueError(
        "`x` must be Interactions, a SciPy sparse matrix or array, a DataFrame of pandas or "
        f"polars, or a NumPy array [n, 2..4], got {type(x).__module__}.{type(x).__qualname__}."
    )


def _is_sparse(x: Any) -> bool:
    """Without an import of a tenth of a second: who holds a sparse matrix has done it."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and sparse.issparse(x)


def _from_sparse(x: Any, _: Requested) -> Interactions:
    if x.ndim != 2:
        raise ValueError(f"`x` must have a row per user and a column per item, got {x.shape}.")
    if x.dtype.kind not in "biuf":
        raise ValueError(f"`x` must hold numbers, got {x.dtype}.")
    # Sums of small integers may pass their range; those of booleans are booleans.
    entries = (x.copy() if x.dtype.kind == "b" else x.astype(np.float64)).tocsr()
    entries.sum_duplicates()
    entries = entries.tocoo()
    there = entries.data != 0  # a NaN is there, and refused as a rating
    warn_if(int(np.sum(~there)), "dropped {n} stored zeros", of="a sparse matrix")
    values = entries.data[there]
    return Interactions.from_arrays(
        entries.row[there],
        entries.col[there],
        ratings=None if np.all(values == 1) else values,
        user_ids=np.arange(x.shape[0]),
        item_ids=np.arange(x.shape[1]),
    )


def _from_array(x: np.ndarray, requested: Requested) -> Interactions:
    if x.ndim != 2 or not 2 <= x.shape[1] <= len(_ROLES):
        raise ValueError(
            "`x` must have a row per interaction and the columns user, item and, if there are any, "
            f"rating and time, got shape {x.shape}."
        )
    return _from_columns("an array", _ROLES[: x.shape[1]], lambda place: x[:, place], requested)


def _from_polars(x: Any, requested: Requested) -> Interactions:
    found = find_columns(x.columns, requested, "a polars DataFrame")._asdict()
    chosen = {role: x[x.columns[place]] for role, place in found.items() if place is not None}
    collector = Collector()
    collect_frame("a polars DataFrame", chosen, collector)
    return to_interactions([collector.records("a polars DataFrame")])[0]


def _from_pandas(x: Any, requested: Requested) -> Interactions:
    def column(place: int) -> np.ndarray:
        values = x.iloc[:, place]
        if (missing := values.isna().to_numpy()).any():
            raise DataError(
                f"a pandas DataFrame: row {int(np.argmax(missing)) + 1}: expected a value as "
                f"{x.columns[place]!r}, got none."
            )
        if getattr(values.dtype, "tz", None) is not None:
            values = values.dt.tz_convert(None)  # to UTC
        return values.to_numpy()

    names = [str(name) for name in x.columns]
    return _from_columns("a pandas DataFrame", names, column, requested)


def _from_columns(
    what: str, names: Sequence[str], column: Callable[[int], np.ndarray], requested: Requested
) -> Interactions:
    found = find_columns(names, requested, what)
    users, items = column(found.user), column(found.item)
    if not len(users):
        raise DataError(f"{what}: expected interactions, got none.")
    return Interactions.from_arrays(
        users,
        items,
        ratings=None if found.rating is None else _numbers(column(found.rating)),
        timestamps=None if found.time is None else _numbers(column(found.time)),
    )


def _numbers(values: np.ndarray) -> np.ndarray:
    """Numbers, also where text or objects stand for them; what holds none is left as it is."""
    if values.dtype.kind == "O":
        values = np.array(values.tolist())
    for dtype in (np.int64, np.float64):
        if values.dtype.kind == "U":
            with suppress(ValueError):
                values = values.astype(dtype)
    return values
