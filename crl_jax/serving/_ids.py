"""Lookup of dataset ids in embedding tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from .._checks import is_canonical_integer

_INT64_MAX = np.iinfo(np.int64).max


class Ids:
    """Vectorised lookup of row indices by distinct id; 196 and "196" are the same id."""

    def __init__(self, kind: str, ids: Shaped[np.ndarray, " n"]):
        self.kind, self.ids = kind, ids
        self._order = np.argsort(ids)
        self._sorted = ids[self._order]

    def indices(self, wanted: Any) -> Int64[np.ndarray, " n_wanted"]:
        """Row indices of one id or several; ``ValueError`` if one is unknown."""
        queries = _column(wanted, self.kind)
        converted = self._convert(queries)
        is_known = np.array([x is not None for x in converted], bool)
        keys = np.array([x for x in converted if x is not None], self.ids.dtype.type)
        index = np.searchsorted(self._sorted, keys)
        index = np.minimum(index, len(self.ids) - 1)
        is_known[is_known] = self._sorted[index] == keys
        if not is_known.all():
            unknown = queries[int(np.argmin(is_known))]
            more = f" and {n} more" if (n := int(np.sum(~is_known)) - 1) else ""
            known = ", ".join(str(x) for x in self.ids[:3].tolist())
            raise ValueError(
                f"Unknown {self.kind} id {unknown!r}{more}: none of the {len(self.ids)}, {known}, …"
            )
        return self._order[index]

    def _convert(self, queries: Sequence[Any]) -> list[Any]:
        """Converts ids to the type of the vocabulary; None where that is impossible."""
        texts = [_text(x) for x in queries]
        if self.ids.dtype.kind == "U":
            # NumPy drops a trailing NUL, and no valid id has one.
            return [None if x is None or "\0" in x else x for x in texts]
        return [  # "01" is not 1, although int("01") is
            int(x) if x is not None and is_canonical_integer(x) and int(x) <= _INT64_MAX else None
            for x in texts
        ]


def _column(wanted: Any, kind: str) -> list[Any]:
    """Converts ids to a list of Python objects."""
    if isinstance(wanted, str | bytes | int | float | np.generic):
        wanted = [wanted]
    try:
        column = wanted.tolist() if hasattr(wanted, "tolist") else list(wanted)
    except TypeError:
        column = None
    if isinstance(column, list) and not any(isinstance(x, list | tuple | dict) for x in column):
        return [x.item() if isinstance(x, np.generic) else x for x in column]
    raise ValueError(f"Expected one {kind} id or a list of them, got {wanted!r}.")


def _text(name: Any) -> str | None:
    if isinstance(name, float):  # integers of a column with missing values
        return str(int(name)) if name.is_integer() else None
    if isinstance(name, bytes):
        return name.decode("utf-8", "replace")
    return str(name) if isinstance(name, int | str) else None
