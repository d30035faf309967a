"""Graphs that are in memory already."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._raw import NodeFeatures, RawGraphs, check_features
from ._set import Graphs


def as_graphs(
    edges: Sequence[Any],
    features: Sequence[Any] | None,
    labels: Any,
    *,
    n_nodes: Any = None,
    known_by: NodeFeatures = "auto",
) -> Graphs:
    """Takes edges and features of nodes as people hold them, graph by graph.

    Args:
      edges: Of each graph two rows of nodes, ``[2, n_edges]``, counted from 0, in one direction or
        in both.
      features: Of each graph an array of its nodes: whole numbers ``[n_nodes]`` are tags, numbers
        ``[n_nodes, width]`` are taken as they are. None where nodes have none.
      labels: A whole number for each graph, ``[n]``.
      n_nodes: The nodes of each graph, ``[n]``, where there are no features.
      known_by: As ``features`` of :func:`load_graphs`.

    Raises:
      ValueError: If the lengths differ, an edge leaves its graph, or numbers are not as said.

    >>> as_graphs([[[0, 1], [1, 2]], [[0], [1]]], [[6, 6, 8], [6, 7]], [0, 1])
    Graphs(2 of 3 nodes and 2 edges at most, 3 features, 2 classes)
    """
    check_features(known_by)
    numbers = np.asarray(labels)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iub" or not len(numbers):
        raise ValueError(f"`labels` must be whole numbers [n], n >= 1, got {labels!r:.100}.")
    tags = attributes = None
    if features is not None:
        of_nodes = [np.asarray(own) for own in features]
        n_nodes = np.array([len(own) for own in of_nodes])
        joined = np.concatenate(of_nodes) if len({x.shape[1:] for x in of_nodes}) == 1 else None
        if joined is None or joined.ndim > 2 or joined.dtype.kind not in "iubf":
            raise ValueError(
                "`features` must be arrays of numbers [n_nodes] or [n_nodes, width], of one width."
            )
        if joined.ndim == 1 and joined.dtype.kind not in "iub":
            raise ValueError(
                f"`features` must be whole numbers where they are tags, got {joined.dtype}."
            )
        tags, attributes = (joined, None) if joined.ndim == 1 else (None, joined)
    elif n_nodes is None:
        raise ValueError("`n_nodes` must be given where there are no `features`.")
    n_nodes = np.asarray(n_nodes)
    if len(edges) != len(numbers) or n_nodes.shape != numbers.shape:
        raise ValueError(
            f"`edges`, `features` and `labels` must be of one length, got {len(edges)}, "
            f"{len(n_nodes)} and {len(numbers)}."
        )
    if n_nodes.min() < 1:
        raise ValueError(f"Graph {int(np.argmin(n_nodes))} must have a node, got none.")
    starts = np.cumsum(n_nodes) - n_nodes
    links = [
        _links(place, own, int(n_nodes[place])) + starts[place] for place, own in enumerate(edges)
    ]
    raw = RawGraphs(
        "graphs in memory", n_nodes, np.concatenate(links, axis=1), numbers, tags, attributes,
        both=False,
    )  # fmt: skip
    return raw.graphs(known_by)


def _links(place: int, edges: Any, n_nodes: int) -> np.ndarray:
    links = np.asarray(edges)
    if not links.size:
        return np.zeros((2, 0), np.int64)
    if links.ndim != 2 or links.shape[0] != 2 or links.dtype.kind not in "iu":
        raise ValueError(
            f"`edges` of graph {place} must be whole numbers [2, n_edges], "
            f"got shape {links.shape} of {links.dtype}."
        )
    if links.min() < 0 or links.max() >= n_nodes:
        raise ValueError(
            f"`edges` of graph {place} must lie in [0, {n_nodes}), "
            f"got {links.min()} to {links.max()}."
        )
    return links.astype(np.int64)
