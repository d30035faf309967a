"""The text format of GIN: blocks of lines, one for each graph, and the ten published folds."""

from collections.abc import Mapping

import numpy as np

from .._errors import DataError
from ._raw import RawGraphs
from ._set import NO_FOLD

N_FOLDS = 10


def read_gin(origin: str, text: str, folds: Mapping[str, str]) -> RawGraphs:
    """Reads graphs as GIN's code does.

    The first line has the number of graphs. Each has a line ``nodes label``, and for each node a
    line ``tag neighbours place place …`` with perhaps attributes behind.

    Args:
      origin: The file, for messages.
      text: What it holds.
      folds: The texts of ``test_idx-1.txt`` to ``test_idx-10.txt`` by the paths of these files;
        empty without folds.

    Raises:
      DataError: If a line is not as said; the message has its number.
    """
    lines = text.splitlines()
    (n,) = _whole(origin, lines, 0, 1, "the number of graphs")
    n_nodes, labels, tags, attributes = [], [], [], []
    first: list[int] = []
    second: list[int] = []
    place, start, width = 1, 0, None
    for _ in range(n):
        size, label = _whole(origin, lines, place, 2, "the number of nodes and a label")
        if size < 1:
            raise DataError(f"{origin}:{place + 1}: expected at least one node, got {size}.")
        n_nodes.append(size)
        labels.append(label)
        for node in range(start, start + size):
            place += 1
            fields = lines[place].split() if place < len(lines) else []
            tag, count = _whole(origin, lines, place, 2, "a tag and a number of neighbours", fields)
            more = len(fields) - 2 - count
            width = more if width is None else width
            if count < 0 or more != width or more < 0:
                raise DataError(
                    f"{origin}:{place + 1}: expected {max(count, 0)} neighbours"
                    f"{f' and {width} attributes' if width and width > 0 else ''} after "
                    f"the tag and their number, got {len(fields) - 2} fields."
                )
            near = _whole(origin, lines, place, count, "neighbours", fields[2 : 2 + count])
            if count and not (min(near) >= 0 and max(near) < size):
                raise DataError(
                    f"{origin}:{place + 1}: expected neighbours from 0 to {size - 1}, got {near}."
                )
            tags.append(tag)
            first.extend([node] * count)
            second.extend(start + other for other in near)
            if width:
                attributes.append(_numbers(origin, place, fields[2 + count :]))
        start += size
        place += 1
    left = next((row for row in range(place, len(lines)) if lines[row].strip()), None)
    if left is not None:
        raise DataError(
            f"{origin}:{left + 1}: expected the end after {n} graphs, got another line."
        )
    return RawGraphs(
        origin,
        np.array(n_nodes, np.int64),
        np.array([first, second], np.int64),
        np.array(labels, np.int64),
        np.array(tags, np.int64),
        np.array(attributes, np.float32) if width else None,
        _folds(n, folds) if folds else None,
    )


def _folds(n: int, texts: Mapping[str, str]) -> np.ndarray:
    """The fold that tests each graph: at most one, as nothing is tested twice."""
    folds = np.full(n, NO_FOLD, np.int32)
    for fold, (origin, text) in enumerate(texts.items()):
        lines = [line for line in text.splitlines() if line.strip()]
        for row in range(len(lines)):
            (place,) = _whole(origin, lines, row, 1, "the place of a graph")
            if not 0 <= place < n or folds[place] != NO_FOLD:
                wanted = f"places from 0 to {n - 1}, each in one fold"
                raise DataError(f"{origin}:{row + 1}: expected {wanted}, got {place}.")
            folds[place] = fold
    return folds


def _whole(
    origin: str,
    lines: list[str],
    place: int,
    count: int,
    what: str,
    fields: list[str] | None = None,
) -> list[int]:
    """So many whole numbers: those of a line, or the first of its ``fields``."""
    if place >= len(lines):
        raise DataError(f"{origin}:{place + 1}: expected {what}, got the end of the file.")
    found = lines[place].split() if fields is None else fields[:count]
    try:
        if len(found) == count:
            return [int(field) for field in found]
    except ValueError:
        pass
    raise DataError(f"{origin}:{place + 1}: expected {what}, got {lines[place]!r:.60}.")


def _numbers(origin: str, place: int, fields: list[str]) -> list[float]:
    try:
        numbers = [float(field) for field in fields]
        if np.isfinite(numbers).all():
            return numbers
    except ValueError:
        pass
    raise DataError(f"{origin}:{place + 1}: expected attributes as finite numbers, got {fields}.")
