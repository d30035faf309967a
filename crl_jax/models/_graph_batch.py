"""Many small graphs on the device, and batches of them: all nodes of a batch in one list.

Graphs differ in size by a factor of a hundred, so that filling each up to the largest makes most of
a batch nothing. Here the nodes of a batch stand one after the other, and only the end is filled up.
"""

from dataclasses import field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_count
from .._pytree import STATIC, pytree_dataclass
from ..data import Graphs

_RARE = 1e-12


class GraphBatch(NamedTuple):
    """Graphs of a batch, in packs: the nodes of a pack are one list, and so are its edges.

    Every leaf leads with the number of packs, so that two batches become one by putting their
    leaves together, and packs can lie on several devices. The graphs of a batch are those of its
    packs, one pack after the other.

    Attributes:
      features: Of the nodes, ``[packs, nodes, width]``.
      graph: The graph of each node in its pack, ``[packs, nodes]``; ``graphs`` where nodes only
        fill up.
      node: The place of each node in its graph, ``[packs, nodes]``.
      node_where: False for nodes that are not there, ``[packs, nodes]``.
      edges: Two nodes of the pack for each edge, which leads both ways, ``[packs, edges, 2]``.
      edge_graph: The graph of each edge in its pack, ``[packs, edges]``, as ``graph``.
      edge: The place of each edge in its graph, ``[packs, edges]``.
      edge_where: False for edges that are not there, ``[packs, edges]``.
      n_nodes: Nodes of each graph, dropped ones among them, ``[packs, graphs]``.
      n_edges: Edges of each graph, dropped ones among them, ``[packs, graphs]``.
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
    """A set of graphs on the device, compressed; :meth:`pack` makes batches of it.

    Attributes:
      features: Of all nodes, ``[nodes, width]``.
      node_offsets: Where the nodes of each graph start and the last ones end, ``[n + 1]``.
      edges: Two nodes of each edge, counted in its graph, ``[edges, 2]``.
      edge_offsets: As ``node_offsets``, of edges.
      most_nodes: The nodes of the 1, 2, 4, … largest graphs together. Static.
      most_edges: The edges of those with the most of them. Static.
      likely_nodes: What the nodes of 1, 2, 4, … distinct graphs exceed once in 10^12 random draws
        or less often. Static.
      likely_edges: The same of edges. Static.
    """

    features: Any
    node_offsets: Any
    edges: Any
    edge_offsets: Any
    most_nodes: tuple[int, ...] = field(metadata=STATIC)
    most_edges: tuple[int, ...] = field(metadata=STATIC)
    likely_nodes: tuple[int, ...] = field(metadata=STATIC)
    likely_edges: tuple[int, ...] = field(metadata=STATIC)

    @classmethod
    def from_graphs(cls, graphs: Graphs) -> "GraphArrays":
        """The arrays of graphs on the host."""
        most = tuple(map(_most, (graphs.n_nodes, graphs.n_edges)))
        likely = tuple(map(_likely, (graphs.n_nodes, graphs.n_edges), most))
        return cls(
            jnp.asarray(graphs.features),
            jnp.asarray(graphs.node_offsets),
            jnp.asarray(graphs.edges.T),
            jnp.asarray(graphs.edge_offsets),
            *most,
            *likely,
        )

    @property
    def n(self) -> int:
        """How many graphs there are."""
        return self.node_offsets.shape[0] - 1

    def budget(self, n: int, *, drawn: bool = False) -> tuple[int, int]:
        """Nodes and edges that are enough for any ``n`` distinct graphs.

        Where ``n`` is more than all, these come as often as they do in turn.

        Args:
          n: How many.
          drawn: Whether they are drawn at random. Then it is enough but for once in 10^12 draws,
            and often half of what is always enough.
        """
        kinds = (self.likely_nodes, self.likely_edges) if drawn else ()
        sizes = []
        for sums in kinds or (self.most_nodes, self.most_edges):
            rounds, left = divmod(n, self.n)
            size = rounds * sums[-1]
            if left:  # the next power of two, or all
                size += sums[min((left - 1).bit_length(), len(sums) - 1)]
            sizes.append(size)
        return sizes[0], sizes[1]

    def pack(
        self, place: Int[Array, "batch"], n_packs: int = 1, *, drawn: bool = False
    ) -> GraphBatch:
        """A batch of the graphs at these places.

        Its size is :meth:`budget`, which is enough for distinct graphs. Where they do not fit all
        the same, all features of the pack are NaN, so that nothing is left out unseen.

        Args:
          place: Which graphs, ``[batch]``, each in ``[0, n)``.
          n_packs: Into how many packs they go, of as many graphs each; static.
          drawn: Whether they are drawn at random, see :meth:`budget`; static.

        Raises:
          ValueError: If ``n_packs`` does not divide the batch.
        """
        check_count("n_packs", n_packs)
        if place.shape[0] % n_packs:
            raise ValueError(f"`n_packs` must divide {place.shape[0]} graphs, got {n_packs}.")
        parts = place.reshape(n_packs, -1)
        nodes, edges = self.budget(parts.shape[1], drawn=drawn)
        return jax.vmap(partial(_packed, self, n_nodes=nodes, n_edges=max(edges, 1)))(parts)


def _packed(
    arrays: GraphArrays, place: Int[Array, "graphs"], n_nodes: int, n_edges: int
) -> GraphBatch:
    """One pack, without a leading axis."""
    graph, node, node_where, counts, fits = _slots(arrays.node_offsets, place, n_nodes)
    edge_graph, edge, edge_where, edge_counts, edges_fit = _slots(
        arrays.edge_offsets, place, n_edges
    )
    features = arrays.features[_at(arrays.node_offsets, place, graph, node)].astype(jnp.float32)
    features = jnp.where(node_where[:, None], features, 0)
    features = jnp.where(fits & edges_fit, features, jnp.nan)
    starts = jnp.cumsum(counts) - counts
    edges = jnp.zeros((n_edges, 2), jnp.int32)
    if arrays.edges.shape[0]:
        edges = arrays.edges[_at(arrays.edge_offsets, place, edge_graph, edge)]
    edges = edges + starts.at[edge_graph].get(mode="fill", fill_value=0)[:, None]
    return GraphBatch(
        features, graph, node, node_where, edges, edge_graph, edge, edge_where, counts, edge_counts
    )


def _slots(
    offsets: Int[Array, "n_and_one"], place: Int[Array, "graphs"], size: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Of each slot its graph, its place in it and whether it is used; counts; whether all fit."""
    counts = offsets[place + 1] - offsets[place]
    ends = jnp.cumsum(counts)
    slot = jnp.arange(size, dtype=jnp.int32)
    graph = jnp.searchsorted(ends, slot, side="right").astype(jnp.int32)
    starts = (ends - counts).at[graph].get(mode="fill", fill_value=0)
    used = slot < ends[-1]
    return graph, jnp.where(used, slot - starts, 0), used, counts, ends[-1] <= size


