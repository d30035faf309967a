"""Tasks with a momentum encoder: MoCo, with a queue of keys, and BYOL, without negatives."""

from dataclasses import field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..losses import normalize
from ..models import Network
from ..train import LossOutput, StepContext, stream
from ..weights import MeasuredAlphaState
from ._score_task import LossInputs, class_masks
from ._simclr import SimCLR
from ._views import TwoViewTask, ViewBatch, cast_like, check_network


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
    alpha: MeasuredAlphaState | None = None


@pytree_dataclass
class MoCo(SimCLR):
    r"""MoCo: the negatives are keys of earlier batches, computed by a momentum encoder.

    After each update :math:`\theta_k \leftarrow m\,\theta_k + (1 - m)\,\theta_q`. The first view is
    the query, the second its positive key. MoCo v2 is this with a projection head of two layers,
    the augmentations of SimCLR and ``train.cosine``.

    Batch statistics are computed over the whole batch on all devices, for queries and keys alike.
    The published code computes them per device and therefore shuffles keys among devices, so that
    the statistics do not reveal a query's key; here this is unnecessary.

    Precision: that of :func:`crl_jax.losses.tower_scores`.

    Attributes:
      momentum: Momentum :math:`m` of the key encoder, in [0, 1].
      dim: Dimension of the embeddings. Static.
      queue: Number of keys in the queue, at least the batch size. All are negatives. Static.

    The other attributes are those of :class:`SimCLR`.

    References:
      He et al., `Momentum Contrast for Unsupervised Visual Representation Learning
      <https://arxiv.org/abs/1911.05722>`_, 2020, algorithm 1; Chen et al., `Improved Baselines with
      Momentum Contrastive Learning <https://arxiv.org/abs/2003.04297>`_, 2020.
    """

    momentum: Annotated[Any, Range(0, 1)] = 0.999
    dim: Annotated[int, Range(1)] = field(default=128, metadata=STATIC)
    queue: Annotated[int, Range(1)] = field(default=4096, metadata=STATIC)

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Initializes the network, its copy, and a queue of random directions."""
        params, network_state = self.init_network(stream(key, "params"))
        # Another dropout key, so that the two views are not dropped alike.
        _, target_state = self.network.init(jax.random.fold_in(stream(key, "params"), 1))
        queue = normalize(jax.random.normal(stream(key, "model_state"), (self.queue, self.dim)))
        labels = jnp.full(self.queue, -1, jnp.int32)
        state = network_state, params, target_state, queue, jnp.int32(0), labels
        return params, MoCoState(*state, self.initial_alpha())

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
        after = network_state, model_state.target, target_state, queue, pointer, labels, alpha
        return query, loss, MoCoState(*after), metrics

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


class BYOLState(NamedTuple):
    """Model state of :class:`BYOL`.

    Attributes:
      network_state: Non-trainable variables of the network.
      predictor_state: Non-trainable variables of the predictor.
      target: Parameters of the target network.
      target_state: Non-trainable variables of the target network.
      momentum: Momentum of this epoch.
    """

    network_state: Any
    predictor_state: Any
    target: Any
    target_state: Any
    momentum: Float[Array, ""]


@pytree_dataclass
class BYOL(TwoViewTask):
    r"""BYOL: a predictor maps one view to the target network's projection of the other view.

    .. math::
        \ell = 2 - 2 \cos\bigl(q_\theta(z_\theta(v)), z_\xi(v')\bigr)
             + 2 - 2 \cos\bigl(q_\theta(z_\theta(v')), z_\xi(v)\bigr)

    After each update :math:`\xi \leftarrow m\,\xi + (1 - m)\,\theta`, with

    .. math:: m = 1 - (1 - m_0) \frac{\cos(\pi p) + 1}{2}

    where :math:`p` is the fraction of epochs completed: the momentum changes per epoch, while the
    published code changes it per step. There are no negatives. Labels are ignored.

    Attributes:
      network: Encoder and projector :math:`z` of a view, ``[batch, dim]``. Static.
      predictor: The :math:`q`, from ``[batch, dim]`` to ``[batch, dim]``. Static.
      momentum: Initial momentum :math:`m_0`, in [0, 1].
      augment: See :class:`TwoViewTask`.
      pretrained: See :class:`TwoViewTask`.

    References:
      Grill et al., `Bootstrap Your Own Latent <https://arxiv.org/abs/2006.07733>`_, 2020, Eq. 1
      and 2, section 3.3.
    """

    predictor: Network = field(metadata=STATIC)
    momentum: Annotated[Any, Range(0, 1)] = 0.996

    def __post_init__(self) -> None:
        super().__post_init__()
        check_network("predictor", self.predictor)

    def init(self, key: Key[Array, ""]) -> tuple[Any, BYOLState]:
        """Initializes the network, the predictor, and the target, a copy of the network."""
        keys = jax.random.split(stream(key, "params"))
        params, network_state = self.init_network(keys[0])
        predictor, predictor_state = self.predictor.init(keys[1])
        momentum = jnp.asarray(self.momentum, jnp.float32)
        model_state = BYOLState(network_state, predictor_state, params, network_state, momentum)
        return {"network": params, "predictor": predictor}, model_state

    def network_variables(self, params: Any, model_state: Any) -> tuple[Any, Any]:
        """See :meth:`TwoViewTask.network_variables`."""
        return params["network"], model_state.network_state

    def loss(
        self, params: Any, model_state: BYOLState, batch: ViewBatch, ctx: StepContext
    ) -> LossOutput:
        """Computes the mean over the real examples of the sum of both directions."""
        online, predictor = params["network"], params["predictor"]
        network_state, predictor_state = model_state.network_state, model_state.predictor_state
        target, target_state = cast_to_dtypes(model_state.target, online), model_state.target_state
        predictions, targets = [], []
        for view in cast_like(online, (batch.first, batch.second)):
            z, network_state = self.network.apply(online, network_state, view, train=True)
            q, predictor_state = self.predictor.apply(predictor, predictor_state, z, train=True)
            # No gradient reaches the targets: they depend on `model_state` alone.
            z_target, target_state = self.network.apply(target, target_state, view, train=True)
            predictions.append(q)
            targets.append(z_target)
        losses = 4 - 2 * (
            cosine_similarity(predictions[0], targets[1])
            + cosine_similarity(predictions[1], targets[0])
        )
        initial = jnp.asarray(self.momentum, jnp.float32)
        momentum = 1 - (1 - initial) * (jnp.cos(jnp.pi * ctx.progress) + 1) / 2
        model_state = BYOLState(
            network_state, predictor_state, model_state.target, target_state, momentum
        )
        return ctx.mean(losses), (model_state, {})

    def after_update(self, params: Any, model_state: BYOLState) -> BYOLState:
        """Updates the target network."""
        return model_state._replace(
            target=ema_update(model_state.momentum, model_state.target, params["network"])
        )
