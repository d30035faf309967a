"""From the ids of a user of the library to rows of tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from .._checks import is_canonical_integer

_INT64_MAX = np.iinfo(np.int64).max


class Ids:
    """A vocabulary that is asked for many ids at once; 196 and "196" are the same id.

    Args:
      kind: What messages call an id: "user" or "item".
      ids: Distinct ids, int64 or text, ``[n]``.
    """

    def __init__(self, kind: str, ids: Shaped[np.ndarray, " n"]):
        self.kind, self.ids = kind, ids
        self._order = np.argsort(ids)
        self._sorted = ids[self._order]

    def places(self, wanted: Any) -> Int64[np.ndarray, " n_wanted"]:
        """Where each of some ids stands.

        Args:
          wanted: One id, or a one-dimensional array or sequence of them.

        Raises:
          ValueError: If one is unknown, or ``wanted`` is nothing of the kind.
        """
        given = _column(wanted, self.kind)
        names = self._as_mine(given)
        found = np.array([name is not None for name in names], bool)
        keys = np.array([name for name in names if name is not None], self.ids.dtype.type)
        place = np.searchsorted(self._sorted, keys)
        place = np.minimum(place, len(self.ids) - 1)
        found[found] = self._sorted[place] == keys
        if not found.all():
            unknown = given[int(np.argmin(found))]
            more = f" and {n} more" if (n := int(np.sum(~found)) - 1) else ""
            some = ", ".join(str(x) for x in self.ids[:3].tolist())
            raise ValueError(
                f"Unknown {self.kind} id {unknown!r}{more}: none of the {len(self.ids)}, {some}, …"
            )
        return self._order[place]

    def _as_mine(self, given: Sequence[Any]) -> list[Any]:
        """Each id as the vocabulary would hold it, None for one that it cannot hold."""
        texts = [_text(x) for x in given]
        if self.ids.dtype.kind == "U":
            # NumPy drops a NUL at the end, and no valid id has one.
            return [None if x is None or "\0" in x else x for x in texts]
        return [  # "01" is not 1, and int() would say it is
            int(x) if x is not None and is_canonical_integer(x) and int(x) <= _INT64_MAX else None
            for x in texts
        ]


def _column(wanted: Any, kind: str) -> list[Any]:
    """The ids as a list of Python's own objects."""
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
    if isinstance(name, float):  # what table readers make of integers beside a gap
        return str(int(name)) if name.is_integer() else None
    if isinstance(name, bytes):
        return name.decode("utf-8", "replace")
    return str(name) if isinstance(name, int | str) else None
