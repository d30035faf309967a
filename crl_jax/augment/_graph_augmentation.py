"""Random views of graphs that are samples, and the choice among them."""

from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._checks import check_count, check_range
from .._hyperparams import Scalar
from .._pytree import STATIC, pytree_dataclass
from ..models import GraphArrays, GraphBatch
from ._graph_sampling import lowest, member_keys, random_bits, share_of

GraphKind = Literal["identity", "drop_nodes", "subgraph", "perturb_edges", "mask_attributes"]
"""A way to change a graph: one of the functions of these names, or none."""

Ratio = Scalar | Float[Array, "packs graphs"]
Keys = Key[Array, "packs graphs"]


def drop_nodes(keys: Keys, batch: GraphBatch, ratio: Ratio = 0.2) -> GraphBatch:
    """Leaves out ``ratio * nodes`` of each graph, rounded down, with all their edges.

    Args:
      keys: One for each graph, ``[packs, graphs]``.
      batch: The graphs, as :meth:`crl_jax.models.GraphArrays.pack` gives them.
      ratio: The share in [0, 1], one number or one for each graph.

    References:
      You et al., `Graph Contrastive Learning with Augmentations <https://arxiv.org/abs/2010.13902>`_,
      2020, table 1.
    """
    return _of_packs(_drop_nodes, keys, batch, ratio)


def subgraph(keys: Keys, batch: GraphBatch, ratio: Ratio = 0.2) -> GraphBatch:
    """Leaves out ``ratio * nodes`` of each graph, rounded down; the rest hangs together.

    From a node drawn uniformly the rest grows by one node at a time, drawn uniformly among all
    neighbours of what is there, until it is large enough or has no neighbours. So from a graph in
    several parts all but one part is left out, unless ``ratio * nodes`` is below 1.

    All graphs grow at once: each node joins a time after the first of its neighbours that is
    exponentially distributed, and the first nodes are kept. That is the same law, as an exponential
    time has no memory.

    Args:
      keys: As for :func:`drop_nodes`.
      batch: As for :func:`drop_nodes`.
      ratio: As for :func:`drop_nodes`.

    References:
      You et al., 2020, table 1, whose code means to grow a graph so.
    """
    return _of_packs(_subgraph, keys, batch, ratio)


def perturb_edges(
    keys: Keys, batch: GraphBatch, ratio: Ratio = 0.2, *, add: bool = False
) -> GraphBatch:
    """Leaves out ``ratio * edges`` of each graph, rounded down, and may add as many.

    Args:
      keys: As for :func:`drop_nodes`.
      batch: As for :func:`drop_nodes`.
      ratio: As for :func:`drop_nodes`, of edges.
      add: Whether as many edges between two nodes drawn uniformly are added, as the paper says; its
        code adds none. An added edge that is there already counts twice, and one at a node that was
        dropped before is none. Static.

    References:
      You et al., 2020, table 1.
    """
    return _of_packs(partial(_perturb_edges, add=add), keys, batch, ratio)


def mask_attributes(keys: Keys, batch: GraphBatch, ratio: Ratio = 0.2) -> GraphBatch:
    """Replaces all features of ``ratio * nodes`` of each graph, rounded down, by N(0.5, 0.5²).

    Args:
      keys: As for :func:`drop_nodes`.
      batch: As for :func:`drop_nodes`.
      ratio: As for :func:`drop_nodes`.

    References:
      You et al., 2020, table 1; the numbers are those of its code.
    """
    return _of_packs(_mask_attributes, keys, batch, ratio)


_CHANGES: dict[str, Callable[..., GraphBatch]] = {
    "drop_nodes": drop_nodes,
    "subgraph": subgraph,
    "perturb_edges": perturb_edges,
    "mask_attributes": mask_attributes,
}


