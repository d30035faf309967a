"""Random views of graphs."""

from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from typing import Annotated, Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from .._checks import check_count
from .._floats import multiply_share
from .._hyperparams import Scalar
from .._pytree import STATIC, pytree_dataclass
from ..models import GraphArrays, GraphBatch
from ._images import PROBABILITY

GraphKind = Literal["identity", "drop_nodes", "subgraph", "perturb_edges", "mask_attributes"]
"""Name of an augmentation function of graphs, or ``"identity"``."""

Ratio = Annotated[Scalar | Float[Array, "packs graphs"], PROBABILITY]
Keys = Key[Array, "packs graphs"]

_BITS = 32


def drop_nodes(keys: Keys, batch: GraphBatch, ratio: Ratio = 0.2) -> GraphBatch:
    """Drops ``ratio * nodes`` nodes of each graph, rounded down, with all their edges.

    Args:
      keys: One random key per graph, ``[packs, graphs]``.
      batch: The graphs, packed by :meth:`crl_jax.models.GraphArrays.pack`.
      ratio: In [0, 1], one number or one per graph.

    References:
      You et al., `Graph Contrastive Learning with Augmentations <https://arxiv.org/abs/2010.13902>`_,
      2020, table 1.
    """
    return _vmap_packs(_drop_nodes, keys, batch, ratio)


def subgraph(keys: Keys, batch: GraphBatch, ratio: Ratio = 0.2) -> GraphBatch:
    """Keeps a random connected subgraph; drops ``ratio * nodes`` nodes, rounded down.

    The subgraph grows from a uniform node, each time by a uniform neighbour of its nodes, until it
    is large enough or has no neighbours. Of a disconnected graph it thus keeps one component,
    unless ``ratio * nodes`` is below 1.

    Arguments are those of :func:`drop_nodes`.

    References:
      You et al., 2020, table 1, and the intent of its code.
    """
    return _vmap_packs(_subgraph, keys, batch, ratio)


def perturb_edges(
    keys: Keys, batch: GraphBatch, ratio: Ratio = 0.2, *, add: bool = False
) -> GraphBatch:
    """Drops ``ratio * edges`` edges of each graph, rounded down, or replaces them.

    Args:
      keys, batch, ratio: As for :func:`drop_nodes`.
      add: Whether the same number of edges between uniform pairs of nodes is added, as in the paper
        but not in its code. Duplicates of existing edges count twice; edges at nodes dropped before
        are dropped. Static.

    References:
      You et al., 2020, table 1.
    """
    return _vmap_packs(partial(_perturb_edges, add=add), keys, batch, ratio)


def mask_attributes(keys: Keys, batch: GraphBatch, ratio: Ratio = 0.2) -> GraphBatch:
    """Replaces the features of ``ratio * nodes`` nodes, rounded down, by N(0.5, 0.5²).

    Arguments as for :func:`drop_nodes`.

    References:
      You et al., 2020, table 1; mean and variance are those of its code.
    """
    return _vmap_packs(_mask_attributes, keys, batch, ratio)


_FUNCTIONS: dict[str, Callable[..., GraphBatch]] = {
    f.__name__: f for f in (drop_nodes, subgraph, perturb_edges, mask_attributes)
}


