"""Shared by the containers of examples: validation, parts, and random test splits."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int32, Shaped
from numpy.typing import ArrayLike

from .._checks import check_distinct
from ._errors import DataError


def sample_test_mask(
    labels: Int32[np.ndarray, " n"],
    fraction: float | None,
    origin: str,
    *,
    seed: int = 0,
    unit: str = "images",
) -> Bool[np.ndarray, " n"]:
    """Samples a stratified test set: ``round(fraction * n)`` examples per class, as a mask.

    The default fraction is 0.2. Each class keeps at least one training example and, if it has two
    or more, contributes at least one test example. The mask depends only on ``labels`` and
    ``seed``.

    Raises:
      DataError: If no class has two examples.
    """
    fraction = 0.2 if fraction is None else fraction
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    mask = np.zeros(len(labels), bool)
    for members in np.split(order, 1 + np.flatnonzero(np.diff(labels[order]))):
        n_test = min(max(round(fraction * len(members)), 1), len(members) - 1)
        mask[members[: max(n_test, 0)]] = True
    if not mask.any():
        has_classes = bool((labels >= 0).any())
        prefix, suffix = ("a class of ", ", each of another class") if has_classes else ("", "")
        raise DataError(
            f"{origin}: expected {prefix}two {unit} or more, of which a part is for testing, "
            f"got {len(labels)} {unit}{suffix}."
        )
    return mask


class Split:
    """Base class of datasets in parts, which are the fields that are not None."""

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yields the name and the examples of each part except absent ones, train first."""
        for name in ("train", "valid", "test", "unlabelled"):
            if (part := getattr(self, name, None)) is not None:
                yield name, part


def check_labels(labels: np.ndarray, classes: tuple[str, ...], low: int = -1) -> None:
    """Raises ``ValueError`` unless classes are distinct and labels lie in ``[low, n_classes)``."""
    check_distinct("classes", classes)
    check_indices("labels", labels, len(classes), low)


def check_indices(name: str, index: np.ndarray, n: int, low: int = 0) -> None:
    """Raises ``ValueError`` unless all indices lie in ``[low, n)``."""
    if index.size and (index.min() < low or index.max() >= n):
        raise ValueError(f"`{name}` must lie in [{low}, {n}), got {index.min()} to {index.max()}.")


def check_same_classes(split: Split) -> None:
    """Raises ``ValueError`` unless all parts have the classes of the training part."""
    parts = dict(split.parts())
    for name, part in parts.items():
        if part.classes != parts["train"].classes:
            raise ValueError(f"`{name}` must have the classes of `train`.")


def as_index(index: ArrayLike) -> Shaped[np.ndarray, " k"]:
    """Converts integer indices or a boolean mask to an array; ValueError for others."""
    index = np.asarray(index)
    if index.ndim != 1 or (index.size and index.dtype.kind not in "iub"):
        raise ValueError(
            "`index` must be a slice, or a one-dimensional array of integers or booleans, "
            f"got shape {index.shape} of {index.dtype}."
        )
    return index if index.size else index.astype(np.intp)


def selected_rows(index: ArrayLike | slice, n: int) -> Int[np.ndarray, " k"]:
    """Returns the rows of ``n`` that integers, a mask or a slice select."""
    return np.arange(n)[index if isinstance(index, slice) else as_index(index)]


def as_read_only(name: str, array: Any, dtype: Any, ndim: int) -> np.ndarray:
    """Returns a read-only array, perhaps a copy; ValueError for another type or dimension."""
    array = np.asarray(array)
    dtypes = [np.dtype(x) for x in (dtype if isinstance(dtype, tuple) else (dtype,))]
    if array.ndim != ndim or array.dtype.type not in [x.type for x in dtypes]:
        expected = " or ".join(x.name for x in dtypes)
        raise ValueError(
            f"`{name}` must be a {ndim}-dimensional array of {expected}, "
            f"got shape {array.shape} of {array.dtype}."
        )
    if array.flags.writeable:
        array = array.copy()
        array.setflags(write=False)
    return array


def freeze_arrays(instance: Any, dtypes: Mapping[str, Any], ndim: int = 1) -> None:
    """Replaces fields of a frozen dataclass by the results of :func:`as_read_only`; None stays."""
    for name, dtype in dtypes.items():
        if (array := getattr(instance, name)) is not None:
            object.__setattr__(instance, name, as_read_only(name, array, dtype, ndim))
