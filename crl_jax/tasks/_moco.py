"""MoCo: a queue of keys from a momentum encoder as negatives."""

from dataclasses import field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._checks import check_count
from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..losses import normalize
from ..train import LossOutput, StepContext, stream
from ..weights import MeasuredAlpha, init_measured_alpha
from ._score_task import LossInputs, class_masks
from ._simclr import SimCLR
from ._views import ViewBatch, cast_like


class MoCoState(NamedTuple):
    """Model state of :class:`MoCo`.

    Attributes:
      network_state: Non-trainable variables of the network.
      target: Parameters of the momentum encoder, which computes the keys.
      target_state: Non-trainable variables of the momentum encoder.
      queue: Normalized keys of the last batches, ``[queue, dim]``.
      pointer: Position of the next key.
      labels: Classes of the keys, ``[queue]``; -1 where unknown.
      alpha: Running estimate of α, or None.
    """

    network_state: Any
    target: Any
    target_state: Any
    queue: Float[Array, "queue dim"]
    pointer: Int[Array, ""]
    labels: Int[Array, "queue"]
    alpha: MeasuredAlpha | None = None


@pytree_dataclass
class MoCo(SimCLR):
    r"""MoCo: the negatives are keys of earlier batches, computed by a momentum encoder.

    After each update :math:`\theta_k \leftarrow m\,\theta_k + (1 - m)\,\theta_q`. The first view is
    the query, the second its positive key. MoCo v2 is this with a projection head of two layers,
    the augmentations of SimCLR and ``train.cosine``.

    Batch statistics are computed over the whole batch on all devices, for queries and keys alike.
    The published code computes them per device and therefore shuffles keys among devices, so that
    the statistics do not reveal a query's key; here this is unnecessary.

    Attributes:
      momentum: The :math:`m`, in [0, 1].
      dim: Dimension of the embeddings. Static.
      queue: Number of keys in the queue, at least the batch size. All are negatives. Static.

    The other attributes are those of :class:`SimCLR`.

    References:
      He et al., `Momentum Contrast for Unsupervised Visual Representation Learning
      <https://arxiv.org/abs/1911.05722>`_, 2020, algorithm 1; Chen et al., `Improved Baselines with
      Momentum Contrastive Learning <https://arxiv.org/abs/2003.04297>`_, 2020.
    """

    momentum: Annotated[Any, Range(0, 1)] = 0.999
    dim: int = field(default=128, metadata=STATIC)
    queue: int = field(default=4096, metadata=STATIC)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("dim", self.dim)
        check_count("queue", self.queue)

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Initializes the network, its copy, and a queue of random directions."""
        params, network_state = self.init_network(stream(key, "params"))
        # Another dropout key, so that the two views are not dropped alike.
        _, target_state = self.network.init(jax.random.fold_in(stream(key, "params"), 1))
        queue = normalize(jax.random.normal(stream(key, "model_state"), (self.queue, self.dim)))
        labels = jnp.full(self.queue, -1, jnp.int32)
        alpha = None if self.alpha is None else init_measured_alpha()
        return params, MoCoState(
            network_state, params, target_state, queue, jnp.int32(0), labels, alpha
        )

    def loss(self, params: Any, model_state: Any, batch: ViewBatch, ctx: StepContext) -> LossOutput:
        """Computes the mean over the first views of the real examples."""
        _, loss, model_state, metrics = self.queue_loss(params, model_state, batch, ctx)
        return loss, (model_state, metrics)

    def queue_loss(
        self, params: Any, model_state: MoCoState, batch: ViewBatch, ctx: StepContext
    ) -> tuple[Float[Array, "batch dim"], Array, MoCoState, dict[str, Array]]:
        """Returns the queries, their mean loss, the new model state, and metrics."""
        first, second = cast_like(params, (batch.first, batch.second))
        n = ctx.where.shape[0]
        if n > self.queue:
            raise ValueError(f"`queue` must be at least the batch size {n}, got {self.queue}.")
        query, network_state = self.network.apply(
            params, model_state.network_state, first, train=True
        )
        target = cast_to_dtypes(model_state.target, params)
        key, target_state = self.network.apply(target, model_state.target_state, second, train=True)
        # No gradient reaches the keys: they depend on `model_state` alone.
        query, key = normalize(query), normalize(key)
        neg = jnp.matmul(
            query, model_state.queue.astype(query.dtype).T, preferred_element_type=jnp.float32
        )
        classes = class_masks(batch.labels, model_state.labels)
        inputs = LossInputs(cosine_similarity(query, key), neg, classes=classes)
        loss, alpha, metrics = self.score_loss(inputs, model_state.alpha, ctx)
        # Padding is at the end of a batch; its keys are dropped.
        index = (model_state.pointer + jnp.arange(n, dtype=jnp.int32)) % self.queue
        index = jnp.where(ctx.where, index, self.queue)
        queue = model_state.queue.at[index].set(key.astype(model_state.queue.dtype), mode="drop")
        labels = model_state.labels
        if batch.labels is not None:
            labels = labels.at[index].set(batch.labels, mode="drop")
        pointer = (model_state.pointer + ctx.n.astype(jnp.int32)) % self.queue
        model_state = MoCoState(
            network_state, model_state.target, target_state, queue, pointer, labels, alpha
        )
        return query, loss, model_state, metrics

    def after_update(self, params: Any, model_state: Any) -> Any:
        """Updates the momentum encoder."""
        return model_state._replace(target=ema_update(self.momentum, model_state.target, params))


def ema_update(momentum: Any, target: Any, params: Any) -> Any:
    """Computes ``momentum * target + (1 - momentum) * params`` in the dtypes of the target."""

    def update(target: Array, param: Array) -> Array:
        m = jnp.asarray(momentum, target.dtype)
        return m * target + (1 - m) * param

    return jax.tree.map(update, target, params)


def cast_to_dtypes(tree: Any, like: Any) -> Any:
    """Casts leaves to the dtypes of ``like``: the loss may see parameters in half precision."""
    return jax.tree.map(lambda x, y: x.astype(y.dtype), tree, like)


def cosine_similarity(
    x: Float[Array, "batch dim"], y: Float[Array, "batch dim"]
) -> Float[Array, "batch"]:
    """Cosine similarity of corresponding rows, in float32."""
    x, y = (normalize(z.astype(jnp.float32)) for z in (x, y))
    return jnp.sum(x * y, axis=-1)
