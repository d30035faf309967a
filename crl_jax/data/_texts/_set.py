"""Texts in memory with labels or without, and the parts of a set of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int32
from numpy.typing import ArrayLike

from ..._checks import check_shape
from .._errors import DataError
from .._split_sampling import drawn_for_test


@dataclass(frozen=True, eq=False, repr=False)
class Texts:
    """Texts with their labels, on the host.

    Attributes:
      texts: The texts, none of them empty.
      labels: The class of each in ``[0, len(classes))``, or -1 without one; int32 ``[n]``,
        read-only.
      classes: The name of each class, distinct; none where no text has a label.

    Raises:
      ValueError: If a field breaks what is said above; the message names it.

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
        for place, text in enumerate(self.texts):
            if not isinstance(text, str) or not text:
                raise ValueError(f"`texts` must be text, got {text!r:.50} at index {place}.")
        labels = np.array(self.labels)
        if labels.dtype != np.int32:
            raise ValueError(f"`labels` must be of int32, got {labels.dtype}.")
        check_shape("labels", labels, (len(self.texts),))
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"`classes` must be distinct, got {self.classes}.")
        if len(labels) and not (labels.min() >= -1 and labels.max() < len(self.classes)):
            raise ValueError(
                f"`labels` must lie in [-1, {len(self.classes)}), "
                f"got {labels.min()} to {labels.max()}."
            )
        labels.setflags(write=False)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"Texts({len(self)}, {len(self.classes)} classes)"

    def take(self, index: ArrayLike | slice) -> "Texts":
        """Some of the texts, in the order of ``index``.

        Args:
          index: Places ``[k]`` as integers, a mask ``[n]``, or a slice.

        Raises:
          IndexError: If it leaves the texts.
        """
        places = np.arange(len(self))[index if isinstance(index, slice) else np.asarray(index)]
        return Texts(tuple(self.texts[i] for i in places), self.labels[places], self.classes)


@dataclass(frozen=True, eq=False)
class TextSplit:
    """Parts of one set of texts, with the same classes.

    Attributes:
      train: What a model may learn from.
      test: What it is judged by.
      valid: What chooses among models, or None.

    Raises:
      ValueError: If the parts differ in their classes.
    """

    train: Texts
    test: Texts
    valid: Texts | None = None

    def __post_init__(self) -> None:
        for name, part in self.parts():
            if part.classes != self.train.classes:
                raise ValueError(f"`{name}` must have the classes of `train`.")

    def parts(self) -> Iterator[tuple[str, Texts]]:
        """The name and the texts of every part that is there, train first."""
        for name in ("train", "valid", "test"):
            if (part := getattr(self, name)) is not None:
                yield name, part


def cut_texts(data: Texts, share: float | None, seed: int, origin: str) -> TextSplit:
    """The split of :func:`drawn_for_test`."""
    drawn = drawn_for_test(data.labels, share, origin, seed=seed, what="texts")
    return TextSplit(data.take(~drawn), data.take(drawn))


def sorted_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Distinct names in order: by number if all are whole numbers, else by code points."""
    distinct = set(names)
    is_number = all(name.isascii() and name.removeprefix("-").isdigit() for name in distinct)
    return tuple(sorted(distinct, key=(lambda name: (int(name), name)) if is_number else None))


def as_texts(texts: Any, labels: Any) -> Texts:
    """Texts and the names or numbers of their classes, from any sequences.

    Raises:
      DataError: If there are not as many labels as texts.
    """
    texts, names = tuple(texts), [str(label) for label in np.asarray(labels).tolist()]
    if len(texts) != len(names):
        raise DataError(f"expected a label for each of {len(texts)} texts, got {len(names)}.")
    return numbered(texts, names, sorted_classes(names))


def unlabelled(texts: Sequence[str]) -> Texts:
    """Texts without labels."""
    return Texts(tuple(texts), np.full(len(texts), -1, np.int32), ())


def numbered(texts: Sequence[str], names: Sequence[str], classes: tuple[str, ...]) -> Texts:
    """Texts whose classes are given by their names."""
    place = {name: i for i, name in enumerate(classes)}
    return Texts(tuple(texts), np.array([place[name] for name in names], np.int32), classes)
