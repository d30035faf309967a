"""PCL: prototypes from a clustering of the data, in addition to the queue of MoCo."""

from dataclasses import field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._blocks import map_blocks
from .._hyperparams import Range
from .._permutation import permute
from .._pytree import STATIC, pytree_dataclass
from ..losses import normalize, proto_nce
from ..train import Batch, LossOutput, StepContext
from ._momentum import MoCo, MoCoState
from ._score_task import n_examples, split_labels
from ._views import ViewBatch, cast_like, map_plain_views

# The published smoothing constant of concentrations, for clusters of few examples.
_SMOOTHING = 10
# Lower bound of a concentration relative to their mean: most examples coincide with the centroid.
_MIN_CONCENTRATION = 1e-3


class Clustering(NamedTuple):
    r"""Clusters of unit vectors.

    Attributes:
      assignment: Cluster of each example, ``[n]``.
      centroids: Normalized centroids, ``[k, dim]``.
      concentration: The :math:`\phi` of each cluster, ``[k]``: small for tight clusters, 1 on
        average.
    """

    assignment: Int[Array, "n"]
    centroids: Float[Array, "k dim"]
    concentration: Float[Array, "k"]


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
        clusterings = tuple(
            Clustering(
                jnp.zeros(n, jnp.int32), jnp.zeros((k, self.dim), jnp.float32),
                jnp.ones(k, jnp.float32),
            )
            for k in self.clusters
        )  # fmt: skip
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
            self._warmed_up(epoch), cluster, lambda old: old, model_state.clusterings
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
        term = jnp.where(self._warmed_up(ctx.epoch), sum(terms) / len(terms), 0)
        metrics = {**metrics, "instances": loss, "prototypes": term}
        return loss + term, (model_state._replace(moco=moco), metrics)

    def after_update(self, params: Any, model_state: PCLState) -> PCLState:
        """Updates the momentum encoder."""
        return model_state._replace(moco=super().after_update(params, model_state.moco))

    def _warmed_up(self, epoch: Int[Array, ""]) -> Array:
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
        positive = clustering.assignment[index]
        scores = query.astype(jnp.float32) @ clustering.centroids.T
        ids = jnp.arange(len(clustering.centroids), dtype=jnp.int32)
        return proto_nce(
            jnp.take_along_axis(scores, positive[:, None], axis=1)[:, 0], scores,
            where=positive[:, None] != ids[None, :],
            pos_concentration=clustering.concentration[positive],
            neg_concentration=clustering.concentration,
            temperature=self.hyperparams.get("temperature", 1.0), reduce_fn=None,
        )  # fmt: skip


def spherical_kmeans(
    key: Key[Array, ""],
    x: Float[Array, "n dim"],
    k: int,
    *,
    n_iterations: int = 20,
    block_size: int = 1024,
) -> Clustering:
    r"""K-means with cosine similarity, initialized by ``k`` distinct examples.

    Empty clusters move to the examples farthest from their own centroids. Eq. 12 of Li et al. and
    its published code, with the concentration

    .. math::
        \phi_c = \frac{\sum_{i \in c} \lVert x_i - c \rVert}{|c| \log(|c| + 10)}

    Clusters of at most one example take the largest of the others; then all are clipped to their
    10th and 90th percentiles, and divided by their mean.
    """

    def assign(centroids: Array) -> tuple[Array, Array]:
        def assign_rows(rows: Array) -> tuple[Array, Array]:
            scores = jnp.matmul(rows, centroids.T, precision=jax.lax.Precision.HIGHEST)
            best = jnp.max(scores, axis=1)
            # The first maximum. On CPUs jnp.argmax alone costs more than the product.
            ids = jnp.arange(k, dtype=jnp.int32)[None, :]
            return jnp.min(jnp.where(scores == best[:, None], ids, k), axis=1), best

        return map_blocks(assign_rows, x, block_size)

    def update(centroids: Array, _: None) -> tuple[Array, None]:
        assignment, score = assign(centroids)
        means = normalize(jax.ops.segment_sum(x, assignment, k))
        empty = _cluster_sizes(assignment, k) == 0
        farthest = jax.lax.top_k(-score, k)[1]
        replacements = x[farthest[jnp.maximum(jnp.cumsum(empty) - 1, 0)]]
        return jnp.where(empty[:, None], replacements, means), None

    initial = x[permute(key, jnp.arange(k, dtype=jnp.int32), x.shape[0])]
    centroids, _ = jax.lax.scan(update, initial, None, length=n_iterations)
    assignment, score = assign(centroids)
    return Clustering(assignment, centroids, _concentrations(assignment, score, k))


def _cluster_sizes(assignment: Array, k: int) -> Array:
    return jax.ops.segment_sum(jnp.ones(assignment.shape, jnp.int32), assignment, k)


def _concentrations(assignment: Array, score: Array, k: int) -> Float[Array, "k"]:
    distance = jnp.sqrt(jnp.maximum(2 - 2 * score, 0))
    size = _cluster_sizes(assignment, k).astype(distance.dtype)
    phi = jax.ops.segment_sum(distance, assignment, k) / jnp.maximum(size, 1)
    phi = jnp.where(size > 1, phi / jnp.log(size + _SMOOTHING), 0)
    phi = jnp.where(size > 1, phi, jnp.max(phi))
    phi = jnp.clip(phi, *jnp.percentile(phi, jnp.array([10.0, 90.0])))
    mean = jnp.mean(phi)
    relative = jnp.maximum(phi / jnp.where(mean > 0, mean, 1), _MIN_CONCENTRATION)
    return jnp.where(mean > 0, relative, 1)
