"""Pairs of sentences, and how alike people find them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy.typing import ArrayLike

from ..._checks import check_shape
from .._errors import DataError
from .._readers import say_missing
from ._lines import Encoding
from ._rows import Column, Rows, read_rows

_FIRST = ("sentence1", "sentencea", "text1", "texta", "question1", "query1")
_SECOND = ("sentence2", "sentenceb", "text2", "textb", "question2", "query2")
_SCORE = ("score", "relatednessscore", "similarity", "label")
# The columns of a file without names, by how many there are: STS-B has a genre, a file, a year, a
# number, the score, two sentences, and sometimes their sources.
_BY_POSITION = {3: (0, 1, 2), 7: (5, 6, 4), 8: (5, 6, 4), 9: (5, 6, 4)}


@dataclass(frozen=True, eq=False, repr=False)
class TextPairs:
    """Pairs of texts with scores, on the host.

    Attributes:
      first: One text of each pair.
      second: The other.
      scores: How alike they are, finite, in the units of the source; float32 ``[n]``.
      groups: What part of the source each pair is of, such as its year; None if nobody asked.

    Raises:
      ValueError: If the fields are not of one length, or a score is not finite.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: Float32[np.ndarray, " n"]
    groups: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        scores = np.array(self.scores, np.float32)
        for name in ("first", "second", "groups"):
            texts = getattr(self, name)
            if texts is not None:
                check_shape(name, np.empty(len(texts)), scores.shape)
                object.__setattr__(self, name, tuple(texts))
        if not np.isfinite(scores).all():
            raise ValueError("`scores` must be finite, got others.")
        scores.setflags(write=False)
        object.__setattr__(self, "scores", scores)

    def __len__(self) -> int:
        return len(self.first)

    def __repr__(self) -> str:
        return f"TextPairs({len(self)})"

    def take(self, index: ArrayLike | slice) -> "TextPairs":
        """Some of the pairs: places ``[k]``, a mask ``[n]``, or a slice."""
        places = np.arange(len(self))[index if isinstance(index, slice) else np.asarray(index)]
        groups = self.groups
        return TextPairs(
            tuple(self.first[i] for i in places),
            tuple(self.second[i] for i in places),
            self.scores[places],
            None if groups is None else tuple(groups[i] for i in places),
        )


def load_text_pairs(
    source: Any,
    *,
    first_col: Column | None = None,
    second_col: Column | None = None,
    score_col: Column | None = None,
    group_col: Column | None = None,
    encoding: Encoding | None = None,
) -> TextPairs:
    """Loads pairs of sentences with scores of similarity.

    Args:
      source: A file, as of :func:`load_texts`; or ``(first, second, scores)``, three sequences.
      first_col: The column of the first sentence, by its name or its position from 0. By default it
        is one of the name sentence1, sentence_A, text1 or question1; or the first of three columns
        without names; or that of STS-B's seven to nine.
      second_col: The column of the second sentence.
      score_col: The column of the score: score, relatedness_score, similarity or label.
      group_col: A column that is kept as ``groups``; None keeps none.
      encoding: As of :func:`load_texts`.

    Raises:
      DataError: If the file is not laid out as said, or a score is no finite number.
      FileNotFoundError: If there is no such file.

    >>> pairs = load_text_pairs((["a cat", "a dog"], ["the cat", "a car"], [5.0, 0.5]))
    >>> pairs, pairs.take(pairs.scores > 1).second
    (TextPairs(2), ('the cat',))
    """
    if not isinstance(source, str | Path):
        if not isinstance(source, tuple | list) or len(source) != 3:
            raise ValueError(
                f"`source` must be a path or (first, second, scores), got {source!r:.100}."
            )
        first, second, scores = source
        return TextPairs(tuple(first), tuple(second), np.asarray(scores, np.float32))
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(say_missing(path))
    asked = (first_col, second_col, score_col)
    rows = read_rows(path, encoding, (*_FIRST, *_SECOND, *_SCORE), asked)
    by_position = _BY_POSITION.get(min(map(len, rows.fields)), (None,) * 3)
    places = [
        own if own is not None else rows.named(known) if rows.names else place
        for own, known, place in zip(asked, (_FIRST, _SECOND, _SCORE), by_position)
    ]
    for name, place in zip(("first_col", "second_col", "score_col"), places):
        if place is None:
            there = ", ".join(rows.names or [f"{len(rows.fields[0])} columns"])
            raise DataError(f"{path}: cannot tell `{name}`, got {there}.")
    first, second, score = (place for place in places if place is not None)
    groups = None if group_col is None else tuple(rows.column(group_col, "a group"))
    return TextPairs(
        tuple(rows.column(first, "a sentence")),
        tuple(rows.column(second, "a sentence")),
        _numbers(rows, rows.column(score, "a score")),
        groups,
    )


def _numbers(rows: Rows, values: list[str]) -> np.ndarray:
    numbers = np.empty(len(values), np.float32)
    for place, (value, line) in enumerate(zip(values, rows.lines, strict=True)):
        try:
            numbers[place] = float(value)
        except ValueError:
            numbers[place] = np.nan
        if not np.isfinite(numbers[place]):
            raise DataError(f"{rows.path}:{line}: expected a finite score, got {value!r:.60}.")
    return numbers
