"""Pairs of texts with similarity scores."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy.typing import ArrayLike

from ..._checks import check_finite, check_shape
from .._archive import Encoding
from .._errors import DataError
from .._split_sampling import selected_rows
from ._table import Column, read_table

_NAMES = (
    ("sentence1", "sentencea", "text1", "texta", "question1", "query1"),
    ("sentence2", "sentenceb", "text2", "textb", "question2", "query2"),
    ("score", "relatednessscore", "similarity", "label"),
)
# Columns of files without names by their number: STS-B has a genre, a file, a year, an id, the
# score, two sentences, and sometimes their sources.
_BY_POSITION = {3: (0, 1, 2), 7: (5, 6, 4), 8: (5, 6, 4), 9: (5, 6, 4)}


@dataclass(frozen=True, eq=False, repr=False)
class TextPairs:
    """Pairs of texts with similarity scores, on the host.

    Attributes:
      first: First text of each pair.
      second: Second text of each pair.
      scores: Finite similarities in the units of the source; float32 ``[n]``.
      groups: Group of each pair within the source, such as a year, or None.

    Raises:
      ValueError: If lengths differ, or a score is not finite.
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
        check_finite("scores", scores)
        scores.setflags(write=False)
        object.__setattr__(self, "scores", scores)

    def __len__(self) -> int:
        return len(self.first)

    def __repr__(self) -> str:
        return f"TextPairs({len(self)})"

    def take(self, index: ArrayLike | slice) -> "TextPairs":
        """Selects pairs by integers ``[k]``, a mask ``[n]``, or a slice."""
        index = selected_rows(index, len(self))
        first, second, groups = (
            None if texts is None else tuple(texts[i] for i in index)
            for texts in (self.first, self.second, self.groups)
        )
        return replace(self, first=first, second=second, scores=self.scores[index], groups=groups)


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
      source: A file in a format of :func:`load_texts`, or sequences ``(first, second, scores)``.
      first_col: Column of the first sentence, by name or by position from 0. By default, a column
        named sentence1, sentence_A, text1 or question1; or the first of three columns without
        names; or that of STS-B's seven to nine.
      second_col: Column of the second sentence, likewise.
      score_col: Column of the score; by default one named score, relatedness_score, similarity or
        label.
      group_col: Column of ``groups``; None reads none.
      encoding: As in :func:`load_texts`.

    Raises:
      ValueError: If ``source`` is none of these.
      DataError: If the file is malformed, or a score is not finite.
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
    requested = (first_col, second_col, score_col)
    table = read_table(path, encoding, _NAMES, requested)
    by_position = _BY_POSITION.get(min(len(row) for _, row in table.rows), (None,) * 3)
    columns = table.find(requested, _NAMES, by_position)
    cells = []
    names, kinds = ("first_col", "second_col", "score_col"), ("sentence", "sentence", "score")
    for name, kind, column in zip(names, kinds, columns, strict=True):
        if column is None:
            raise DataError(f"{path}: cannot determine `{name}`, got {table.columns}.")
        cells.append(tuple(table.column(column, f"a {kind}")))
    first, second, values = cells
    groups = None if group_col is None else tuple(table.column(group_col, "a group"))
    scores = np.full(len(table.rows), np.nan, np.float32)
    for i, (value, (line, _)) in enumerate(zip(values, table.rows, strict=True)):
        with suppress(ValueError):
            scores[i] = float(value)
        if not np.isfinite(scores[i]):
            raise DataError(f"{path}:{line}: expected a finite score, got {value!r:.60}.")
    return TextPairs(first, second, scores, groups)