@pytree_dataclass
class GraphAugmentation:
    """GraphCL's views of a graph: one of several augmentations, drawn at random.

    ``views(key, index)`` augments the graph at this index: the examples of a task are the indices
    ``jnp.arange(graphs.n)``. A view depends only on its own key and graph. Tasks draw the views of
    a batch by :meth:`batch`, which packs their nodes.

    Attributes:
      graphs: The graphs.
      kinds: Augmentations, one of which is drawn uniformly for each view. ``random2`` of the
        published code has the first two of ``drop_nodes``, ``subgraph``, ``perturb_edges`` and
        ``mask_attributes``, ``random3`` the first three, and ``random4`` all. Static.
      ratio: Share of nodes or edges that is changed, in [0, 1].
      add: See :func:`perturb_edges`. Static.
      drawn: Whether batches are random samples of the graphs, as with ``ArrayBatches``: a batch
        then often needs half the memory, see :meth:`crl_jax.models.GraphArrays.budget`. Static.
      n_packs: Packs per batch: the number of devices that share a batch. Static.

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
    ratio: Annotated[Any, PROBABILITY] = 0.2
    add: bool = field(default=False, metadata=STATIC)
    drawn: bool = field(default=True, metadata=STATIC)
    n_packs: int = field(default=1, metadata=STATIC)

    def __post_init__(self) -> None:
        if not self.kinds or not set(self.kinds) <= set(get_args(GraphKind)):
            raise ValueError(
                f"`kinds` must be some of {', '.join(get_args(GraphKind))}, got {self.kinds!r}."
            )
        check_count("n_packs", self.n_packs)

    def shard(self, mesh: Mesh) -> "GraphAugmentation":
        """Returns the augmentation with a pack for each device of a mesh."""
        return replace(self, n_packs=mesh.size)

    def __call__(self, key: Key[Array, ""], index: Int[Array, ""]) -> GraphBatch:
        """Draws a random view of one graph, without the axis of packs."""
        one = replace(self, n_packs=1, drawn=False).batch(key[None], jnp.asarray(index)[None])
        return jax.tree.map(lambda leaf: leaf[0], one)

    def plain(self, index: Int[Array, ""]) -> GraphBatch:
        """Returns one graph, without the axis of packs."""
        return jax.tree.map(lambda leaf: leaf[0], self.graphs.pack(jnp.asarray(index)[None]))

    def batch(self, keys: Key[Array, "batch"], indices: Int[Array, "batch"]) -> GraphBatch:
        """Draws random views of several graphs, see :meth:`crl_jax.models.GraphArrays.pack`.

        Under ``vmap`` batches are drawn sequentially: one batch already fills the cache.
        """
        return jax.custom_batching.sequential_vmap(GraphAugmentation._batch)(self, keys, indices)

    def _batch(self, keys: Key[Array, "batch"], indices: Int[Array, "batch"]) -> GraphBatch:
        batch = self.graphs.pack(indices, self.n_packs, drawn=self.drawn)
        keys = jax.vmap(lambda key: jax.random.split(key))(keys)
        shape = batch.n_nodes.shape
        kind_keys, keys = keys[:, 0].reshape(shape), keys[:, 1].reshape(shape)
        draw = partial(jax.random.randint, shape=(), minval=0, maxval=len(self.kinds))
        kind = jax.vmap(jax.vmap(draw))(kind_keys)
        ratio = jnp.asarray(self.ratio, jnp.float32)
        for name in dict.fromkeys(self.kinds):  # without duplicates
            if name == "identity":
                continue
            mask = jnp.isin(kind, jnp.array([i for i, k in enumerate(self.kinds) if k == name]))
            options = {"add": self.add} if name == "perturb_edges" else {}
            batch = _FUNCTIONS[name](keys, batch, jnp.where(mask, ratio, 0), **options)
        return batch

    def plain_batch(self, indices: Int[Array, "batch"]) -> GraphBatch:
        """Packs several graphs."""
        n_packs = self.n_packs if indices.shape[0] % self.n_packs == 0 else 1
        return self.graphs.pack(indices, n_packs)


def _vmap_packs(
    function: Callable[..., GraphBatch], keys: Keys, batch: GraphBatch, ratio: Ratio
) -> Any:
    """Applies ``function(keys, batch, ratio)`` to each pack."""
    PROBABILITY.check("ratio", ratio)
    ratios = jnp.broadcast_to(jnp.asarray(ratio, jnp.float32), batch.n_nodes.shape)
    return jax.vmap(function)(keys, batch, ratios)


def _drop_nodes(keys: Array, batch: GraphBatch, ratio: Array) -> GraphBatch:
    dropped = _choose(keys, batch.graph, batch.node, ratio, batch.n_nodes)
    return _mask_nodes(batch, batch.node_where & ~dropped)


def _subgraph(keys: Array, batch: GraphBatch, ratio: Array) -> GraphBatch:
    n_dropped = count_from_ratio(ratio, batch.n_nodes)
    keys = jax.vmap(partial(jax.random.split, num=2))(keys)
    uniform = jax.vmap(jax.random.uniform)(keys[:, 0])
    start = jnp.floor(uniform * batch.n_nodes.astype(jnp.float32)).astype(jnp.int32)
    start = jnp.minimum(start, batch.n_nodes - 1)
    n_graphs = batch.n_nodes.shape[0]
    grows = (n_dropped > 0).at[batch.graph].get(mode="fill", fill_value=False) & batch.node_where
    graph = jnp.minimum(batch.graph, n_graphs - 1)
    # All graphs grow in parallel: a node joins an exponential time after its first neighbour, and
    # the earliest are kept. These times are memoryless, so that the distribution is the same.
    wait = jax.vmap(jax.random.exponential)(_member_keys(keys[:, 1], batch.graph, batch.node))
    time = jnp.where(grows & (batch.node == start[graph]), 0, jnp.inf).astype(wait.dtype)
    out_of_bounds = time.shape[0]
    ends = jnp.where(batch.edge_where[:, None], batch.edges, out_of_bounds)

    def relax(state: tuple[Array, Array]) -> tuple[Array, Array]:
        time, _ = state
        earliest = jnp.full_like(time, jnp.inf)
        for target, source in ((0, 1), (1, 0)):
            source_time = time.at[ends[:, source]].get(mode="fill", fill_value=jnp.inf)
            earliest = earliest.at[ends[:, target]].min(source_time, mode="drop")
        updated = jnp.minimum(time, earliest + wait)
        return updated, jnp.any(updated < time)

    time, _ = jax.lax.while_loop(lambda state: state[1], relax, (time, jnp.bool_(True)))
    # Non-negative floats are ordered as their bits.
    bits = jax.lax.bitcast_convert_type(time, jnp.uint32)
    keep = lowest_per_graph(bits, batch.graph, batch.n_nodes - n_dropped) & (time < jnp.inf)
    return _mask_nodes(batch, jnp.where(grows, keep, batch.node_where))


def _perturb_edges(keys: Array, batch: GraphBatch, ratio: Array, *, add: bool) -> GraphBatch:
    keys = jax.vmap(partial(jax.random.split, num=2))(keys)
    chosen = _choose(keys[:, 0], batch.edge_graph, batch.edge, ratio, batch.n_edges)
    if not add:
        return batch._replace(edge_where=batch.edge_where & ~chosen)
    graph = jnp.minimum(batch.edge_graph, batch.n_nodes.shape[0] - 1)
    n = batch.n_nodes[graph]
    edge_keys = _member_keys(keys[:, 1], batch.edge_graph, batch.edge)
    uniform = jax.vmap(partial(jax.random.uniform, shape=(2,)))(edge_keys)
    one = jnp.minimum((uniform[:, 0] * n.astype(jnp.float32)).astype(jnp.int32), n - 1)
    step = (uniform[:, 1] * (n - 1).astype(jnp.float32)).astype(jnp.int32)
    other = (one + 1 + jnp.minimum(step, n - 2)) % n  # another node
    offset = (jnp.cumsum(batch.n_nodes) - batch.n_nodes)[graph]
    added = jnp.stack([one, other], axis=-1) + offset[:, None]
    edges = jnp.where(chosen[:, None], added, batch.edges)
    return _mask_nodes(batch._replace(edges=edges), batch.node_where)


def _mask_attributes(keys: Array, batch: GraphBatch, ratio: Array) -> GraphBatch:
    keys = jax.vmap(partial(jax.random.split, num=2))(keys)
    chosen = _choose(keys[:, 0], batch.graph, batch.node, ratio, batch.n_nodes)
    node_keys = _member_keys(keys[:, 1], batch.graph, batch.node)
    width, dtype = batch.features.shape[-1], batch.features.dtype
    normal = jax.vmap(lambda key: jax.random.normal(key, (width,)))(node_keys)
    noise = (0.5 + 0.5 * normal).astype(dtype)
    return batch._replace(features=jnp.where(chosen[:, None], noise, batch.features))


def _mask_nodes(batch: GraphBatch, where: Array) -> GraphBatch:
    """Keeps these nodes, and the edges between them."""
    both = jnp.all(where.at[batch.edges].get(mode="fill", fill_value=False), axis=-1)
    return batch._replace(node_where=where, edge_where=batch.edge_where & both)


def _choose(keys: Array, graph: Array, member: Array, ratio: Array, n: Array) -> Array:
    """Mask of a random ``ratio`` of the ``n`` nodes or edges of each graph."""
    bits = jax.vmap(jax.random.bits)(_member_keys(keys, graph, member))
    return lowest_per_graph(bits, graph, count_from_ratio(ratio, n))


def _member_keys(
    keys: Key[Array, "graphs"], graph: Int[Array, "members"], member: Int[Array, "members"]
) -> Key[Array, "members"]:
    """Keys of nodes or edges, which depend only on the graph's key and the position in it."""
    return jax.vmap(jax.random.fold_in)(keys[jnp.minimum(graph, keys.shape[0] - 1)], member)


