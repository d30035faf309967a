"""PCL: prototypes from a clustering of the data, in addition to the queue of MoCo."""

from dataclasses import field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..losses import normalize, proto_nce
from ..train import Batch, LossOutput, StepContext
from ._kmeans import Clustering, spherical_kmeans
from ._momentum import MoCo, MoCoState
from ._score_task import n_examples, split_labels
from ._views import ViewBatch, cast_like, map_plain_views


class PCLState(NamedTuple):
    """Model state of :class:`PCL`.

    Attributes:
      moco: Model state of :class:`MoCo`.
      clusterings: One for each number of clusters.
    """

    moco: MoCoState
    clusterings: tuple[Clustering, ...]

    @property
    def network_state(self) -> Any:
        """Non-trainable variables of the network."""
        return self.moco.network_state


@pytree_dataclass
class PCL(MoCo):
    r"""PCL: a query is attracted to its key and to the centroid of its cluster.

    After the warm-up, the mean over clusterings of :func:`crl_jax.losses.proto_nce`, with the
    temperature of ``hyperparams``, is added to the loss of :class:`MoCo`. Each epoch starts by
    clustering the plain views of all data, encoded by the momentum encoder. The history reports
    both terms, ``instances`` and ``prototypes``.

    Differences from the published code: all centroids are negatives instead of a sample of them;
    k-means uses cosines and one initialization instead of distances and five.

    Precision: the clustering is in full float32.

    Attributes:
      data: All examples, every leaf ``[n, ...]``, or :class:`LabelledExamples`. Batches are drawn
        from these by index.
      clusters: Numbers of clusters, each in [2, n]. Static.
      warm_up: Number of epochs before the first clustering, >= 0.
      n_iterations: Number of k-means iterations. Static.
      block_size: Number of examples that are encoded and compared with the centroids at a time.
        Static.

    The other attributes are those of :class:`MoCo`.

    References:
      Li et al., `Prototypical Contrastive Learning of Unsupervised Representations
      <https://arxiv.org/abs/2005.04966>`_, 2021, Eq. 11 and 12, algorithm 1.
    """

    data: Any = field(kw_only=True)
    clusters: tuple[int, ...] = field(default=(100,), kw_only=True, metadata=STATIC)
    warm_up: Annotated[Any, Range(0)] = field(default=20, kw_only=True)
    n_iterations: Annotated[int, Range(1)] = field(default=20, kw_only=True, metadata=STATIC)
    block_size: Annotated[int, Range(1)] = field(default=512, kw_only=True, metadata=STATIC)

    def __post_init__(self) -> None:
        super().__post_init__()
        n = n_examples(split_labels(self.data)[0])
        for k in self.clusters:
            if not 2 <= k <= n:
                raise ValueError(
                    f"`clusters` must lie between 2 and the {n} examples of `data`, got {k}."
                )

    def init(self, key: Key[Array, ""]) -> tuple[Any, PCLState]:
        """Initializes as :class:`MoCo`, with clusterings that are unused during the warm-up."""
        n = n_examples(split_labels(self.data)[0])
        params, moco = super().init(key)
        clusterings = tuple(Clustering.initial(n, k, self.dim) for k in self.clusters)
        return params, PCLState(moco, clusterings)

    def start_epoch(
        self, key: Key[Array, ""], params: Any, model_state: PCLState, epoch: Int[Array, ""]
    ) -> PCLState:
        """Clusters the data, after the warm-up."""

        def cluster(_: Any) -> tuple[Clustering, ...]:
            features = self._target_features(model_state.moco)
            return tuple(
                spherical_kmeans(
                    # Streams 0 and 1 of an epoch are its order and its batches.
                    jax.random.fold_in(key, 2 + i), features, k,
                    n_iterations=self.n_iterations, block_size=self.block_size,
                )
                for i, k in enumerate(self.clusters)
            )  # fmt: skip

        clusterings = jax.lax.cond(
            self._is_warmed_up(epoch), cluster, lambda old: old, model_state.clusterings
        )
        return model_state._replace(clusterings=clusterings)

    def batch(self, key: Key[Array, ""], examples: Batch) -> ViewBatch:
        """Draws two views of the examples of ``data`` at the indices of the batch."""
        data = jax.tree.map(lambda leaf: jnp.asarray(leaf)[examples.indices], self.data)
        return super().batch(key, examples._replace(data=data))

    def loss(
        self, params: Any, model_state: PCLState, batch: ViewBatch, ctx: StepContext
    ) -> LossOutput:
        """Computes the mean over the first views of the real examples."""
        query, loss, moco, metrics = self.queue_loss(params, model_state.moco, batch, ctx)
        assert batch.indices is not None
        terms = [
            ctx.mean(self._prototype_losses(query, batch.indices, clustering))
            for clustering in model_state.clusterings
        ]
        term = jnp.where(self._is_warmed_up(ctx.epoch), sum(terms) / len(terms), 0)
        metrics = {**metrics, "instances": loss, "prototypes": term}
        return loss + term, (model_state._replace(moco=moco), metrics)

    def after_update(self, params: Any, model_state: PCLState) -> PCLState:
        """Updates the momentum encoder."""
        return model_state._replace(moco=super().after_update(params, model_state.moco))

    def _is_warmed_up(self, epoch: Int[Array, ""]) -> Array:
        return epoch.astype(jnp.float32) >= jnp.asarray(self.warm_up, jnp.float32)

    def _target_features(self, moco: MoCoState) -> Float[Array, "n dim"]:
        """Normalized embeddings of all data by the momentum encoder in evaluation mode."""

        def encode(views: Any) -> Array:
            views = cast_like(moco.target, views)
            z, _ = self.network.apply(moco.target, moco.target_state, views)
            return normalize(z.astype(jnp.float32))

        examples, _ = split_labels(self.data)
        return map_plain_views(encode, self.augment, examples, self.block_size)

    def _prototype_losses(
        self, query: Array, index: Int[Array, "batch"], clustering: Clustering
    ) -> Float[Array, "batch"]:
        """Loss of each query, with its cluster's centroid against the others."""
        pos, neg, where = clustering.scores(query.astype(jnp.float32), index)
        return proto_nce(
            pos, neg, where=where,
            pos_concentration=clustering.concentration[clustering.assignment[index]],
            neg_concentration=clustering.concentration,
            temperature=self.hyperparams.get("temperature", 1.0), reduce_fn=None,
        )  # fmt: skip
