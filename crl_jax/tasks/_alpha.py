r"""Running estimates of the encoder quality :math:`\alpha` of a Bayesian loss."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..weights import MeasuredAlpha, estimate_alpha, update_measured_alpha
from ._labels import AUC_ANCHORS, LossInputs, label_auc


class AlphaState(NamedTuple):
    r"""Model state of a task that measures :math:`\alpha`.

    Attributes:
      network_state: Non-trainable variables of the network.
      alpha: Running estimate.
    """

    network_state: Any
    alpha: MeasuredAlpha


@dataclass(frozen=True)
class AlphaEstimator(ABC):
    r"""Estimator of :math:`\alpha` from the scores of a training, as a running mean over steps.

    Each step uses the estimate of the steps before it, 0.5 in the first. The estimate is part of
    ``model_state``; the loss treats it as a constant.

    Attributes:
      decay: Decay of the running mean, in [0, 1).
      rule: Conversion of an AUC to :math:`\alpha`: ``"auc"`` or ``"model"``, see
        :func:`crl_jax.weights.estimate_alpha`. Static.
    """

    decay: Annotated[Any, Range(0, 1, high_open=True)] = 0.99
    rule: Literal["auc", "model"] = field(default="auc", metadata=STATIC)

    def __post_init__(self) -> None:
        if self.rule not in ("auc", "model"):
            raise ValueError(f"`rule` must be 'auc' or 'model', got {self.rule!r}.")

    def update(self, state: MeasuredAlpha, inputs: LossInputs, tau_plus: Any) -> MeasuredAlpha:
        """Returns the running mean after one more step; arguments as for :meth:`measure`."""
        auc, defined = self.measure(inputs, tau_plus)
        if self.rule == "model":
            auc = jnp.minimum(0.5 + 1.5 * (auc - 0.5), 1)
        estimate = jnp.where(defined, auc, jnp.nan)
        decay = jnp.asarray(self.decay, jnp.float32)
        return update_measured_alpha(state, estimate, decay=decay)

    @abstractmethod
    def measure(
        self, inputs: LossInputs, tau_plus: Any
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """Returns the AUC of the scores of a step, and whether it is defined.

        Args:
          inputs: Scores, with a mask of the negatives of real anchors.
          tau_plus: Class prior of the loss.
        """


@pytree_dataclass
class AlphaFromLabels(AlphaEstimator):
    r"""Supervised estimator: AUC of keys of the anchor's class against keys of other classes.

    Computed in each step from the scores that the loss sees, without the anchor's own second view.
    The published code computes the AUC of features before the head, of a batch of images with all
    others, every 20 epochs.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.14 and 6.21.
    """

    def measure(
        self, inputs: LossInputs, tau_plus: Any
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """See :meth:`AlphaEstimator.measure`."""
        del tau_plus
        if inputs.classes is None:
            raise ValueError(
                "`alpha=AlphaFromLabels()` needs labels: the data must be tasks.LabelledExamples."
            )
        return label_auc(inputs)


@pytree_dataclass
class AlphaFromViews(AlphaEstimator):
    r"""Unsupervised estimator: AUC of the anchor's other view against unlabelled samples.

    A share :math:`\tau^+` of the samples belongs to the anchor's class and wins half of the time:

    .. math:: \mathrm{AUC} = \frac{\mathrm{AUC}_u - \tau^+/2}{1 - \tau^+}

    with :math:`\mathrm{AUC}_u` against all samples. The other view replaces a sample of the
    class. As two views of one example score higher than that, the estimate is *biased upwards*,
    and close to 1 for an encoder that separates examples.
    """

    def measure(
        self, inputs: LossInputs, tau_plus: Any
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """See :meth:`AlphaEstimator.measure`."""
        assert inputs.where is not None
        pos, neg, where = (x[:AUC_ANCHORS] for x in (inputs.pos, inputs.neg, inputs.where))
        auc = estimate_alpha(pos[:, None], neg, where_neg=where)
        tau_plus = jnp.asarray(tau_plus, auc.dtype)
        return jnp.clip((auc - tau_plus / 2) / (1 - tau_plus), 0.5, 1), jnp.any(where)