@jax.jit
def lowest_per_graph(
    values: UInt32[Array, "members"], graph: Int[Array, "members"], count: Int[Array, "graphs"]
) -> Bool[Array, "members"]:
    """Mask of the ``count`` lowest values of each graph; fewer if values tie at the threshold.

    Two random values of 32 bits tie with probability 2^-32.
    """
    threshold = jax.lax.platform_dependent(
        values, graph, count, cpu=_threshold_by_bisection, default=_threshold_by_sorting
    )
    n = count.shape[0]
    return (graph < n) & (values < threshold[jnp.minimum(graph, n - 1)])


def _threshold_by_bisection(values: Array, graph: Array, count: Array) -> UInt32[Array, "graphs"]:
    """Largest number that at most ``count`` values of the graph lie below.

    Bisects the threshold, as sorting takes ten times as long on a CPU.
    """
    n = count.shape[0]
    valid = graph < n
    index = jnp.minimum(graph, n - 1)

    def bisect(step: Array, threshold: Array) -> Array:
        candidate = threshold | (jnp.uint32(1) << (_BITS - 1 - step).astype(jnp.uint32))
        below = (valid & (values < candidate[index])).astype(jnp.int32)
        n_below = jnp.zeros(n, jnp.int32).at[index].add(below, indices_are_sorted=True)
        return jnp.where(n_below <= count, candidate, threshold)

    return jax.lax.fori_loop(0, _BITS, bisect, jnp.zeros(n, jnp.uint32))


def _threshold_by_sorting(values: Array, graph: Array, count: Array) -> UInt32[Array, "graphs"]:
    """Same threshold: the value at position ``count`` of the sorted values of the graph.

    Each of the 32 rounds of a bisection gathers and scatters all members. On an H100 (JAX 0.11.2)
    the bisection of 16,384 members takes 1.9 ms, the sort 0.19.
    """
    _, ordered = jax.lax.sort((graph, values), num_keys=2, is_stable=False)
    graphs = jnp.arange(count.shape[0], dtype=jnp.int32)
    start = jnp.sum(graph[:, None] < graphs[None], axis=0, dtype=jnp.int32)
    size = jnp.sum(graph[:, None] == graphs[None], axis=0, dtype=jnp.int32)
    value = ordered.at[start + count].get(mode="clip")
    return jnp.where(count < size, value, jnp.uint32(2**_BITS - 1))


def count_from_ratio(ratio: Array, n: Int[Array, "graphs"]) -> Array:
    """``ratio * n`` rounded down, as in published code."""
    return jnp.floor(multiply_share(ratio, n)).astype(jnp.int32)