@pytree_dataclass
class GraphAugmentation:
    """``views(key, place)``: the graph at this place, changed in one of several ways by chance.

    It holds the graphs; the examples of a task are their places, ``jnp.arange(graphs.n)``. A view
    depends on its own key and graph alone. Tasks draw the views of a batch by :meth:`batch`, which
    puts their nodes into one list.

    Attributes:
      graphs: The graphs.
      kinds: The ways, of which one is drawn uniformly for each view. ``random2`` of the published
        code has the first two of ``drop_nodes``, ``subgraph``, ``perturb_edges`` and
        ``mask_attributes``, ``random3`` the first three, and ``random4`` all. Static.
      ratio: The share of nodes or edges that is changed, in [0, 1].
      add: See :func:`perturb_edges`. Static.
      drawn: Whether the graphs of a batch are drawn at random, as ``ArrayBatches`` does: a batch
        then often takes half the room, see :meth:`crl_jax.models.GraphArrays.budget`.
        Static.
      n_packs: Packs of a batch: set it to the number of devices that share a batch. Static.

    Raises:
      ValueError: If an attribute is out of range.

    References:
      You et al., `Graph Contrastive Learning with Augmentations <https://arxiv.org/abs/2010.13902>`_,
      2020, section 3.2; ``unsupervised_TU/aug.py`` of its code.

    >>> from crl_jax import data, models
    >>> graphs = models.GraphArrays.from_graphs(data.load_graphs("simulated"))
    >>> views = GraphAugmentation(graphs, kinds=("drop_nodes",))
    >>> view = views(jax.random.key(0), jnp.int32(7))
    >>> print(view.n_nodes, view.node_where.sum())
    [29] 24
    """

    graphs: GraphArrays
    kinds: tuple[GraphKind, ...] = field(
        default=("drop_nodes", "subgraph", "perturb_edges", "mask_attributes"), metadata=STATIC
    )
    ratio: Any = 0.2
    add: bool = field(default=False, metadata=STATIC)
    drawn: bool = field(default=True, metadata=STATIC)
    n_packs: int = field(default=1, metadata=STATIC)

    def __post_init__(self) -> None:
        if not self.kinds or not set(self.kinds) <= set(get_args(GraphKind)):
            raise ValueError(
                f"`kinds` must be some of {', '.join(get_args(GraphKind))}, got {self.kinds!r}."
            )
        check_range("ratio", self.ratio, 0, 1)
        check_count("n_packs", self.n_packs)

    def __call__(self, key: Key[Array, ""], place: Int[Array, ""]) -> GraphBatch:
        """A random view of one graph, without the axis of packs."""
        one = replace(self, n_packs=1, drawn=False).batch(key[None], jnp.asarray(place)[None])
        return jax.tree.map(lambda leaf: leaf[0], one)

    def plain(self, place: Int[Array, ""]) -> GraphBatch:
        """One graph as it is, without the axis of packs."""
        one = self.graphs.pack(jnp.asarray(place)[None])
        return jax.tree.map(lambda leaf: leaf[0], one)

    def batch(self, keys: Key[Array, "batch"], places: Int[Array, "batch"]) -> GraphBatch:
        """Random views of many graphs, see :meth:`crl_jax.models.GraphArrays.pack`.

        Under ``vmap`` one batch is drawn after the other: each is as large as memory is quick.
        """
        return jax.custom_batching.sequential_vmap(GraphAugmentation._batch)(self, keys, places)

    def _batch(self, keys: Key[Array, "batch"], places: Int[Array, "batch"]) -> GraphBatch:
        batch = self.graphs.pack(places, self.n_packs, drawn=self.drawn)
        drawn = jax.vmap(lambda key: jax.random.split(key))(keys)
        shape = batch.n_nodes.shape
        of_kind, keys = drawn[:, 0].reshape(shape), drawn[:, 1].reshape(shape)
        draw = partial(jax.random.randint, shape=(), minval=0, maxval=len(self.kinds))
        kind = jax.vmap(jax.vmap(draw))(of_kind)
        ratio = jnp.asarray(self.ratio, jnp.float32)
        for name in dict.fromkeys(self.kinds):  # each once
            if name == "identity":
                continue
            own = jnp.isin(kind, jnp.array([i for i, k in enumerate(self.kinds) if k == name]))
            more = {"add": self.add} if name == "perturb_edges" else {}
            batch = _CHANGES[name](keys, batch, jnp.where(own, ratio, 0), **more)
        return batch

    def plain_batch(self, places: Int[Array, "batch"]) -> GraphBatch:
        """Many graphs as they are."""
        n_packs = self.n_packs if places.shape[0] % self.n_packs == 0 else 1
        return self.graphs.pack(places, n_packs)


def _of_packs(
    change: Callable[..., GraphBatch], keys: Keys, batch: GraphBatch, ratio: Ratio
) -> Any:
    """``change(keys, batch, ratio)`` of each pack."""
    check_range("ratio", ratio, 0, 1)
    each = jnp.broadcast_to(jnp.asarray(ratio, jnp.float32), batch.n_nodes.shape)
    return jax.vmap(change)(keys, batch, each)


def _drop_nodes(keys: Array, batch: GraphBatch, ratio: Array) -> GraphBatch:
    bits = random_bits(keys, batch.graph, batch.node)
    dropped = lowest(bits, batch.graph, share_of(ratio, batch.n_nodes))
    return _with_nodes(batch, batch.node_where & ~dropped)


