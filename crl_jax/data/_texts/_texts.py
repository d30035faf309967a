"""Texts with labels on the host, and their splits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int32
from numpy.typing import ArrayLike

from ..._checks import check_shape
from .._errors import DataError
from .._split_sampling import (
    Split,
    check_labels,
    check_same_classes,
    sample_test_mask,
    selected_rows,
)


@dataclass(frozen=True, eq=False, repr=False)
class Texts:
    """Texts with labels, on the host.

    Attributes:
      texts: Non-empty strings.
      labels: Class of each text in ``[0, len(classes))``, or -1 without a label; int32 ``[n]``,
        read-only.
      classes: Distinct class names; empty if no text has a label.

    Raises:
      ValueError: If a field has another type, shape or range.

    >>> data = Texts(("good film", "bad film"), np.array([1, 0], np.int32), ("no", "yes"))
    >>> data
    Texts(2, 2 classes)
    >>> data.take(data.labels == 1).texts
    ('good film',)
    """

    texts: tuple[str, ...]
    labels: Int32[np.ndarray, " n"]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", tuple(self.texts))
        object.__setattr__(self, "classes", tuple(self.classes))
        for i, text in enumerate(self.texts):
            if not isinstance(text, str) or not text:
                raise ValueError(
                    f"`texts` must be non-empty strings, got {text!r:.50} at index {i}."
                )
        labels = np.array(self.labels)
        if labels.dtype != np.int32:
            raise ValueError(f"`labels` must be of int32, got {labels.dtype}.")
        check_shape("labels", labels, (len(self.texts),))
        check_labels(labels, self.classes)
        labels.setflags(write=False)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"Texts({len(self)}, {len(self.classes)} classes)"

    def take(self, index: ArrayLike | slice) -> "Texts":
        """Selects texts in the order of ``index``, as :meth:`Images.take` does."""
        index = selected_rows(index, len(self))
        return Texts(tuple(self.texts[i] for i in index), self.labels[index], self.classes)

    def without_labels(self) -> "Texts":
        """Returns the texts without labels and classes."""
        return Texts(self.texts, np.full(len(self), -1, np.int32), ())

    @classmethod
    def from_names(
        cls, texts: Sequence[str], names: Sequence[str], classes: Sequence[str]
    ) -> "Texts":
        """Returns texts whose labels are given by class names."""
        index = {name: i for i, name in enumerate(classes)}
        return cls(tuple(texts), np.array([index[x] for x in names], np.int32), tuple(classes))


@dataclass(frozen=True, eq=False)
class TextSplit(Split):
    """Training, test and validation parts of a dataset of texts; the last may be None.

    Raises:
      ValueError: If the parts differ in their classes.
    """

    train: Texts
    test: Texts
    valid: Texts | None = None

    def __post_init__(self) -> None:
        check_same_classes(self)


def split_texts(data: Texts, fraction: float | None, seed: int, origin: str) -> TextSplit:
    """Samples a test part, see :func:`sample_test_mask`."""
    mask = sample_test_mask(data.labels, fraction, origin, seed=seed, unit="texts")
    return TextSplit(data.take(~mask), data.take(mask))


def sorted_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Returns distinct names, sorted by number if all are integers, else by code points."""
    distinct = set(names)
    is_number = all(
        name.isascii() and name.removeprefix("-").isdigit() and len(name) < 1000
        for name in distinct
    )
    return tuple(sorted(distinct, key=(lambda name: (int(name), name)) if is_number else None))


def as_texts(texts: Any, labels: Any = None) -> Texts:
    """Converts sequences of texts and of labels, which are class names or integers, to Texts.

    Without labels, or if all are -1, texts have none. Blanks around texts are removed, as in files.
    Raises ``DataError`` if the lengths differ, and ``ValueError`` if some labels are missing: None,
    NaN, or -1 among others, which may be a class.
    """
    texts = tuple(x.strip() if isinstance(x, str) else x for x in _as_list(texts))
    labels = [None] * len(texts) if labels is None else _as_list(labels)
    if len(texts) != len(labels):
        raise DataError(f"expected a label for each of {len(texts)} texts, got {len(labels)}.")
    is_missing = [x is None or x != x or (not isinstance(x, str) and x == -1) for x in labels]
    if all(is_missing):
        return Texts(texts, np.full(len(texts), -1, np.int32), ())
    if any(is_missing):
        i = is_missing.index(True)
        raise ValueError(
            f"`labels` must be class names or integers >= 0, got {labels[i]!r} at index {i}; "
            "use Texts for texts of which some have no label, and strings for a class '-1'."
        )
    names = [str(int(x) if isinstance(x, float) and x.is_integer() else x) for x in labels]
    return Texts.from_names(texts, names, sorted_classes(names))


def _as_list(values: Any) -> list[Any]:
    return list(values.tolist() if hasattr(values, "tolist") else values)
