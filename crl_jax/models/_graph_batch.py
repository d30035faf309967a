"""Batches of small graphs on the device, with the nodes of a batch concatenated.

Graphs differ in size by a factor of a hundred: padding each to the largest would waste most of a
batch. Here the nodes of a batch are concatenated and only the end is padded.
"""

from dataclasses import field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_count
from .._pytree import STATIC, pytree_dataclass, serializable
from ..data import Graphs

_FAILURE_PROBABILITY = 1e-12


@serializable
class GraphBatch(NamedTuple):
    """Batch of graphs, divided into packs of concatenated nodes and edges.

    The first axis of every leaf is that of packs, so that batches can be concatenated leaf by leaf
    and packs can be sharded over devices. The graphs of a batch are those of its packs, in order.

    Attributes:
      features: Node features, ``[packs, nodes, width]``.
      graph: Index of each node's graph within its pack, ``[packs, nodes]``; ``graphs`` for padding.
      node: Index of each node within its graph, ``[packs, nodes]``.
      node_where: False for padding and dropped nodes, ``[packs, nodes]``.
      edges: Two nodes of the pack for each undirected edge, ``[packs, edges, 2]``.
      edge_graph: Index of each edge's graph within its pack, ``[packs, edges]``, as ``graph``.
      edge: Index of each edge within its graph, ``[packs, edges]``.
      edge_where: False for padding and dropped edges, ``[packs, edges]``.
      n_nodes: Number of nodes of each graph, dropped ones included, ``[packs, graphs]``.
      n_edges: Number of edges of each graph, dropped ones included, ``[packs, graphs]``.
    """

    features: Float[Array, "*packs nodes width"]
    graph: Int[Array, "*packs nodes"]
    node: Int[Array, "*packs nodes"]
    node_where: Bool[Array, "*packs nodes"]
    edges: Int[Array, "*packs edges 2"]
    edge_graph: Int[Array, "*packs edges"]
    edge: Int[Array, "*packs edges"]
    edge_where: Bool[Array, "*packs edges"]
    n_nodes: Int[Array, "*packs graphs"]
    n_edges: Int[Array, "*packs graphs"]


@pytree_dataclass
class GraphArrays:
    """Compressed graphs on the device; :meth:`pack` returns batches.

    Attributes:
      features: Features of all nodes, ``[nodes, width]``.
      node_offsets: Offsets of the nodes of each graph, ``[n + 1]``.
      edges: Two nodes of each edge, as indices within its graph, ``[edges, 2]``.
      edge_offsets: Offsets of the edges of each graph, ``[n + 1]``.
      max_nodes: Total nodes of the 1, 2, 4, … graphs with the most nodes. Static.
      max_edges: Total edges of the 1, 2, 4, … graphs with the most edges. Static.
      likely_nodes: Upper bounds of the total nodes of 1, 2, 4, … distinct random graphs, exceeded
        with probability 1e-12 at most. Static.
      likely_edges: Likewise for edges. Static.
    """

    features: Any
    node_offsets: Any
    edges: Any
    edge_offsets: Any
    max_nodes: tuple[int, ...] = field(metadata=STATIC)
    max_edges: tuple[int, ...] = field(metadata=STATIC)
    likely_nodes: tuple[int, ...] = field(metadata=STATIC)
    likely_edges: tuple[int, ...] = field(metadata=STATIC)

    @classmethod
    def from_graphs(cls, graphs: Graphs) -> "GraphArrays":
        """Transfers graphs to the device."""
        max_sums = tuple(map(_max_sums, (graphs.n_nodes, graphs.n_edges)))
        likely = tuple(map(_likely_sums, (graphs.n_nodes, graphs.n_edges), max_sums))
        return cls(
            jnp.asarray(graphs.features),
            jnp.asarray(graphs.node_offsets),
            jnp.asarray(graphs.edges.T),
            jnp.asarray(graphs.edge_offsets),
            *max_sums,
            *likely,
        )

    @property
    def n(self) -> int:
        """Number of graphs."""
        return self.node_offsets.shape[0] - 1

    def budget(self, n: int, *, drawn: bool = False) -> tuple[int, int]:
        """Number of nodes and edges that suffice for any ``n`` distinct graphs.

        If ``n`` exceeds the number of graphs, they are taken to repeat cyclically. For graphs that
        are ``drawn`` at random, the budget fails with probability 1e-12 at most, and is often half
        of the guaranteed one.
        """
        bounds = (self.max_nodes, self.max_edges)
        sizes = []
        for sums in (self.likely_nodes, self.likely_edges) if drawn else bounds:
            rounds, remainder = divmod(n, self.n)
            size = rounds * sums[-1]
            if remainder:  # the next power of two, or all
                size += sums[min((remainder - 1).bit_length(), len(sums) - 1)]
            sizes.append(size)
        return sizes[0], sizes[1]

    def pack(
        self, index: Int[Array, "batch"], n_packs: int = 1, *, drawn: bool = False
    ) -> GraphBatch:
        """Returns a batch of graphs.

        The size of a pack is :meth:`budget`, which suffices for distinct graphs. If graphs do not
        fit, all features of the pack are NaN, so that no graph is dropped silently.

        Args:
          index: Graph indices, ``[batch]``, each in ``[0, n)``.
          n_packs: Number of packs, which must divide the batch (else ``ValueError``); static.
          drawn: Whether graphs are drawn at random, see :meth:`budget`; static.
        """
        check_count("n_packs", n_packs)
        if index.shape[0] % n_packs:
            raise ValueError(
                f"`n_packs` must divide the batch of {index.shape[0]} graphs, got {n_packs}."
            )
        parts = index.reshape(n_packs, -1)
        nodes, edges = self.budget(parts.shape[1], drawn=drawn)
        return jax.vmap(partial(_pack, self, n_nodes=nodes, n_edges=max(edges, 1)))(parts)


