"""Two views, with a queue of keys, and clusters of the data whose centres are prototypes."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._blocks import map_blocks
from .._checks import check_count, check_range
from .._pytree import STATIC, pytree_dataclass
from ..losses import normalize, proto_nce
from ..train import Batch, StepContext
from ._augment import as_they_are
from ._kmeans import Clustering, spherical_kmeans
from ._labels import split_labels
from ._moco import MoCo, MoCoState
from ._simclr import ViewBatch, cast_like


class PCLState(NamedTuple):
    """What changes besides the parameters of :class:`PCL`.

    Attributes:
      momentum: What changes in :class:`MoCo`.
      clusterings: One for each number of clusters.
    """

    momentum: MoCoState
    clusterings: tuple[Clustering, ...]


@pytree_dataclass
class PCL(MoCo):
    r"""PCL: a query is near its key, and near the centre of its cluster too.

    To the loss of :class:`MoCo` comes, from the end of the warm-up on, the mean over
    clusterings of :func:`crl_jax.losses.proto_nce`, with the temperature of ``hyperparams``. At the
    start of each epoch the data are clustered anew, by what the averaged network makes of the
    examples as they are. The history has both parts, ``instances`` and ``prototypes``.

    What differs from the published code: an anchor is compared with all centres, not with a
    sample; k-means goes by cosines, once, not by distances, five times.

    Attributes:
      network: See :class:`MoCo`.
      augment: See :class:`MoCo`.
      hyperparams: See :class:`MoCo`.
      loss_fn: See :class:`MoCo`.
      momentum: See :class:`MoCo`.
      dim: See :class:`MoCo`.
      queue: See :class:`MoCo`.
      alpha: See :class:`MoCo`.
      pretrained: See :class:`MoCo`.
      data: All examples, every leaf ``[n, ...]``, or :class:`LabelledExamples` ones. Batches are
        of these:
        of what trains, only the places count.
      clusters: Numbers of clusters, each at least 2 and at most n. Static.
      warm_up: Epochs before the first clusters.
      n_iterations: How often the centres of k-means move. Static.
      block: Examples that are encoded and compared with centres at a time. Static.

    References:
      Li et al., `Prototypical Contrastive Learning of Unsupervised Representations
      <https://arxiv.org/abs/2005.04966>`_, 2021, Eq. 11 and 12, algorithm 1.
    """

    data: Any = field(default=None, kw_only=True)
    clusters: tuple[int, ...] = field(default=(100,), kw_only=True, metadata=STATIC)
    warm_up: Any = field(default=20, kw_only=True)
    n_iterations: int = field(default=20, kw_only=True, metadata=STATIC)
    block: int = field(default=512, kw_only=True, metadata=STATIC)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("warm_up", self.warm_up, 0, jnp.inf)
        for name in ("n_iterations", "block"):
            check_count(name, getattr(self, name))

    def init(self, key: Key[Array, ""]) -> tuple[Any, PCLState]:
        """As of :class:`MoCo`, and clusters that nobody looks at."""
        n = len(jax.tree.leaves(self.data)[0]) if self.data is not None else 0
        for k in self.clusters:
            if not 2 <= k <= n:
                raise ValueError(
                    f"`clusters` must lie between 2 and the {n} examples of `data`, got {k}."
                )
        params, momentum = super().init(key)
        return params, PCLState(momentum, tuple(self._nobodys(n, k) for k in self.clusters))

    def network_variables(self, params: Any, model_state: Any) -> tuple[Any, Any]:
        """See :meth:`TwoViewTask.network_variables`."""
        return super().network_variables(params, model_state.momentum)

    def start_epoch(
        self, key: Key[Array, ""], params: Any, model_state: PCLState, epoch: Int[Array, ""]
    ) -> PCLState:
        """Clusters the data, after the warm-up."""

        def cluster(_: Any) -> tuple[Clustering, ...]:
            features = self._features(model_state.momentum)
            return tuple(
                spherical_kmeans(
                    # Streams 0 and 1 of an epoch are its order and its batches.
                    jax.random.fold_in(key, 2 + i), features, k,
                    n_iterations=self.n_iterations, block=self.block,
                )
                for i, k in enumerate(self.clusters)
            )  # fmt: skip

        clusterings = jax.lax.cond(
            self._is_warm(epoch), cluster, lambda old: old, model_state.clusterings
        )
        return model_state._replace(clusterings=clusterings)

    def batch(self, key: Key[Array, ""], examples: Batch) -> ViewBatch:
        """Two views of the examples at these places of the data."""
        own = jax.tree.map(lambda leaf: leaf[examples.place], self.data)
        return super().batch(key, examples._replace(data=own))

    def loss(
        self, params: Any, model_state: PCLState, batch: ViewBatch, ctx: StepContext
    ) -> tuple[Array, tuple[PCLState, dict[str, Array]]]:
        """The mean over the first views of the real examples."""
        query, loss, momentum, metrics = self.against_queue(
            params, model_state.momentum, batch, ctx
        )
        terms = [
            ctx.mean(self._of_centres(query, batch.place, clustering))
            for clustering in model_state.clusterings
        ]
        term = jnp.where(self._is_warm(ctx.epoch), sum(terms) / len(terms), 0)
        metrics = {**metrics, "instances": loss, "prototypes": term}
        return loss + term, (model_state._replace(momentum=momentum), metrics)

    def after_update(self, params: Any, model_state: PCLState) -> PCLState:
        """Moves the average."""
        return model_state._replace(momentum=super().after_update(params, model_state.momentum))

    def _is_warm(self, epoch: Int[Array, ""]) -> Array:
        return epoch.astype(jnp.float32) >= jnp.asarray(self.warm_up, jnp.float32)

    def _nobodys(self, n: int, k: int) -> Clustering:
        return Clustering(
            jnp.zeros(n, jnp.int32), jnp.zeros((k, self.dim), jnp.float32), jnp.ones(k, jnp.float32)
        )

    def _features(self, model_state: MoCoState) -> Float[Array, "n dim"]:
        """Directions of all examples, by the averaged network outside training."""

        def of(examples: Any) -> Array:
            seen = cast_like(model_state.target, as_they_are(self.augment, examples))
            z, _ = self.network.apply(model_state.target, model_state.target_rest, seen)
            return normalize(z.astype(jnp.float32))

        return map_blocks(of, split_labels(self.data)[0], self.block)

    def _of_centres(
        self, query: Array, place: Int[Array, "batch"] | None, clustering: Clustering
    ) -> Float[Array, "batch"]:
        """The loss of each query with the centre of its cluster and the others."""
        assert place is not None
        own = clustering.assignment[place]
        scores = query.astype(jnp.float32) @ clustering.centres.T
        others = own[:, None] != jnp.arange(len(clustering.centres), dtype=jnp.int32)[None, :]
        return proto_nce(
            jnp.take_along_axis(scores, own[:, None], axis=1)[:, 0], scores, where=others,
            pos_concentration=clustering.concentration[own],
            neg_concentration=clustering.concentration,
            temperature=self.hyperparams.get("temperature", 1.0), reduce_fn=None,
        )  # fmt: skip