def _at(offsets: Array, place: Array, graph: Array, within: Array) -> Array:
    """Where the members of graphs of a pack lie in the arrays; somewhere, for unused slots."""
    return offsets[place].at[graph].get(mode="fill", fill_value=0) + within


def _most(counts: np.ndarray) -> tuple[int, ...]:
    """The sums of the 1, 2, 4, … greatest counts, and of all."""
    sums = np.cumsum(np.sort(counts)[::-1].astype(np.int64))
    powers = [2**power for power in range((len(counts) - 1).bit_length())]
    return tuple(int(sums[power - 1]) for power in [*powers, len(counts)])


def _likely(counts: np.ndarray, most: tuple[int, ...]) -> tuple[int, ...]:
    r"""What the sums of 1, 2, 4, … random counts exceed with a probability of 1e-12 at most.

    By Chernoff's bound, :math:`P(S \ge t) \le e^{-\lambda t} (\mathrm E\, e^{\lambda X})^k`, which
    holds for draws without replacement, too (Hoeffding, 1963, theorem 4).
    """
    scale = max(float(counts.max()), 1.0)
    slopes = np.geomspace(1e-4, 100, 400)
    moments = np.array([np.mean(np.exp(slope * (counts / scale - 1))) for slope in slopes])
    rates = np.log(moments) + slopes  # of the logarithm of E exp(slope * count / scale)
    bounds = []
    for power, largest in enumerate(most):
        if power == len(most) - 1:
            bounds.append(largest)  # all of them
        else:
            bound = np.min((2**power * rates - np.log(_RARE)) / slopes) * scale
            bounds.append(min(largest, int(np.ceil(bound))))
    return tuple(bounds)
