"""What sets of examples share: arrays that cannot be written to, places, and the draw of a part."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Shaped
from numpy.typing import ArrayLike

from ._errors import DataError

_SHARE = 0.2


def drawn_for_test(
    labels: Int32[np.ndarray, " n"],
    share: float | None,
    origin: str,
    *,
    seed: int = 0,
    what: str = "images",
) -> Bool[np.ndarray, " n"]:
    """Which examples are the test part: of each class ``round(share * n)``, drawn uniformly.

    The share is 0.2 if it is None. At least one of each class is drawn, and not all: a class of a
    single one stays in training. The draw depends on nothing but the labels in their order, and the
    seed.

    Raises:
      DataError: If no class has two examples.
    """
    share = _SHARE if share is None else share
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    drawn = np.zeros(len(labels), bool)
    for of_class in np.split(order, 1 + np.flatnonzero(np.diff(labels[order]))):
        n_drawn = min(max(round(share * len(of_class)), 1), len(of_class) - 1)
        drawn[of_class[: max(n_drawn, 0)]] = True
    if not drawn.any():
        has_classes = bool((labels >= 0).any())
        of, only = ("a class of ", ", each the only one of its class") if has_classes else ("", "")
        raise DataError(
            f"{origin}: expected {of}two {what} or more, of which a part is kept for testing, "
            f"got {len(labels)} {what}{only}."
        )
    return drawn


def places_of(index: ArrayLike) -> Shaped[np.ndarray, " k"]:
    """Places or a mask as an array that indexes.

    Raises:
      ValueError: If they are neither.
    """
    places = np.asarray(index)
    if places.ndim != 1 or (places.size and places.dtype.kind not in "iub"):
        raise ValueError(
            "`index` must be a slice, or a one-dimensional array of integers or booleans, "
            f"got shape {places.shape} of {places.dtype}."
        )
    return places if places.size else places.astype(np.intp)


def read_only(name: str, array: Any, dtype: Any, ndim: int) -> np.ndarray:
    """The array if it is read-only, or a copy that is.

    Raises:
      ValueError: If it has another type or number of axes.
    """
    array = np.asarray(array)
    if array.ndim != ndim or array.dtype != dtype:
        raise ValueError(
            f"`{name}` must have {ndim} dimensions and be of {np.dtype(dtype)}, "
            f"got shape {array.shape} of {array.dtype}."
        )
    if array.flags.writeable:
        array = array.copy()
        array.setflags(write=False)
    return array
