"""Modules of :class:`GIN`, imported when one is built."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from .._floats import at_least_float32
from ._gin import GIN
from ._graph_batch import GraphBatch
from ._layers import BatchNorm, Linear
from ._remat import Remat, rematerialize


class GINModule(nnx.Module):
    """Graph convolutions, with sum pooling after each layer."""

    def __init__(self, settings: GIN, rngs: nnx.Rngs):
        self.n_in, self.n_layers = settings.n_in, settings.n_layers
        self.epsilon = settings.epsilon
        self.remat: Remat = "none"  # set by `Network`
        n_in, kernel_init = settings.n_in, nnx.initializers.xavier_uniform()
        for layer in range(1, settings.n_layers + 1):
            setattr(self, f"first_{layer}", Linear(n_in, settings.width, kernel_init, rngs))
            setattr(
                self, f"second_{layer}", Linear(settings.width, settings.width, kernel_init, rngs)
            )
            setattr(self, f"norm_{layer}", BatchNorm(settings.width))
            n_in = settings.width

    def __call__(self, x: GraphBatch) -> Array:
        """Returns features ``[packs * graphs, n_features]`` in the dtype of the node features.

        Raises:
          ValueError: If the number of node features is not ``n_in``.
        """
        if x.features.shape[-1] != self.n_in:
            raise ValueError(
                f"`x` must have {self.n_in} node features, got {x.features.shape[-1]}."
            )
        (n_packs, n_nodes), n_graphs = x.graph.shape, x.n_nodes.shape[1]
        where = x.node_where.reshape(-1)
        # Packs are concatenated. Indices of padding are out of bounds, so that scatters drop them.
        ends = x.edges + n_nodes * jnp.arange(n_packs, dtype=x.edges.dtype)[:, None, None]
        ends = jnp.where(x.edge_where[..., None], ends, n_packs * n_nodes).reshape(-1, 2)
        graph = x.graph + n_graphs * jnp.arange(n_packs, dtype=x.graph.dtype)[:, None]
        graph = jnp.where(where, graph.reshape(-1), n_packs * n_graphs)
        h, pooled = x.features.reshape(-1, self.n_in), []
        for layer in range(1, self.n_layers + 1):
            convolve = partial(GINModule.convolve, layer=layer)
            h = rematerialize(convolve, self.remat, self, h, ends, where)
            pooled.append(node_sums(h, graph, n_packs * n_graphs))
        return jnp.concatenate(pooled, axis=-1)

    def convolve(
        self,
        h: Float[Array, "nodes width"],
        ends: Int[Array, "edges 2"],
        where: Bool[Array, "nodes"],
        *,
        layer: int,
    ) -> Array:
        """Returns the node vectors after a layer; arguments are those of :func:`neighbour_sums`."""
        h = (1 + self.epsilon) * h + neighbour_sums(h, ends)
        h = jax.nn.relu(getattr(self, f"first_{layer}")(h))
        h = jax.nn.relu(getattr(self, f"second_{layer}")(h))
        return getattr(self, f"norm_{layer}")(h, where)


@jax.custom_vjp
def neighbour_sums(
    h: Float[Array, "nodes width"], ends: Int[Array, "edges 2"]
) -> Float[Array, "nodes width"]:
    """Sums over the neighbours of each node in the dtype of ``h``; drops out-of-bounds edges."""
    (wide,) = at_least_float32(h)
    total = jnp.zeros_like(wide)
    # Edges are undirected. Two scatters take two thirds of the time of one with all directions.
    for target, source in ((0, 1), (1, 0)):
        messages = wide.at[ends[:, source]].get(mode="fill", fill_value=0)
        total = total.at[ends[:, target]].add(messages, mode="drop")
    return total.astype(h.dtype)


def _neighbour_sums_fwd(h: Array, ends: Array) -> tuple[Array, Array]:
    return neighbour_sums(h, ends), ends


def _neighbour_sums_bwd(ends: Array, grad: Array) -> tuple[Array, None]:
    """Sums over neighbours again: the adjacency matrix is symmetric."""
    return neighbour_sums(grad, ends), None


neighbour_sums.defvjp(_neighbour_sums_fwd, _neighbour_sums_bwd)


def node_sums(
    h: Float[Array, "nodes width"], graph: Int[Array, "nodes"], n: int
) -> Float[Array, "n width"]:
    """Sums over the nodes of each graph in the dtype of ``h``; drops graph indices from n on."""
    (wide,) = at_least_float32(h)
    return jnp.zeros((n, h.shape[1]), wide.dtype).at[graph].add(wide, mode="drop").astype(h.dtype)
