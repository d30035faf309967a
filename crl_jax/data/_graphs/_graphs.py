"""Labelled graphs on the host, and their construction from arrays and from readers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int32, Shaped
from numpy.typing import ArrayLike

from ..._checks import check_choice, check_finite, check_shape
from .._errors import DataError, warn_if
from .._split_sampling import check_labels, freeze_arrays, selected_rows

NodeFeatures = Literal["auto", "tags", "degrees", "constant", "attributes"]
"""Node features, see :func:`load_graphs`."""

NO_FOLD = -1
_MAX_ONE_HOT_BYTES = 512 << 20


@dataclass(frozen=True, eq=False, repr=False)
class Graphs:
    """Labelled undirected graphs with node features, in compressed sparse form on the host.

    Arrays are read-only; a writable argument is copied. Graph i has the nodes from
    ``node_offsets[i]`` to ``node_offsets[i + 1]``; edges likewise. Node indices are local to their
    graph and start at 0.

    Attributes:
      node_offsets: int32 ``[n + 1]``, starting at 0; every graph has a node.
      edge_offsets: int32 ``[n + 1]``, starting at 0.
      edges: End nodes of each undirected edge, lower index first, each edge once; int32
        ``[2, n_edges]``.
      features: Node features ``[n_nodes, width]``: uint8 for one-hot tags, otherwise float32.
      labels: Class of each graph, int32 ``[n]``.
      classes: Distinct class names.
      folds: Cross-validation fold in which each graph is tested, int32 ``[n]``, -1 if it is never
        tested; None if the source has no folds.

    Raises:
      ValueError: If a field has another type, shape or range.

    >>> offsets, edges = np.array([0, 3, 5], np.int32), np.array([[0, 1, 0], [1, 2, 1]], np.int32)
    >>> labels = np.array([0, 1], np.int32)
    >>> ends = np.array([0, 2, 3], np.int32)
    >>> Graphs(offsets, ends, edges, np.ones((5, 1), np.uint8), labels, ("path", "pair"))
    Graphs(2 of 3 nodes and 2 edges at most, 1 features, 2 classes)
    """

    node_offsets: Int32[np.ndarray, " n_and_one"]
    edge_offsets: Int32[np.ndarray, " n_and_one"]
    edges: Int32[np.ndarray, "2 n_edges"]
    features: Shaped[np.ndarray, "n_nodes width"]
    labels: Int32[np.ndarray, " n"]
    classes: tuple[str, ...]
    folds: Int32[np.ndarray, " n"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        vectors = ("node_offsets", "edge_offsets", "labels", "folds")
        freeze_arrays(self, dict.fromkeys(vectors, np.int32))
        freeze_arrays(self, {"edges": np.int32, "features": (np.uint8, np.float32)}, ndim=2)
        n = len(self.labels)
        check_shape("folds", self.folds, (n,))
        for name, least, end in (
            ("node_offsets", 1, len(self.features)),
            ("edge_offsets", 0, self.edges.shape[-1]),
        ):
            offsets = getattr(self, name)
            check_shape(name, offsets, (n + 1,))
            if offsets[0] != 0 or offsets[-1] != end or np.any(np.diff(offsets) < least):
                raise ValueError(
                    f"`{name}` must increase from 0 to {end} by at least {least} per graph, got "
                    f"{offsets}."
                )
        check_shape("edges", self.edges, (2, int(self.edge_offsets[-1])))
        n_nodes = np.repeat(self.n_nodes, self.n_edges)
        low, high = self.edges
        wrong = (low < 0) | (low >= high) | (high >= n_nodes)
        if wrong.any():
            first = int(np.argmax(wrong))
            raise ValueError(
                "`edges` must be pairs of nodes of one graph, the lower index first, got "
                f"{low[first]} and {high[first]} of {n_nodes[first]} nodes."
            )
        check_finite("features", self.features)
        check_labels(self.labels, self.classes, low=0)
        if self.folds is not None and np.any(self.folds < NO_FOLD):
            raise ValueError(f"`folds` must be at least -1, got {self.folds.min()}.")

    @property
    def n_nodes(self) -> Int32[np.ndarray, " n"]:
        """Number of nodes of each graph."""
        return np.diff(self.node_offsets)

    @property
    def n_edges(self) -> Int32[np.ndarray, " n"]:
        """Number of undirected edges of each graph."""
        return np.diff(self.edge_offsets)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        nodes, edges = (int(x.max(initial=0)) for x in (self.n_nodes, self.n_edges))
        return (
            f"Graphs({len(self)} of {nodes} nodes and {edges} edges at most, "
            f"{self.features.shape[1]} features, {len(self.classes)} classes)"
        )

    def take(self, index: ArrayLike | slice) -> "Graphs":
        """Selects graphs in the order of ``index``, as :meth:`Images.take` does."""
        index = selected_rows(index, len(self))
        nodes, node_offsets = _gather_ranges(self.node_offsets, index)
        edges, edge_offsets = _gather_ranges(self.edge_offsets, index)
        return Graphs(
            node_offsets,
            edge_offsets,
            self.edges[:, edges],
            self.features[nodes],
            self.labels[index],
            self.classes,
            None if self.folds is None else self.folds[index],
        )


@dataclass(frozen=True, eq=False)
class RawGraphs:
    """Graphs as a source represents them.

    Edges number the nodes ``[2, n_edges]`` over all graphs, and are expected in both directions if
    ``is_symmetric``. Nodes have integer tags, or attributes ``[n_nodes, width]``, or neither.
    """

    origin: str
    n_nodes: np.ndarray
    edges: np.ndarray
    labels: np.ndarray
    tags: np.ndarray | None = None
    attributes: np.ndarray | None = None
    folds: np.ndarray | None = None
    is_symmetric: bool = True

    def graphs(self, features: NodeFeatures) -> Graphs:
        """Converts to :class:`Graphs` with undirected, distinct edges and ``features``."""
        node_offsets = _offsets(self.n_nodes)
        # Directed edges without self-loops, then their distinct unordered pairs.
        source, target = np.asarray(self.edges, np.int64)
        total, keep = max(int(node_offsets[-1]), 1), source != target
        directed = np.unique((source * total + target)[keep])
        low, high = np.sort(np.divmod(directed, total), axis=0)
        pairs, counts = np.unique(low * total + high, return_counts=True)
        warn_if(int(np.sum(~keep)), "removed {n} self-loops", origin=self.origin)
        n_repeated = int(np.sum(keep)) - len(directed)
        warn_if(n_repeated, "removed {n} repeated edges", origin=self.origin)
        if self.is_symmetric:
            text = "{n} edges are listed in one direction only, and were made undirected"
            warn_if(int(np.sum(counts == 1)), text, origin=self.origin)
        ends = np.stack(np.divmod(pairs, total))
        graph = np.searchsorted(node_offsets, ends[0], side="right") - 1
        edges = (ends - node_offsets[graph]).astype(np.int32)
        edge_offsets = _offsets(np.bincount(graph, minlength=len(self.n_nodes)))
        degrees = np.bincount(ends.ravel(), minlength=int(node_offsets[-1]))
        classes, labels = np.unique(self.labels, return_inverse=True)
        return Graphs(
            node_offsets,
            edge_offsets,
            edges,
            self._features(features, degrees),
            labels.reshape(-1).astype(np.int32),
            tuple(map(str, classes.tolist())),
            self.folds,
        )

    def _features(self, features: NodeFeatures, degrees: np.ndarray) -> np.ndarray:
        if features == "auto":
            features = "constant" if self.attributes is None else "attributes"
            features = features if self.tags is None else "tags"
        if features == "constant":
            return np.ones((len(degrees), 1), np.uint8)
        values = degrees if features == "degrees" else getattr(self, features)
        if values is None:
            raise DataError(f"{self.origin}: expected {features} of nodes, got none.")
        if features == "attributes":
            return np.asarray(values, np.float32)
        return _one_hot(values, features, self.origin)


def as_graphs(
    edges: Sequence[Any],
    features: Sequence[Any] | None,
    labels: Any,
    *,
    n_nodes: Any = None,
    node_features: NodeFeatures = "auto",
) -> Graphs:
    """Converts arrays of each graph to :class:`Graphs`.

    Args:
      edges: Per graph, end nodes ``[2, n_edges]`` with indices from 0, in one or both directions.
      features: Per graph, integer tags ``[n_nodes]`` or attributes ``[n_nodes, width]``; None if
        nodes have neither.
      labels: Integer class of each graph, ``[n]``.
      n_nodes: Number of nodes of each graph, ``[n]``; required without ``features``.
      node_features: As ``features`` of :func:`load_graphs`.

    Raises:
      ValueError: If lengths differ, an edge leaves its graph, or types differ.

    >>> as_graphs([[[0, 1], [1, 2]], [[0], [1]]], [[6, 6, 8], [6, 7]], [0, 1])
    Graphs(2 of 3 nodes and 2 edges at most, 3 features, 2 classes)
    """
    check_choice("node_features", node_features, get_args(NodeFeatures))
    classes = np.asarray(labels)
    if classes.ndim != 1 or classes.dtype.kind not in "iub" or not len(classes):
        raise ValueError(f"`labels` must be integers [n] with n >= 1, got {labels!r:.100}.")
    tags = attributes = None
    if features is not None:
        per_graph = [np.asarray(x) for x in features]
        n_nodes = np.array([len(x) for x in per_graph])
        joined = np.concatenate(per_graph) if len({x.shape[1:] for x in per_graph}) == 1 else None
        if joined is None or joined.ndim > 2 or joined.dtype.kind not in "iubf":
            raise ValueError(
                "`features` must be numbers [n_nodes], or [n_nodes, width] with one width."
            )
        if joined.ndim == 1 and joined.dtype.kind not in "iub":
            raise ValueError(f"`features` [n_nodes] (tags) must be integers, got {joined.dtype}.")
        tags, attributes = (joined, None) if joined.ndim == 1 else (None, joined)
    elif n_nodes is None:
        raise ValueError("`n_nodes` must be given where there are no `features`.")
    n_nodes = np.asarray(n_nodes)
    if len(edges) != len(classes) or n_nodes.shape != classes.shape:
        raise ValueError(
            f"`edges`, `features` and `labels` must have one length, got {len(edges)}, "
            f"{len(n_nodes)} and {len(classes)}."
        )
    if n_nodes.min() < 1:
        raise ValueError(f"Graph {int(np.argmin(n_nodes))} must have a node, got none.")
    starts = np.cumsum(n_nodes) - n_nodes
    shifted = [_edge_array(i, x, int(n_nodes[i])) + starts[i] for i, x in enumerate(edges)]
    raw = RawGraphs(
        "graphs in memory",
        n_nodes,
        np.concatenate(shifted, axis=1),
        classes,
        tags,
        attributes,
        is_symmetric=False,
    )
    return raw.graphs(node_features)


def _edge_array(graph: int, edges: Any, n_nodes: int) -> np.ndarray:
    edges = np.asarray(edges)
    if not edges.size:
        return np.zeros((2, 0), np.int64)
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise ValueError(
            f"`edges` of graph {graph} must be integers [2, n_edges], "
            f"got shape {edges.shape} of {edges.dtype}."
        )
    if edges.min() < 0 or edges.max() >= n_nodes:
        raise ValueError(
            f"`edges` of graph {graph} must lie in [0, {n_nodes}), "
            f"got {edges.min()} to {edges.max()}."
        )
    return edges.astype(np.int64)


def _offsets(counts: ArrayLike) -> Int32[np.ndarray, " n_and_one"]:
    """Start of each of several consecutive ranges, and the end of the last."""
    ends = np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))])
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"Graphs must have at most 2^31 - 1 nodes and edges, got {ends[-1]}.")
    return ends.astype(np.int32)


def _one_hot(values: np.ndarray, features: str, origin: str) -> np.ndarray:
    """One-hot encoding in the order of the values, uint8 ``[n_nodes, n_values]``."""
    distinct, columns = np.unique(values, return_inverse=True)
    if columns.size * distinct.size > _MAX_ONE_HOT_BYTES:
        raise DataError(
            f"{origin}: expected {features} whose one-hot encoding has at most "
            f"{_MAX_ONE_HOT_BYTES >> 20} MiB, got {distinct.size} values for {columns.size} nodes; "
            'use `features` "degrees", "attributes" or "constant".'
        )
    encoding = np.equal.outer(columns.ravel(), np.arange(distinct.size)).view(np.uint8)
    encoding.setflags(write=False)
    return encoding


def _gather_ranges(offsets: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Concatenated members of the selected ranges, and their new offsets."""
    counts = np.diff(offsets)[index]
    new = _offsets(counts)
    within = np.arange(new[-1]) - np.repeat(new[:-1], counts)
    return np.repeat(offsets[:-1][index], counts) + within, new
