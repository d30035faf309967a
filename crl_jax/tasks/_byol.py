"""Two views without negatives: a network predicts what an average of itself makes."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .._checks import check_range
from .._pytree import STATIC, pytree_dataclass
from ..models import Network
from ..train import StepContext, stream
from ._moco import as_dtypes_of, cosines, moved_average
from ._simclr import TwoViewTask, ViewBatch, cast_like


class BYOLState(NamedTuple):
    """What changes besides the parameters of :class:`BYOL`.

    Attributes:
      rest: Other variables of the network.
      predictor_rest: Other variables of the predictor.
      target: Averaged parameters of the network.
      target_rest: Other variables of the averaged network.
      momentum: The momentum of this epoch.
    """

    rest: Any
    predictor_rest: Any
    target: Any
    target_rest: Any
    momentum: Float[Array, ""]


@pytree_dataclass
class BYOL(TwoViewTask):
    r"""BYOL: from one view, a predictor tells what an averaged network makes of the other.

    .. math::
        \ell = 2 - 2 \cos\bigl(q_\theta(z_\theta(v)), z_\xi(v')\bigr)
             + 2 - 2 \cos\bigl(q_\theta(z_\theta(v')), z_\xi(v)\bigr)

    After each update :math:`\xi \leftarrow m\,\xi + (1 - m)\,\theta`, with

    .. math:: m = 1 - (1 - m_0) \frac{\cos(\pi p) + 1}{2}

    for the share :math:`p` of the epochs that is done: it changes between epochs, where the
    published one changes in each step. There are no negatives. Labels play no part.

    Attributes:
      network: Makes the projection :math:`z` of each view, ``[batch, dim]``. Static.
      augment: See :class:`TwoViewTask`.
      predictor: The :math:`q`, from projections to as many numbers. Static.
      momentum: The :math:`m_0` that the average begins with, in [0, 1].
      pretrained: See :class:`TwoViewTask`.

    References:
      Grill et al., `BYOLState Your Own Latent <https://arxiv.org/abs/2006.07733>`_, 2020, Eq. 1
      and 2, section 3.3.
    """

    predictor: Network = field(metadata=STATIC)
    momentum: Any = 0.996

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("momentum", self.momentum, 0, 1)

    def init(self, key: Key[Array, ""]) -> tuple[Any, BYOLState]:
        """The network, the predictor, and a copy of the network."""
        keys = jax.random.split(stream(key, "params"))
        params, rest = self.start_network(keys[0])
        predictor, predictor_rest = self.predictor.init(keys[1])
        momentum = jnp.asarray(self.momentum, jnp.float32)
        model_state = BYOLState(rest, predictor_rest, params, rest, momentum)
        return {"network": params, "predictor": predictor}, model_state

    def network_variables(self, params: Any, model_state: Any) -> tuple[Any, Any]:
        """See :meth:`TwoViewTask.network_variables`."""
        return params["network"], model_state.rest

    def loss(
        self, params: Any, model_state: BYOLState, batch: ViewBatch, ctx: StepContext
    ) -> tuple[Array, tuple[BYOLState, dict[str, Array]]]:
        """The mean over the real examples, of both directions together."""
        online, rest, predictor_rest = (
            params["network"],
            model_state.rest,
            model_state.predictor_rest,
        )
        target, target_rest = as_dtypes_of(online, model_state.target), model_state.target_rest
        told, seen = [], []  # no gradient flows into what is seen, which `model_state` alone makes
        for view in cast_like(online, (batch.first, batch.second)):
            z, rest = self.network.apply(online, rest, view, train=True)
            q, predictor_rest = self.predictor.apply(
                params["predictor"], predictor_rest, z, train=True
            )
            own, target_rest = self.network.apply(target, target_rest, view, train=True)
            told.append(q)
            seen.append(own)
        losses = 4 - 2 * (cosines(told[0], seen[1]) + cosines(told[1], seen[0]))
        first = jnp.asarray(self.momentum, jnp.float32)
        momentum = 1 - (1 - first) * (jnp.cos(jnp.pi * ctx.progress) + 1) / 2
        model_state = BYOLState(rest, predictor_rest, model_state.target, target_rest, momentum)
        return ctx.mean(losses), (model_state, {})

    def after_update(self, params: Any, model_state: BYOLState) -> BYOLState:
        """Moves the average."""
        return model_state._replace(
            target=moved_average(model_state.momentum, model_state.target, params["network"])
        )