def _subgraph(keys: Array, batch: GraphBatch, ratio: Array) -> GraphBatch:
    left_out = share_of(ratio, batch.n_nodes)
    drawn = jax.vmap(partial(jax.random.split, num=2))(keys)
    uniform = jax.vmap(jax.random.uniform)(drawn[:, 0])
    first = jnp.floor(uniform * batch.n_nodes.astype(jnp.float32)).astype(jnp.int32)
    first = jnp.minimum(first, batch.n_nodes - 1)
    n_graphs = batch.n_nodes.shape[0]
    grows = (left_out > 0).at[batch.graph].get(mode="fill", fill_value=False) & batch.node_where
    own = jnp.minimum(batch.graph, n_graphs - 1)
    wait = jax.vmap(jax.random.exponential)(member_keys(drawn[:, 1], batch.graph, batch.node))
    time = jnp.where(grows & (batch.node == first[own]), 0, jnp.inf).astype(wait.dtype)
    outside = time.shape[0]
    ends = jnp.where(batch.edge_where[:, None], batch.edges, outside)

    def spread(state: tuple[Array, Array]) -> tuple[Array, Array]:
        time, _ = state
        near = jnp.full_like(time, jnp.inf)
        for here, there in ((0, 1), (1, 0)):
            seen = time.at[ends[:, there]].get(mode="fill", fill_value=jnp.inf)
            near = near.at[ends[:, here]].min(seen, mode="drop")
        after = jnp.minimum(time, near + wait)
        return after, jnp.any(after < time)

    time, _ = jax.lax.while_loop(lambda state: state[1], spread, (time, jnp.bool_(True)))
    # Numbers that are not negative are in the order of their bits.
    bits = jax.lax.bitcast_convert_type(time, jnp.uint32)
    kept = lowest(bits, batch.graph, batch.n_nodes - left_out) & (time < jnp.inf)
    return _with_nodes(batch, jnp.where(grows, kept, batch.node_where))


def _perturb_edges(keys: Array, batch: GraphBatch, ratio: Array, *, add: bool) -> GraphBatch:
    drawn = jax.vmap(partial(jax.random.split, num=2))(keys)
    bits = random_bits(drawn[:, 0], batch.edge_graph, batch.edge)
    chosen = lowest(bits, batch.edge_graph, share_of(ratio, batch.n_edges))
    if not add:
        return batch._replace(edge_where=batch.edge_where & ~chosen)
    own = jnp.minimum(batch.edge_graph, batch.n_nodes.shape[0] - 1)
    n = batch.n_nodes[own]
    of_edge = member_keys(drawn[:, 1], batch.edge_graph, batch.edge)
    uniform = jax.vmap(partial(jax.random.uniform, shape=(2,)))(of_edge)
    one = jnp.minimum((uniform[:, 0] * n.astype(jnp.float32)).astype(jnp.int32), n - 1)
    step = (uniform[:, 1] * (n - 1).astype(jnp.float32)).astype(jnp.int32)
    other = (one + 1 + jnp.minimum(step, n - 2)) % n  # not the same
    starts = (jnp.cumsum(batch.n_nodes) - batch.n_nodes)[own]
    added = jnp.stack([one, other], axis=-1) + starts[:, None]
    edges = jnp.where(chosen[:, None], added, batch.edges)
    return _with_nodes(batch._replace(edges=edges), batch.node_where)


def _mask_attributes(keys: Array, batch: GraphBatch, ratio: Array) -> GraphBatch:
    drawn = jax.vmap(partial(jax.random.split, num=2))(keys)
    bits = random_bits(drawn[:, 0], batch.graph, batch.node)
    chosen = lowest(bits, batch.graph, share_of(ratio, batch.n_nodes))
    of_node = member_keys(drawn[:, 1], batch.graph, batch.node)
    width, dtype = batch.features.shape[-1], batch.features.dtype
    normal = jax.vmap(lambda key: jax.random.normal(key, (width,)))(of_node)
    noise = (0.5 + 0.5 * normal).astype(dtype)
    return batch._replace(features=jnp.where(chosen[:, None], noise, batch.features))


def _with_nodes(batch: GraphBatch, where: Array) -> GraphBatch:
    """The graphs with these nodes, and the edges between them."""
    both = jnp.all(where.at[batch.edges].get(mode="fill", fill_value=False), axis=-1)
    return batch._replace(node_where=where, edge_where=batch.edge_where & both)
