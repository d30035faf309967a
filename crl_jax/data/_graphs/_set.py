"""Many small graphs with labels, on the host."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int32, Shaped
from numpy.typing import ArrayLike

from ..._checks import check_shape

NO_FOLD = -1
_TYPES = {
    "node_offsets": np.int32,
    "edge_offsets": np.int32,
    "edges": np.int32,
    "labels": np.int32,
    "folds": np.int32,
}


@dataclass(frozen=True, eq=False, repr=False)
class Graphs:
    """Graphs that are samples: each has nodes with features, edges without direction, and a label.

    Arrays are read-only; a writable argument is copied. Graph i has the nodes from
    ``node_offsets[i]`` to ``node_offsets[i + 1]``, and edges likewise. Within a graph nodes are
    counted from 0.

    Attributes:
      node_offsets: int32 ``[n + 1]``, from 0 on; no graph is without a node.
      edge_offsets: int32 ``[n + 1]``, from 0 on.
      edges: The two nodes of each edge, counted in their graph, the lower first; int32
        ``[2, n_edges]``. Each edge stands here once, and stands for both directions.
      features: Of each node, ``[n_nodes, width]``: uint8 where they are tags as unit vectors,
        otherwise float32.
      labels: The class of each graph, int32 ``[n]``.
      classes: The name of each class, distinct.
      folds: The fold in which a graph is tested, int32 ``[n]``, -1 for one that is always trained
        on; None where the source has no folds.

    Raises:
      ValueError: If a field breaks what is said above; the message names it.

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
        for name, dtype in _TYPES.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _read_only(name, getattr(self, name), (dtype,)))
        features = _read_only("features", self.features, (np.uint8, np.float32))
        object.__setattr__(self, "features", features)
        self._check()

    def _check(self) -> None:
        n = len(self.labels)
        check_shape("labels", self.labels, (n,))
        check_shape("folds", self.folds, (n,))
        for name, least, end in (
            ("node_offsets", 1, len(self.features)),
            ("edge_offsets", 0, self.edges.shape[-1]),
        ):
            offsets = getattr(self, name)
            check_shape(name, offsets, (n + 1,))
            if offsets[0] != 0 or offsets[-1] != end or np.any(np.diff(offsets) < least):
                raise ValueError(
                    f"`{name}` must rise from 0 to {end} by at least {least} for each graph."
                )
        check_shape("edges", self.edges, (2, int(self.edge_offsets[-1])))
        check_shape(
            "features", self.features, (int(self.node_offsets[-1]), *self.features.shape[1:2])
        )
        n_nodes = np.repeat(self.n_nodes, self.n_edges)
        low, high = self.edges
        if np.any((low < 0) | (low >= high) | (high >= n_nodes)):
            raise ValueError("`edges` must name two nodes of their graph, the lower first.")
        if not np.isfinite(self.features).all():
            raise ValueError("`features` must be finite.")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"`classes` must be distinct, got {self.classes}.")
        if n and not (self.labels.min() >= 0 and self.labels.max() < len(self.classes)):
            raise ValueError(
                f"`labels` must lie in [0, {len(self.classes)}), "
                f"got {self.labels.min()} to {self.labels.max()}."
            )
        if self.folds is not None and np.any(self.folds < NO_FOLD):
            raise ValueError(f"`folds` must be at least -1, got {self.folds.min()}.")

    @property
    def n_nodes(self) -> Int32[np.ndarray, " n"]:
        """Nodes of each graph."""
        return np.diff(self.node_offsets)

    @property
    def n_edges(self) -> Int32[np.ndarray, " n"]:
        """Edges of each graph; both directions are one."""
        return np.diff(self.edge_offsets)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        nodes, edges = (int(x.max(initial=0)) for x in (self.n_nodes, self.n_edges))
        return (
            f"Graphs({len(self)} of {nodes} nodes and {edges} edges at most, "
            f"{self.features.shape[1]} features, {len(self.classes)} classes)"
        )

    def take(self, index: ArrayLike) -> "Graphs":
        """Some of the graphs, in the order of ``index``, which may name one several times.

        Args:
          index: Places ``[k]`` as integers, or a mask ``[n]``.

        Raises:
          ValueError: If ``index`` is neither.
          IndexError: If it leaves the graphs.
        """
        index = np.asarray(index)
        if index.ndim != 1 or (index.size and index.dtype.kind not in "iub"):
            raise ValueError(
                "`index` must be a one-dimensional array of integers or booleans, "
                f"got shape {index.shape} of {index.dtype}."
            )
        places = np.arange(len(self))[index if index.size else index.astype(np.intp)]
        nodes, node_offsets = _ranges(self.node_offsets, places)
        edges, edge_offsets = _ranges(self.edge_offsets, places)
        return Graphs(
            node_offsets,
            edge_offsets,
            self.edges[:, edges],
            self.features[nodes],
            self.labels[places],
            self.classes,
            None if self.folds is None else self.folds[places],
        )


