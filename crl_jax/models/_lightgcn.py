"""LightGCN, an encoder that propagates embeddings over the interaction graph."""

from collections.abc import Sequence
from dataclasses import field, replace
from math import isfinite
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Key

from .._hyperparams import Range, Scalar
from .._pytree import STATIC, pytree_dataclass
from ..data import Interactions
from ._encoder import Encoder, Similarity, Tables
from ._gather_layout import GatherLayout
from ._interaction_graph import InteractionGraph, Layout
from ._mf import Initializer, init_tables, normal
from ._propagation import LayerNoise, propagate_mixes, propagate_per_layer

PUBLISHED: Initializer = normal(0.1)
"""Initializer of the published code."""
_LAYERS = Range(1, 64)


@pytree_dataclass
class LightGCN(Encoder):
    r"""Two embedding tables and their propagation over the graph of interactions.

    .. math:: E^{(l+1)} = D^{-1/2} A D^{-1/2} E^{(l)}, \qquad E = \sum_{l=0}^L w_l E^{(l)}

    A is the adjacency matrix of users and items, D the diagonal matrix of degrees. The vector of a
    user or item without interactions is :math:`w_0 E^{(0)}`. Constructed by
    :meth:`from_interactions`.

    Attributes:
      graph: Graph of the training interactions.
      layer_weights: :math:`w_0, \dots, w_L`. Static.
      edge_dropout: Probability in [0, 1) of dropping an edge in training. Static.
      node_dropout: Probability in [0, 1) of dropping a user or item in training. Static.
      walk: Whether edges are dropped independently in each layer. Static.
      renormalize: Whether D counts the remaining edges only, instead of rescaling them. Static.
      initializer: Initializer of each table; by default normal with standard deviation 0.1, as in
        the published code. Static.
      noise: Length in [0, ∞) of the random vectors added to the rows of each layer after the first
        in training, see :func:`propagate_mixes`; None for none.

    Raises:
      ValueError: If a value is out of range.

    References:
      He et al., LightGCN: Simplifying and Powering Graph Convolution Network for Recommendation,
      2020 (arXiv 2002.02126), equations 3, 4 and 7.
    """

    graph: InteractionGraph = field(kw_only=True)
    layer_weights: tuple[float, ...] = field(kw_only=True, metadata=STATIC)
    edge_dropout: Annotated[float, Range(0, 1, high_open=True)] = field(
        default=0.0, kw_only=True, metadata=STATIC
    )
    node_dropout: Annotated[float, Range(0, 1, high_open=True)] = field(
        default=0.0, kw_only=True, metadata=STATIC
    )
    walk: bool = field(default=False, kw_only=True, metadata=STATIC)
    renormalize: bool = field(default=False, kw_only=True, metadata=STATIC)
    initializer: Initializer = field(default=PUBLISHED, kw_only=True, metadata=STATIC)
    noise: Annotated[Scalar | None, Range(0, jnp.inf, high_open=True)] = field(
        default=None, kw_only=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.layer_weights) < 2 or not all(map(isfinite, self.layer_weights)):
            raise ValueError(
                f"`layer_weights` must be at least two finite numbers, got {self.layer_weights}."
            )

    @classmethod
    def from_interactions(
        cls,
        train: Interactions,
        dim: int = 64,
        n_layers: Annotated[int, _LAYERS] = 3,
        *,
        layer_weights: Sequence[float] | None = None,
        edge_dropout: Annotated[float, Range(0, 1, high_open=True)] = 0.0,
        node_dropout: float = 0.0,
        walk: bool = False,
        renormalize: bool = False,
        noise: Scalar | None = None,
        similarity: Similarity = "inner",
        initializer: Initializer = PUBLISHED,
        layout: Layout = "auto",
    ) -> "LightGCN":
        """Builds an encoder for the users and items of a log; see the attributes for their ranges.

        Args:
          train: Training interactions only.
          dim: Dimension of the vectors.
          n_layers: Number of propagations, 1 ≤ L ≤ 64; deep stacks make all vectors alike.
          layer_weights: Weights of the layers 0 to L; by default all are 1 / (L + 1).
          edge_dropout: Drops edges, in both directions, at each training step. Remaining edges are
            scaled by 1 / (1 - p).
          node_dropout: Drops users and items with all their edges. Remaining edges are scaled by
            1 / (1 - p)².
          walk: Drops edges independently in each layer: SGL's random walk.
          renormalize: Divides by the remaining degrees instead of rescaling edges, as in SGL's
            published code. This changes expected values.
          noise, similarity, initializer: See the attributes.
          layout: See :meth:`InteractionGraph.from_interactions`.

        Raises:
          ValueError: If an argument is out of range or the number of weights is not L + 1.
        """
        _LAYERS.check("n_layers", n_layers)
        if layer_weights is None:
            layer_weights = [1 / (n_layers + 1)] * (n_layers + 1)
        if len(layer_weights) != n_layers + 1:
            raise ValueError(
                f"`layer_weights` must have {n_layers + 1} weights, one for the embeddings and one "
                f"for each of {n_layers} layers, got {len(layer_weights)}."
            )
        return cls(
            n_users=train.n_users,
            n_items=train.n_items,
            dim=dim,
            similarity=similarity,
            graph=InteractionGraph.from_interactions(
                train, layout=layout, droppable=edge_dropout > 0
            ),
            layer_weights=tuple(map(float, layer_weights)),
            edge_dropout=float(edge_dropout),
            node_dropout=float(node_dropout),
            walk=walk,
            renormalize=renormalize,
            initializer=initializer,
            noise=noise,
        )

    def shard(self, mesh: Mesh) -> "LightGCN":
        """Shards the edges with the rows of the tables, see :meth:`InteractionGraph.shard`.

        Noise depends on the order of the layout; with noise the graph is replicated.
        """
        if self.noise is not None and isinstance(self.graph.layout, GatherLayout):
            return self
        return replace(self, graph=self.graph.shard(mesh))

    def init(self, key: Key[Array, ""]) -> dict[str, Array]:
        """Returns ``users`` ``[n_users, dim]`` and ``items`` ``[n_items, dim]``."""
        return init_tables(key, self.n_users, self.n_items, self.dim, self.initializer)

    def encode(self, params: Any, key: Key[Array, ""] | None = None) -> Tables:
        """Weighted sum of all layers; with a ``key``, after edge and node dropout."""
        return self.mixes(params, key, (self.layer_weights,))[0]

    def mixes(
        self, params: Any, key: Key[Array, ""] | None, weights: Sequence[Sequence[float]]
    ) -> tuple[Tables, ...]:
        """Several weighted sums of the layers of one propagation, see :meth:`encode`."""
        tables, noise = Tables(params["users"], params["items"]), None
        if key is not None and self.noise is not None:
            noise = LayerNoise(self.noise, jax.random.fold_in(key, 1))
        if key is None or not (self.edge_dropout or self.node_dropout):
            return propagate_mixes(self.graph, tables, weights, noise)
        node_key = jax.random.fold_in(key, 2)
        if not self.walk:
            return propagate_mixes(self._drop(key, node_key), tables, weights, noise)
        layer_keys = jax.random.split(jax.random.fold_in(key, 3), max(map(len, weights)) - 1)
        graphs = [self._drop(layer_key, node_key) for layer_key in layer_keys]
        return propagate_per_layer(graphs, tables, weights, noise)

    def _drop(self, edge_key: Key[Array, ""], node_key: Key[Array, ""]) -> InteractionGraph:
        """Applies edge and node dropout to the graph."""
        graph = self.graph
        if self.edge_dropout:
            graph = graph.drop(edge_key, self.edge_dropout)
        if self.node_dropout:
            graph = graph.drop_nodes(node_key, self.node_dropout)
        return graph.renormalized() if self.renormalize else graph
