"""The text format of TU Dortmund: one file for each property of all nodes, links and graphs."""

from collections.abc import Callable

import numpy as np

from .._errors import DataError
from ._raw import RawGraphs

_LABELS, _INDICATOR, _LINKS = "graph_labels", "graph_indicator", "A"
_TAGS, _ATTRIBUTES = "node_labels", "node_attributes"
REQUIRED = (_LINKS, _INDICATOR, _LABELS)


def read_tu(origin: str, text_of: Callable[[str], tuple[str, str] | None]) -> RawGraphs:
    """Reads ``NAME_A.txt``, ``NAME_graph_indicator.txt``, ``NAME_graph_labels.txt`` and others.

    Nodes and graphs are counted from 1, over all graphs. Properties of edges are not read.

    Args:
      origin: The source, for messages.
      text_of: Gives the path and the text of a file by the end of its name, such as ``"A"``; None
        where there is none.

    Raises:
      DataError: If a file is missing or a line is not as said; the message has its number.
    """

    def table(name: str, width: int | None, dtype: type) -> tuple[str, np.ndarray] | None:
        found = text_of(name)
        if found is None and name in REQUIRED:
            raise DataError(f"{origin}: expected a file NAME_{name}.txt, got none.")
        return None if found is None else (found[0], _table(*found, width, dtype))

    def known(name: str, width: int | None, dtype: type) -> tuple[str, np.ndarray]:
        found = table(name, width, dtype)
        assert found is not None  # it is required
        return found

    path, graph = known(_INDICATOR, 1, np.int64)
    labels_path, labels = known(_LABELS, 1, np.int64)
    graph, labels = graph[:, 0] - 1, labels[:, 0]
    _reject(path, np.diff(graph, prepend=0) < 0, "graphs in their order, from 1 on")
    _reject(path, graph >= len(labels), f"one of {len(labels)} graphs")
    n_nodes = np.bincount(graph, minlength=len(labels))
    _reject(labels_path, n_nodes == 0, "a graph with nodes")
    path, links = known(_LINKS, 2, np.int64)
    links = links - 1
    outside = np.any((links < 0) | (links >= len(graph)), axis=1)
    _reject(path, outside, f"nodes from 1 to {len(graph)}")
    _reject(path, graph[links[:, 0]] != graph[links[:, 1]], "two nodes of one graph")
    of_nodes = []
    for name, width, dtype in ((_TAGS, None, np.int64), (_ATTRIBUTES, None, np.float64)):
        found = table(name, width, dtype)
        if found is not None and len(found[1]) != len(graph):
            raise DataError(
                f"{found[0]}: expected {len(graph)} lines, one for each node, got {len(found[1])}."
            )
        of_nodes.append(None if found is None else found[1])
    tags, attributes = of_nodes
    if tags is not None:  # several on a line are one, as far as telling nodes apart goes
        tags = np.unique(tags, axis=0, return_inverse=True)[1].reshape(-1)
    return RawGraphs(origin, n_nodes, links.T, labels, tags, attributes)


def _table(path: str, text: str, width: int | None, dtype: type) -> np.ndarray:
    """Numbers ``[lines, width]`` that commas part; a width of None is that of the first line."""
    kind = "whole numbers" if dtype is np.int64 else "finite numbers"
    rows = []
    lines = text.rstrip().splitlines()
    for row, line in enumerate(lines):
        fields = line.split(",")
        width = len(fields) if width is None else width
        try:
            numbers = [dtype(field) for field in fields]
        except (ValueError, OverflowError):
            numbers = []
        if len(numbers) != width or not np.isfinite(numbers).all():
            wanted = f"{width} {kind}" if width > 1 else f"one of the {kind}"
            raise DataError(f"{path}:{row + 1}: expected {wanted}, got {line!r:.60}.")
        rows.append(numbers)
    if not rows:
        raise DataError(f"{path}: expected lines of numbers, got none.")
    return np.array(rows, dtype)


def _reject(path: str, bad: np.ndarray, expected: str) -> None:
    if bad.any():
        raise DataError(f"{path}:{int(np.argmax(bad)) + 1}: expected {expected}.")