def offsets_of(counts: ArrayLike) -> Int32[np.ndarray, " n_and_one"]:
    """Where each of several runs of these lengths starts, and where the last one ends."""
    ends = np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))])
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"Graphs must have at most 2^31 - 1 nodes and edges, got {ends[-1]}.")
    return ends.astype(np.int32)


def class_names(labels: ArrayLike) -> tuple[Int32[np.ndarray, " n"], tuple[str, ...]]:
    """Whole numbers as places among them in their order, and how they are called."""
    found, places = np.unique(np.asarray(labels), return_inverse=True)
    return places.reshape(-1).astype(np.int32), tuple(map(str, found.tolist()))


def unit_vectors(tags: ArrayLike) -> np.ndarray:
    """Tags as unit vectors, uint8 ``[n, tags]``, in the order of their numbers."""
    found, places = np.unique(np.asarray(tags), return_inverse=True)
    features = np.zeros((places.size, found.size), np.uint8)
    features[np.arange(places.size), places.reshape(-1)] = 1
    return features


def _ranges(offsets: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The members of some of the runs, one after the other, and the new offsets."""
    counts = np.diff(offsets)[places]
    after = offsets_of(counts)
    within = np.arange(after[-1]) - np.repeat(after[:-1], counts)
    return np.repeat(offsets[:-1][places], counts) + within, after


def _read_only(name: str, array: Any, dtypes: tuple[type, ...]) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype not in dtypes:
        expected = " or ".join(np.dtype(dtype).name for dtype in dtypes)
        raise ValueError(f"`{name}` must be of {expected}, got {array.dtype}.")
    if array.flags.writeable:
        array = array.copy()
        array.setflags(write=False)
    return array


Found = Mapping[str, int]
"""How many edges were found to be of some kind."""


def tidy_edges(
    first: np.ndarray, second: np.ndarray, node_offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Found]:
    """Links between nodes of all graphs, in any directions, as edges of :class:`Graphs`.

    Args:
      first: One end of each link, counted over all graphs.
      second: The other end, in the same graph.
      node_offsets: See :class:`Graphs`.

    Returns:
      ``edges``, ``edge_offsets`` and counts: ``loops`` that were left out, ``repeated`` links that
      were taken once, and ``one_way`` links whose other direction was not there.
    """
    first, second = (np.asarray(x, np.int64) for x in (first, second))
    n_nodes, apart = int(node_offsets[-1]), first != second
    loops = int(np.sum(~apart))
    links = np.unique((first * n_nodes + second)[apart])
    repeated = int(np.sum(apart)) - len(links)
    first, second = links // max(n_nodes, 1), links % max(n_nodes, 1)
    low, high = np.minimum(first, second), np.maximum(first, second)
    pairs, counts = np.unique(low * n_nodes + high, return_counts=True)
    low, high = pairs // max(n_nodes, 1), pairs % max(n_nodes, 1)
    graph = np.searchsorted(node_offsets, low, side="right") - 1
    edges = (np.stack([low, high]) - node_offsets[graph][None]).astype(np.int32)
    counted = np.bincount(graph, minlength=len(node_offsets) - 1)
    found = {"loops": loops, "repeated": repeated, "one_way": int(np.sum(counts == 1))}
    return edges, offsets_of(counted), found
