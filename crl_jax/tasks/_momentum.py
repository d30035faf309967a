"""Two views, with a queue of keys and an averaged network."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._checks import check_range
from .._pytree import STATIC
from ..losses import normalize
from ..train import Moment, stream
from ..weights import MeasuredAlpha, init_measured_alpha
from ._labels import Scores, same_class
from ._views import TwoViews, Views, cast_like


class Momentum(NamedTuple):
    """What changes besides the parameters of :class:`MomentumViews`.

    Attributes:
      rest: Other variables of the network.
      target: Averaged parameters, which make the keys.
      target_rest: Other variables of the averaged network.
      queue: Keys of the last batches, of length 1, ``[queue, dim]``.
      end: Where the next key goes.
      labels: Classes of the keys, ``[queue]``; -1 where not known.
      alpha: The running measurement of α; None without one.
    """

    rest: Any
    target: Any
    target_rest: Any
    queue: Float[Array, "queue dim"]
    end: Int[Array, ""]
    labels: Int[Array, "queue"]
    alpha: MeasuredAlpha | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MomentumViews(TwoViews):
    r"""MoCo: the negatives are keys of earlier batches, made by an average of the network.

    After each update :math:`\theta_k \leftarrow m\,\theta_k + (1 - m)\,\theta_q`. The first view is
    the anchor, the second its positive. With a head of two layers, the augmentations of SimCLR and
    ``train.cosine`` it is MoCo v2.

    Batch statistics are those of the whole batch, on all devices, for queries and keys alike. The
    published code takes them on each device for itself, and shuffles keys among devices, lest a
    query tells its key by them. Here there is nothing to tell.

    Attributes:
      network: See :class:`TwoViews`.
      augment: See :class:`TwoViews`.
      hyperparams: See :class:`TwoViews`.
      loss_fn: See :class:`TwoViews`; the whole queue is negatives.
      momentum: The m, in [0, 1].
      dim: Width of the embeddings. Static.
      queue: Keys that are kept, at least as many as a batch has. Static.
      alpha: See :class:`TwoViews`.
      pretrained: See :class:`TwoViews`.

    References:
      He et al., `Momentum Contrast for Unsupervised Visual Representation Learning
      <https://arxiv.org/abs/1911.05722>`_, 2020, algorithm 1; Chen et al., `Improved Baselines with
      Momentum Contrastive Learning <https://arxiv.org/abs/2003.04297>`_, 2020.
    """

    momentum: Any = 0.999
    dim: int = field(default=128, metadata=STATIC)
    queue: int = field(default=4096, metadata=STATIC)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("momentum", self.momentum, 0, 1)

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """The network, its copy, and a queue of random directions."""
        params, rest = self.start_network(stream(key, "params"))
        # Its own key of dropout: else both views would lose the same numbers.
        _, target_rest = self.network.init(jax.random.fold_in(stream(key, "params"), 1))
        queue = normalize(jax.random.normal(stream(key, "extra"), (self.queue, self.dim)))
        labels = jnp.full(self.queue, -1, jnp.int32)
        alpha = None if self.alpha is None else init_measured_alpha()
        return params, Momentum(rest, params, target_rest, queue, jnp.int32(0), labels, alpha)

    def of_network(self, params: Any, extra: Any) -> tuple[Any, Any]:
        """See :meth:`ViewTask.of_network`."""
        return params, extra.rest

    def loss(
        self, params: Any, extra: Any, batch: Views, moment: Moment
    ) -> tuple[Array, tuple[Any, dict[str, Array]]]:
        """The mean over the first views of the real examples."""
        _, loss, extra, metrics = self.against_queue(params, extra, batch, moment)
        return loss, (extra, metrics)

    def against_queue(
        self, params: Any, extra: Momentum, batch: Views, moment: Moment
    ) -> tuple[Float[Array, "batch dim"], Array, Momentum, dict[str, Array]]:
        """The queries, their mean loss, what changes after it, and metrics."""
        first, second = cast_like(params, (batch.first, batch.second))
        n = moment.where.shape[0]
        if n > self.queue:
            raise ValueError(f"`queue` must hold a batch of {n} keys, got {self.queue}.")
        query, rest = self.network.apply(params, extra.rest, first, train=True)
        target = as_dtypes_of(params, extra.target)
        key, target_rest = self.network.apply(target, extra.target_rest, second, train=True)
        # No gradient flows into keys, which `extra` alone makes.
        query, key = normalize(query), normalize(key)
        neg = jnp.matmul(
            query, extra.queue.astype(query.dtype).T, preferred_element_type=jnp.float32
        )
        scores = Scores(cosines(query, key), neg)
        classes = same_class(batch.labels, extra.labels)
        loss, alpha, metrics = self.contrast(scores, classes, extra.alpha, moment)
        # Fillers come last, and go nowhere.
        place = (extra.end + jnp.arange(n, dtype=jnp.int32)) % self.queue
        place = jnp.where(moment.where, place, self.queue)
        queue = extra.queue.at[place].set(key.astype(extra.queue.dtype), mode="drop")
        labels = extra.labels
        if batch.labels is not None:
            labels = labels.at[place].set(batch.labels, mode="drop")
        end = (extra.end + moment.n.astype(jnp.int32)) % self.queue
        extra = Momentum(rest, extra.target, target_rest, queue, end, labels, alpha)
        return query, loss, extra, metrics

    def after_update(self, params: Any, extra: Any) -> Any:
        """Moves the average."""
        return extra._replace(target=moved_average(self.momentum, extra.target, params))


def moved_average(momentum: Any, target: Any, params: Any) -> Any:
    """``momentum * target + (1 - momentum) * params``, leaf by leaf, in the dtype of the target."""

    def move(target: Array, now: Array) -> Array:
        m = jnp.asarray(momentum, target.dtype)
        return m * target + (1 - m) * now

    return jax.tree.map(move, target, params)


def as_dtypes_of(params: Any, target: Any) -> Any:
    """The average in the dtypes of the parameters, which may be of half precision for the loss."""
    return jax.tree.map(lambda x, like: x.astype(like.dtype), target, params)


def cosines(x: Float[Array, "batch dim"], y: Float[Array, "batch dim"]) -> Float[Array, "batch"]:
    """Of rows at the same place, in float32."""
    x, y = (normalize(z.astype(jnp.float32)) for z in (x, y))
    return jnp.sum(x * y, axis=-1)
