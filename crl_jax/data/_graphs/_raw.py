"""What readers of graphs find, and how it becomes graphs."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from .._errors import DataError, warn_if
from ._set import Graphs, class_names, offsets_of, tidy_edges, unit_vectors

NodeFeatures = Literal["auto", "tags", "degrees", "constant", "attributes"]
"""What nodes are known by, see :func:`load_graphs`."""


@dataclass(frozen=True, eq=False)
class RawGraphs:
    """Graphs as a source has them.

    Attributes:
      origin: What messages call them.
      n_nodes: Nodes of each graph, ``[n]``.
      links: Ends of links in any direction, counted over all graphs, ``[2, n_links]``.
      labels: Whole numbers, ``[n]``.
      tags: A whole number for each node, or None.
      attributes: Numbers of each node, ``[n_nodes, width]``, or None.
      folds: See :class:`Graphs`.
      both: Whether each link should be there in both directions.
    """

    origin: str
    n_nodes: np.ndarray
    links: np.ndarray
    labels: np.ndarray
    tags: np.ndarray | None = None
    attributes: np.ndarray | None = None
    folds: np.ndarray | None = None
    both: bool = True

    def graphs(self, features: NodeFeatures) -> Graphs:
        """The graphs, with the features that are asked for."""
        node_offsets = offsets_of(self.n_nodes)
        edges, edge_offsets, found = tidy_edges(self.links[0], self.links[1], node_offsets)
        warn_if(found["loops"], "{n} links of nodes with themselves were left out", of=self.origin)
        warn_if(found["repeated"], "{n} links stand there twice and count once", of=self.origin)
        if self.both:
            text = "{n} links lead one way, and were taken for both"
            warn_if(found["one_way"], text, of=self.origin)
        ends = (edges + np.repeat(node_offsets[:-1], np.diff(edge_offsets))[None]).ravel()
        degrees = np.bincount(ends, minlength=int(node_offsets[-1]))
        labels, classes = class_names(self.labels)
        known_by = self._features(features, degrees)
        return Graphs(node_offsets, edge_offsets, edges, known_by, labels, classes, self.folds)

    def _features(self, features: NodeFeatures, degrees: np.ndarray) -> np.ndarray:
        check_features(features)
        if features == "auto":
            features = "constant" if self.tags is None else "tags"
            if self.tags is None and self.attributes is not None:
                features = "attributes"
        if features == "degrees":
            return unit_vectors(degrees)
        if features == "constant":
            return np.ones((len(degrees), 1), np.uint8)
        if (given := getattr(self, features)) is None:
            raise DataError(f"{self.origin}: expected {features} of nodes, got none.")
        return unit_vectors(given) if features == "tags" else np.asarray(given, np.float32)


def check_features(features: str) -> None:
    """Raises ``ValueError`` unless ``features`` is one of those that there are."""
    if features not in get_args(NodeFeatures):
        raise ValueError(
            f"`features` must be one of {', '.join(get_args(NodeFeatures))}, got {features!r}."
        )
