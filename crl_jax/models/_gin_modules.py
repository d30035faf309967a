"""The modules of :class:`GIN`; imported only where one is built."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from .._floats import at_least_float32
from ._gin import GIN
from ._graph_batch import GraphBatch
from ._resnet_modules import BatchNorm


class Dense(nnx.Module):
    """A linear layer with a bias, in the type of its input."""

    def __init__(self, n_in: int, n_out: int, rngs: nnx.Rngs):
        initial = nnx.initializers.xavier_uniform()
        self.kernel = nnx.Param(initial(rngs.params(), (n_in, n_out)))
        self.bias = nnx.Param(jnp.zeros(n_out))

    def __call__(self, x: Float[Array, "nodes n_in"]) -> Array:
        """The outputs ``[nodes, n_out]``."""
        return x @ self.kernel[...].astype(x.dtype) + self.bias[...].astype(x.dtype)[None]


class GINModule(nnx.Module):
    """Layers of sums over neighbours, and the sums over nodes after each."""

    def __init__(self, settings: GIN, rngs: nnx.Rngs):
        self.n_in, self.n_layers = settings.n_in, settings.n_layers
        self.epsilon = settings.epsilon
        n_in = settings.n_in
        for place in range(1, settings.n_layers + 1):
            setattr(self, f"first_{place}", Dense(n_in, settings.width, rngs))
            setattr(self, f"second_{place}", Dense(settings.width, settings.width, rngs))
            setattr(self, f"norm_{place}", BatchNorm(settings.width))
            n_in = settings.width

    def __call__(self, x: GraphBatch) -> Array:
        """Features ``[packs * graphs, n_features]``, in the type of the nodes' features.

        Raises:
          ValueError: If nodes have another number of features.
        """
        if x.features.shape[-1] != self.n_in:
            raise ValueError(f"Nodes must have {self.n_in} features, got {x.features.shape[-1]}.")
        (n_packs, n_nodes), n_graphs = x.graph.shape, x.n_nodes.shape[1]
        where = x.node_where.reshape(-1)
        # The packs as one list. What is not there points behind its end, and is left out.
        ends = x.edges + n_nodes * jnp.arange(n_packs, dtype=x.edges.dtype)[:, None, None]
        ends = jnp.where(x.edge_where[..., None], ends, n_packs * n_nodes).reshape(-1, 2)
        graph = x.graph + n_graphs * jnp.arange(n_packs, dtype=x.graph.dtype)[:, None]
        graph = jnp.where(where, graph.reshape(-1), n_packs * n_graphs)
        h, pooled = x.features.reshape(-1, self.n_in), []
        for place in range(1, self.n_layers + 1):
            h = (1 + self.epsilon) * h + neighbour_sums(h, ends)
            h = jax.nn.relu(getattr(self, f"first_{place}")(h))
            h = jax.nn.relu(getattr(self, f"second_{place}")(h))
            h = getattr(self, f"norm_{place}")(h, where)
            pooled.append(node_sums(h, graph, n_packs * n_graphs))
        return jnp.concatenate(pooled, axis=-1)


@jax.custom_vjp
def neighbour_sums(
    h: Float[Array, "nodes width"], ends: Int[Array, "edges 2"]
) -> Float[Array, "nodes width"]:
    """The sum over the neighbours of each node, in the type of ``h``; ends beyond it are no one."""
    (wide,) = at_least_float32(h)
    total = jnp.zeros_like(wide)
    # An edge leads both ways. Two sums take two thirds of the time of one of all links.
    for here, there in ((0, 1), (1, 0)):
        seen = wide.at[ends[:, there]].get(mode="fill", fill_value=0)
        total = total.at[ends[:, here]].add(seen, mode="drop")
    return total.astype(h.dtype)


def _neighbour_sums_fwd(h: Array, ends: Array) -> tuple[Array, Array]:
    return neighbour_sums(h, ends), ends


def _neighbour_sums_bwd(ends: Array, slope: Array) -> tuple[Array, None]:
    """The same sums: who is a neighbour has one."""
    return neighbour_sums(slope, ends), None


neighbour_sums.defvjp(_neighbour_sums_fwd, _neighbour_sums_bwd)


def node_sums(
    h: Float[Array, "nodes width"], graph: Int[Array, "nodes"], n: int
) -> Float[Array, "n width"]:
    """The sum over the nodes of each graph, in the type of ``h``; a graph from n on is none."""
    (wide,) = at_least_float32(h)
    return jnp.zeros((n, h.shape[1]), wide.dtype).at[graph].add(wide, mode="drop").astype(h.dtype)
