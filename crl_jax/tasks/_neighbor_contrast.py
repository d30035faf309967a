"""Contrast of users and items with their structural and semantic neighbours: NCL."""

from dataclasses import field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from .._reduce import masked_mean
from ..losses import normalize
from ..models import Encoder, Tables
from ._auxiliary import (
    ContrastiveAuxiliaryLoss,
    as_light_gcn,
    check_layer,
    distinct,
    one_layer,
)
from ._kmeans import Clustering, spherical_kmeans


class NeighborState(NamedTuple):
    """State of :class:`NeighborContrast`.

    Attributes:
      users: Clustering of the users.
      items: Clustering of the items.
      warmed_up: 1 if the epoch started with their computation, otherwise 0.
    """

    users: Clustering
    items: Clustering
    warmed_up: Float[Array, ""]


@pytree_dataclass
class NeighborContrast(ContrastiveAuxiliaryLoss):
    r"""Contrasts users and items with their neighbours in the graph, and with prototypes: NCL.

    Each user of a batch is attracted to two kinds of neighbours, and so is each item.
    *Structural* neighbours are summed in an even layer of the propagation, which is contrasted
    with the input embeddings as in :class:`ContrastiveAuxiliaryLoss`. *Semantic* neighbours are
    those of the same cluster of input embeddings, whose centroid :math:`c` is contrasted with the
    other centroids:

    .. math::
        w\,\mathcal L_{\mathrm{structure}} + w_p \Bigl[
        \frac1{|U|} \sum_{u \in U} \ell(e_u \cdot c_u, e_u \cdot c_{\ne u}) + \frac1{|I|}
        \sum_{i \in I} \ell(e_i \cdot c_i, e_i \cdot c_{\ne i})\Bigr]

    U and I are the distinct users and items of the batch, e their normalised input embeddings.
    Each epoch after the warm-up starts with the clustering of all users, and of all items.
    Requires one propagation per step, and a :class:`crl_jax.models.LightGCN`.

    Differences from the published code: the structural negatives are those of the batch instead of
    all users and items; both sides have the same weight; k-means uses cosines instead of distances;
    terms are means instead of sums over a batch, so that the published weights are to be multiplied
    by the batch size of 4,096.

    Attributes:
      weight: Weight w of the structural contrast, at least 0.
      prototype_weight: Weight :math:`w_p` of the prototypes, at least 0.
      warm_up: Number of epochs before the first clustering, at least 0.
      layer: Layer of the structural neighbours, from 1. Static.
      clusters: Number of clusters of the users, and of the items, at least 2. Static.
      n_iterations: Number of k-means iterations. Static.

    The other attributes are those of :class:`ContrastiveAuxiliaryLoss`, of both contrasts.

    References:
      Lin et al., `Improving Graph Collaborative Filtering with Neighborhood-enriched Contrastive
      Learning <https://arxiv.org/abs/2202.06200>`_, 2022, Eq. 6 to 12.
    """

    prototype_weight: Annotated[Any, Range(0, high_open=True)] = field(default=4e-4, kw_only=True)
    warm_up: Annotated[Any, Range(0)] = field(default=20, kw_only=True)
    layer: Annotated[int, Range(1)] = field(default=2, kw_only=True, metadata=STATIC)
    clusters: Annotated[int, Range(2)] = field(default=100, kw_only=True, metadata=STATIC)
    n_iterations: Annotated[int, Range(1)] = field(default=20, kw_only=True, metadata=STATIC)

    def check(self, encoder: Encoder) -> None:
        """Raises ``ValueError`` unless the encoder has the layer, and as many users and items."""
        super().check(encoder)
        check_layer(self.layer, as_light_gcn(encoder))
        for name, n in (("users", encoder.n_users), ("items", encoder.n_items)):
            if self.clusters > n:
                raise ValueError(
                    f"`clusters` must be at most the number of {name}, {n}, got {self.clusters}."
                )

    def init(self, encoder: Encoder, params: Any) -> NeighborState:
        """Returns clusterings that are unused during the warm-up."""
        users, items = (
            Clustering.initial(table.shape[0], self.clusters, table.shape[1])
            for table in encoder.base_tables(params)
        )
        return NeighborState(users, items, jnp.zeros((), jnp.float32))

    def start_epoch(
        self,
        key: Key[Array, ""],
        encoder: Encoder,
        params: Any,
        state: NeighborState,
        epoch: Int[Array, ""],
    ) -> NeighborState:
        """Clusters the input embeddings, after the warm-up."""

        def cluster() -> NeighborState:
            users, items = (
                spherical_kmeans(
                    jax.random.fold_in(key, side), normalize(table.astype(jnp.float32)),
                    self.clusters, n_iterations=self.n_iterations,
                )
                for side, table in enumerate(encoder.base_tables(params))
            )  # fmt: skip
            return NeighborState(users, items, jnp.ones((), jnp.float32))

        warmed_up = epoch.astype(jnp.float32) >= jnp.asarray(self.warm_up, jnp.float32)
        return jax.lax.cond(warmed_up, cluster, lambda: state)

    def encode(
        self, encoder: Encoder, params: Any, key: Key[Array, ""]
    ) -> tuple[Tables, tuple[Tables, Tables]]:
        """Returns the final embeddings; those of the layer, and the input embeddings."""
        encoder = as_light_gcn(encoder)
        weights = encoder.layer_weights, one_layer(self.layer)
        final, neighbours = encoder.mixes(params, key, weights)
        return final, (neighbours, encoder.base_tables(params))

    def loss(
        self,
        views: tuple[Tables, Tables],
        users: Int[Array, "batch"],
        items: Int[Array, "batch"],
        where: Bool[Array, "batch"],
        state: Any = (),
    ) -> Float[Array, ""]:
        """See :meth:`AuxiliaryLoss.loss`; without a state, the structural contrast alone."""
        structure = super().loss(views, users, items, where)
        if not isinstance(state, NeighborState):
            return structure
        sides = zip(views[1], (users, items), (state.users, state.items), strict=True)
        prototypes = sum(self._prototype_loss(*side, where) for side in sides)
        weight = jnp.asarray(self.prototype_weight, jnp.float32) * state.warmed_up
        return structure + weight * prototypes

    def _prototype_loss(
        self,
        table: Float[Array, "n dim"],
        ids: Int[Array, "batch"],
        clustering: Clustering,
        where: Bool[Array, "batch"],
    ) -> Float[Array, ""]:
        z, unique = normalize(table[ids]).astype(jnp.float32), distinct(ids, where)
        pos, neg, is_negative = clustering.scores(z, ids)
        losses = self.loss_fn(
            pos, neg, where=is_negative & unique[:, None], reduce_fn=None, **self.hyperparams
        )
        return masked_mean(losses, where=unique).astype(jnp.float32)
