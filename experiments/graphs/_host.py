"""Graphs in host memory: batches that bring their nodes and edges."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from crl_jax import augment, data, models, pytree_dataclass

from .._trained_model import TrainedModel, in_parts

_ON_DEVICE = 10_000
"""Number of graphs on the device at a time, in the evaluation."""


class PaddedGraphs(NamedTuple):
    """Graphs padded to a common size.

    Attributes:
      index: Index of each graph, ``[n]``.
      features: Node features, ``[n, nodes, width]``.
      edges: Two nodes of each edge, ``[n, edges, 2]``.
      n_nodes: Number of nodes, ``[n]``.
      n_edges: Number of edges, ``[n]``.
    """

    index: Any
    features: Any
    edges: Any
    n_nodes: Any
    n_edges: Any


@dataclass(frozen=True)
class GraphRows:
    """Graphs on the host; ``rows[index]`` pads some of them to the size of the largest.

    Attributes:
      graphs: All graphs.
      indices: Indices of those that are rows, ``[n]``.
    """

    graphs: data.Graphs
    indices: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of graphs."""
        return self.indices.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions of an array of indices."""
        return 1

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> PaddedGraphs:
        indices = self.indices[index]
        subset = self.graphs.take(indices)
        n_nodes, n_edges = self.graphs.n_nodes.max(), self.graphs.n_edges.max()
        features = np.zeros((len(subset), n_nodes, subset.features.shape[1]), subset.features.dtype)
        features[np.arange(n_nodes) < subset.n_nodes[:, None]] = subset.features
        edges = np.zeros((len(subset), n_edges, 2), np.int32)
        edges[np.arange(n_edges) < subset.n_edges[:, None]] = subset.edges.T
        return PaddedGraphs(indices, features, edges, subset.n_nodes, subset.n_edges)


def graph_sizes(graphs: data.Graphs) -> models.GraphArrays:
    """Returns the sizes of batches of graphs, without the arrays of the graphs."""
    shapes = jax.eval_shape(lambda: models.GraphArrays.from_graphs(graphs))
    return jax.tree.map(lambda _: None, shapes)


@pytree_dataclass
class RowViews:
    """Augmentation of :class:`PaddedGraphs`, equal to that of the graphs at their indices.

    Attributes:
      views: The augmentation, whose ``graphs`` are those of :func:`graph_sizes`.
    """

    views: augment.GraphAugmentation

    def on(self, graphs: models.GraphArrays) -> augment.GraphAugmentation:
        """Returns the augmentation of graphs on the device, by index."""
        return replace(self.views, graphs=graphs)

    def shard(self, mesh: Mesh) -> "RowViews":
        """Returns the augmentation of batches that the devices of a mesh share."""
        return replace(self, views=self.views.shard(mesh))

    def __call__(self, key: Any, row: PaddedGraphs) -> models.GraphBatch:
        """Draws a random view of one graph, without the axis of packs."""
        graphs, index = self._arrays(jax.tree.map(lambda leaf: leaf[None], row))
        return self.on(graphs)(key, index[0])

    def batch(self, keys: Any, rows: PaddedGraphs) -> models.GraphBatch:
        """Draws random views of several graphs."""
        graphs, index = self._arrays(rows)
        return self.on(graphs).batch(keys, index)

    def _arrays(self, rows: PaddedGraphs) -> tuple[models.GraphArrays, Any]:
        """Returns graphs as compressed arrays, of which every other is padding, and indices."""
        # The last example of a partial batch is repeated, and masked: copies of a large graph would
        # exceed the nodes that a batch of distinct graphs may have.
        is_copy = jnp.append(False, rows.index[1:] == rows.index[:-1])
        n_nodes = jnp.where(is_copy, 1, rows.n_nodes)
        n_edges = jnp.where(is_copy, 0, rows.n_edges)

        def offsets(counts: Any, size: int) -> Any:
            start = size * jnp.arange(len(counts), dtype=jnp.int32)
            pairs = jnp.stack([start, start + counts.astype(jnp.int32)], axis=1)
            return jnp.append(pairs.reshape(-1), len(counts) * size)

        graphs = replace(
            self.views.graphs,
            features=rows.features.reshape(-1, rows.features.shape[-1]),
            node_offsets=offsets(n_nodes, rows.features.shape[1]),
            edges=rows.edges.reshape(-1, 2),
            edge_offsets=offsets(n_edges, rows.edges.shape[1]),
        )
        return graphs, 2 * jnp.arange(len(rows.index), dtype=jnp.int32)


@dataclass(frozen=True)
class TrainedGraphModel(TrainedModel):
    """Trained model of graphs, whose examples are their indices.

    Attributes:
      graphs: All graphs, on the host.
    """

    graphs: data.Graphs

    def features(self, examples: np.ndarray) -> jax.Array:
        """See :meth:`TrainedModel.features`."""
        if not isinstance(self.task.augment, RowViews):
            return super().features(examples)

        def compute(indices: np.ndarray) -> jax.Array:
            return self._on_device(indices).features(np.arange(len(indices)))

        return in_parts(compute, examples, _ON_DEVICE)

    def two_views(self, examples: np.ndarray, seed: int) -> tuple[jax.Array, jax.Array]:
        """See :meth:`TrainedModel.two_views`."""
        if not isinstance(self.task.augment, RowViews):
            return super().two_views(examples, seed)
        return self._on_device(examples).two_views(np.arange(len(examples)), seed)

    def _on_device(self, indices: np.ndarray) -> TrainedModel:
        graphs = models.GraphArrays.from_graphs(self.graphs.take(indices))
        task = replace(self.task, augment=self.task.augment.on(graphs))
        return TrainedModel(task, self.params, self.model_state)


def measure_on(graphs: data.Graphs, measure: Any) -> Any:
    """Returns a metric function that measures with some graphs as examples, by index.

    Args:
      graphs: The graphs, which are copied to the device.
      measure: Metric function of indices of these graphs.
    """
    return jax.tree_util.Partial(_measure_on, models.GraphArrays.from_graphs(graphs), measure)


def _measure_on(
    graphs: models.GraphArrays, measure: Any, task: Any, params: Any, model_state: Any
) -> dict[str, Any]:
    return measure(replace(task, augment=task.augment.on(graphs)), params, model_state)
