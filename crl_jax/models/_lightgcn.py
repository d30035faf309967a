"""LightGCN: embeddings mixed with those of their neighbours, layer after layer."""

from collections.abc import Sequence
from dataclasses import field, replace
from math import isfinite
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Key

from .._checks import check_range
from .._hyperparams import Scalar
from .._pytree import STATIC, pytree_dataclass
from ..data import Interactions
from ._encoder import Encoder, Similarity, Tables
from ._interaction_graph import InteractionGraph, Layout
from ._mf import Initializer, init_tables, normal
from ._propagation import LayerNoise, propagate_mixes, propagate_per_layer

PUBLISHED: Initializer = normal(0.1)
"""The initial values of the published code."""


@pytree_dataclass
class LightGCN(Encoder):
    r"""Two embedding tables and their propagation over the graph of interactions.

    .. math:: E^{(l+1)} = D^{-1/2} A D^{-1/2} E^{(l)}, \qquad E = \sum_{l=0}^L w_l E^{(l)}

    A links users with items, D holds the degrees. Make one with :meth:`from_interactions`. A
    user or item
    without an interaction keeps :math:`w_0 E^{(0)}`.

    Attributes:
      graph: The interactions of the training.
      layer_weights: :math:`w_0, \dots, w_L`. Static.
      edge_dropout: Probability that training does without an interaction, in [0, 1). Static.
      node_dropout: Probability that it does without a user or an item, in [0, 1). Static.
      walk: Whether the interactions that are left are drawn anew for each layer. Static.
      renormalize: Whether D holds the degrees that are left, and what is left does not count more.
        Static.
      initializer: Makes the initial values of each table; by default normal ones of deviation
        0.1, as the published code has them. Others are in ``jax.nn.initializers``. Static.
      noise: Length of the random vectors that training adds to the rows of each layer but the
        first, see :func:`propagate_mixes`; None for none.

    Raises:
      ValueError: If a number leaves its range.

    References:
      He et al., LightGCN: Simplifying and Powering Graph Convolution Network for Recommendation,
      2020 (arXiv 2002.02126), equations 3, 4 and 7.
    """

    graph: InteractionGraph = field(kw_only=True)
    layer_weights: tuple[float, ...] = field(kw_only=True, metadata=STATIC)
    edge_dropout: float = field(default=0.0, kw_only=True, metadata=STATIC)
    node_dropout: float = field(default=0.0, kw_only=True, metadata=STATIC)
    walk: bool = field(default=False, kw_only=True, metadata=STATIC)
    renormalize: bool = field(default=False, kw_only=True, metadata=STATIC)
    initializer: Initializer = field(default=PUBLISHED, kw_only=True, metadata=STATIC)
    noise: Scalar | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.layer_weights) < 2 or not all(map(isfinite, self.layer_weights)):
            raise ValueError(
                f"`layer_weights` must be at least two finite numbers, got {self.layer_weights}."
            )
        for name in ("edge_dropout", "node_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` must lie in [0, 1), got {getattr(self, name)}.")
        check_range("noise", self.noise, 0, jnp.inf, high_open=True)

    @classmethod
    def from_interactions(
        cls,
        train: Interactions,
        dim: int = 64,
        n_layers: int = 3,
        *,
        layer_weights: Sequence[float] | None = None,
        edge_dropout: float = 0.0,
        node_dropout: float = 0.0,
        walk: bool = False,
        renormalize: bool = False,
        noise: Scalar | None = None,
        similarity: Similarity = "inner",
        initializer: Initializer = PUBLISHED,
        layout: Layout = "auto",
    ) -> "LightGCN":
        """An encoder of these users and items.

        Args:
          train: The interactions to learn from, and no others.
          dim: Width of the vectors.
          n_layers: Number of propagations, L ≥ 1.
          layer_weights: A weight for each of the layers 0 to L; by default all 1 / (L + 1).
          edge_dropout: Probability in [0, 1) that training does without an interaction, drawn
            anew at each step, in both directions at once. The others count 1 / (1 - p) times.
          node_dropout: Probability in [0, 1) that it does without a user or an item, and all their
            interactions. The others count 1 / (1 - p)² times.
          walk: Draws the interactions that are left anew for each layer: SGL's random walk.
          renormalize: In place of counting more, what is left is divided by the degrees that are
            left, as in SGL's published code. Expected values are then not those of the whole.
          noise: Length of the random vectors that training adds to the rows of each layer but
            the first, anew at each step; None for none.
          similarity: ``"inner"`` or ``"cosine"``.
          initializer: Makes the initial values of each table.
          layout: How the graph is laid out, see :meth:`InteractionGraph.from_interactions`.

        Raises:
          ValueError: If an argument leaves its range, or the weights are not of all layers.
        """
        if n_layers < 1:
            raise ValueError(f"`n_layers` must be at least 1, got {n_layers}.")
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
        """With the links of each row where the row lies, see :meth:`InteractionGraph.shard`.

        With noise, which is drawn in the order of the layout, it stays as it is.
        """
        if self.noise is not None:
            return self
        return replace(self, graph=self.graph.shard(mesh))

    def init(self, key: Key[Array, ""]) -> dict[str, Array]:
        """``users`` ``[n_users, dim]`` and ``items`` ``[n_items, dim]``."""
        return init_tables(key, self.n_users, self.n_items, self.dim, self.initializer)

    def encode(self, params: Any, key: Key[Array, ""] | None = None) -> Tables:
        """The weighted sum of all layers; with a ``key``, of a graph with parts dropped."""
        return self.mixes(params, key, (self.layer_weights,))[0]

    def mixes(
        self, params: Any, key: Key[Array, ""] | None, weights: Sequence[Sequence[float]]
    ) -> tuple[Tables, ...]:
        """Several weighted sums of the layers of one propagation.

        Args:
          params: The parameters.
          key: As for :meth:`encode`.
          weights: For each sum its weights of the layers 0, 1, ...
        """
        tables, noise = Tables(params["users"], params["items"]), None
        if key is not None and self.noise is not None:
            noise = LayerNoise(self.noise, jax.random.fold_in(key, 1))
        if key is None or not (self.edge_dropout or self.node_dropout):
            return propagate_mixes(self.graph, tables, weights, noise)
        of_nodes = jax.random.fold_in(key, 2)
        if not self.walk:
            return propagate_mixes(self._thinned(key, of_nodes), tables, weights, noise)
        of_layers = jax.random.split(jax.random.fold_in(key, 3), max(map(len, weights)) - 1)
        graphs = [self._thinned(of_layer, of_nodes) for of_layer in of_layers]
        return propagate_per_layer(graphs, tables, weights, noise)

    def _thinned(self, of_edges: Key[Array, ""], of_nodes: Key[Array, ""]) -> InteractionGraph:
        """The graph without what dropout leaves out."""
        graph = self.graph
        if self.edge_dropout:
            graph = graph.drop(of_edges, self.edge_dropout)
        if self.node_dropout:
            graph = graph.drop_nodes(of_nodes, self.node_dropout)
        return graph.renormalized() if self.renormalize else graph
