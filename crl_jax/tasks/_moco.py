"""Two views, with a queue of keys and an averaged network."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._checks import check_range
from .._pytree import STATIC, pytree_dataclass
from ..losses import normalize
from ..train import StepContext, stream
from ..weights import MeasuredAlpha, init_measured_alpha
from ._labels import LossInputs, same_class
from ._simclr import SimCLR, ViewBatch, cast_like


class MoCoState(NamedTuple):
    """What changes besides the parameters of :class:`MoCo`.

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


@pytree_dataclass
class MoCo(SimCLR):
    r"""MoCo: the negatives are keys of earlier batches, made by an average of the network.

    After each update :math:`\theta_k \leftarrow m\,\theta_k + (1 - m)\,\theta_q`. The first view is
    the anchor, the second its positive. With a head of two layers, the augmentations of SimCLR and
    ``train.cosine`` it is MoCo v2.

    Batch statistics are those of the whole batch, on all devices, for queries and keys alike. The
    published code takes them on each device for itself, and shuffles keys among devices, lest a
    query tells its key by them. Here there is nothing to tell.

    Attributes:
      network: See :class:`SimCLR`.
      augment: See :class:`SimCLR`.
      hyperparams: See :class:`SimCLR`.
      loss_fn: See :class:`SimCLR`; the whole queue is negatives.
      momentum: The m, in [0, 1].
      dim: Width of the embeddings. Static.
      queue: Keys that are kept, at least as many as a batch has. Static.
      alpha: See :class:`SimCLR`.
      pretrained: See :class:`SimCLR`.

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
        queue = normalize(jax.random.normal(stream(key, "model_state"), (self.queue, self.dim)))
        labels = jnp.full(self.queue, -1, jnp.int32)
        alpha = None if self.alpha is None else init_measured_alpha()
        return params, MoCoState(rest, params, target_rest, queue, jnp.int32(0), labels, alpha)

    def network_variables(self, params: Any, model_state: Any) -> tuple[Any, Any]:
        """See :meth:`TwoViewTask.network_variables`."""
        return params, model_state.rest

    def loss(
        self, params: Any, model_state: Any, batch: ViewBatch, ctx: StepContext
    ) -> tuple[Array, tuple[Any, dict[str, Array]]]:
        """The mean over the first views of the real examples."""
        _, loss, model_state, metrics = self.against_queue(params, model_state, batch, ctx)
        return loss, (model_state, metrics)

    def against_queue(
        self, params: Any, model_state: MoCoState, batch: ViewBatch, ctx: StepContext
    ) -> tuple[Float[Array, "batch dim"], Array, MoCoState, dict[str, Array]]:
        """The queries, their mean loss, what changes after it, and metrics."""
        first, second = cast_like(params, (batch.first, batch.second))
        n = ctx.where.shape[0]
        if n > self.queue:
            raise ValueError(f"`queue` must hold a batch of {n} keys, got {self.queue}.")
        query, rest = self.network.apply(params, model_state.rest, first, train=True)
        target = as_dtypes_of(params, model_state.target)
        key, target_rest = self.network.apply(target, model_state.target_rest, second, train=True)
        # No gradient flows into keys, which `model_state` alone makes.
        query, key = normalize(query), normalize(key)
        neg = jnp.matmul(
            query, model_state.queue.astype(query.dtype).T, preferred_element_type=jnp.float32
        )
        scores = LossInputs(cosines(query, key), neg)
        classes = same_class(batch.labels, model_state.labels)
        loss, alpha, metrics = self.score_loss(scores, classes, model_state.alpha, ctx)
        # Fillers come last, and go nowhere.
        place = (model_state.end + jnp.arange(n, dtype=jnp.int32)) % self.queue
        place = jnp.where(ctx.where, place, self.queue)
        queue = model_state.queue.at[place].set(key.astype(model_state.queue.dtype), mode="drop")
        labels = model_state.labels
        if batch.labels is not None:
            labels = labels.at[place].set(batch.labels, mode="drop")
        end = (model_state.end + ctx.n.astype(jnp.int32)) % self.queue
        model_state = MoCoState(rest, model_state.target, target_rest, queue, end, labels, alpha)
        return query, loss, model_state, metrics

    def after_update(self, params: Any, model_state: Any) -> Any:
        """Moves the average."""
        return model_state._replace(target=moved_average(self.momentum, model_state.target, params))


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
