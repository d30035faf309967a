"""BYOL: a prediction of a momentum encoder's embeddings, without negatives."""

from dataclasses import field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..models import Network
from ..train import LossOutput, StepContext, stream
from ._moco import cast_to_dtypes, cosine_similarity, ema_update
from ._views import TwoViewTask, ViewBatch, cast_like, check_network


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
      augment, pretrained: See :class:`TwoViewTask`.

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