def _pack(
    arrays: GraphArrays, index: Int[Array, "graphs"], n_nodes: int, n_edges: int
) -> GraphBatch:
    """Returns one pack, without the axis of packs."""
    graph, node, node_where, counts, fits = _slots(arrays.node_offsets, index, n_nodes)
    edge_graph, edge, edge_where, edge_counts, edges_fit = _slots(
        arrays.edge_offsets, index, n_edges
    )
    at = _array_index(arrays.node_offsets, index, graph, node)
    features = arrays.features[at].astype(jnp.float32)
    features = jnp.where(node_where[:, None], features, 0)
    features = jnp.where(fits & edges_fit, features, jnp.nan)
    starts = jnp.cumsum(counts) - counts
    edges = jnp.zeros((n_edges, 2), jnp.int32)
    if arrays.edges.shape[0]:
        edges = arrays.edges[_array_index(arrays.edge_offsets, index, edge_graph, edge)]
    edges = edges + starts.at[edge_graph].get(mode="fill", fill_value=0)[:, None]
    return GraphBatch(
        features, graph, node, node_where, edges, edge_graph, edge, edge_where, counts, edge_counts
    )


def _slots(
    offsets: Int[Array, "n_and_one"], index: Int[Array, "graphs"], size: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Graph, index in the graph and validity of each slot; counts; whether all graphs fit."""
    counts = offsets[index + 1] - offsets[index]
    ends = jnp.cumsum(counts)
    slot = jnp.arange(size, dtype=jnp.int32)
    graph = jnp.searchsorted(ends, slot, side="right").astype(jnp.int32)
    starts = (ends - counts).at[graph].get(mode="fill", fill_value=0)
    used = slot < ends[-1]
    return graph, jnp.where(used, slot - starts, 0), used, counts, ends[-1] <= size


def _array_index(offsets: Array, index: Array, graph: Array, within: Array) -> Array:
    """Array index of each slot of a pack; arbitrary for padding."""
    return offsets[index].at[graph].get(mode="fill", fill_value=0) + within


def _max_sums(counts: np.ndarray) -> tuple[int, ...]:
    """Sums of the 1, 2, 4, … largest counts, and of all."""
    sums = np.cumsum(np.sort(counts)[::-1].astype(np.int64))
    powers = [2**power for power in range((len(counts) - 1).bit_length())]
    return tuple(int(sums[power - 1]) for power in [*powers, len(counts)])


def _likely_sums(counts: np.ndarray, max_sums: tuple[int, ...]) -> tuple[int, ...]:
    r"""Bounds that sums of 1, 2, 4, … random counts exceed with probability 1e-12 at most.

    By Chernoff's bound, :math:`P(S \ge t) \le e^{-\lambda t} (\mathrm E\, e^{\lambda X})^k`, which
    also holds for draws without replacement (Hoeffding, 1963, theorem 4).
    """
    scale = max(float(counts.max()), 1.0)
    slopes = np.geomspace(1e-4, 100, 400)
    moments = np.array([np.mean(np.exp(slope * (counts / scale - 1))) for slope in slopes])
    rates = np.log(moments) + slopes  # log E exp(slope * count / scale)
    bounds = []
    for power, largest in enumerate(max_sums[:-1]):
        bound = np.min((2**power * rates - np.log(_FAILURE_PROBABILITY)) / slopes) * scale
        bounds.append(min(largest, int(np.ceil(bound))))
    return (*bounds, max_sums[-1])  # the sum of all counts
