r"""The quality of the encoder that a Bayesian loss assumes, measured while it is trained."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_range
from .._pytree import STATIC, pytree_dataclass
from ..weights import MeasuredAlpha, update_measured_alpha
from ._labels import ClassMasks, LossInputs, as_alpha, auc_of, auc_of_views


@dataclass(frozen=True)
class AlphaEstimator(ABC):
    r"""An :math:`\alpha` that goes along with a training, as a running mean over its steps.

    The :math:`\alpha` of a step is what the steps before it have measured, 0.5 in the first; the
    running mean is part of what changes, ``model_state``. The loss takes it as a constant.

    Attributes:
      decay: Weight of the past in the running mean, in [0, 1).
      rule: How an AUC becomes an :math:`\alpha`: ``"auc"`` or ``"model"``, see
        :func:`crl_jax.weights.estimate_alpha`. Static.
    """

    decay: Any = 0.99
    rule: Literal["auc", "model"] = field(default="auc", metadata=STATIC)

    def __post_init__(self) -> None:
        check_range("decay", self.decay, 0, 1, high_open=True)
        if self.rule not in ("auc", "model"):
            raise ValueError(f"`rule` must be 'auc' or 'model', got {self.rule!r}.")

    def after(
        self,
        state: MeasuredAlpha,
        scores: LossInputs,
        classes: ClassMasks | None,
        where: Bool[Array, "anchors keys"],
        tau_plus: Any,
    ) -> MeasuredAlpha:
        """The running mean with the scores of one more step."""
        auc, known = self.measure(scores, classes, where, tau_plus)
        estimate = jnp.where(known, as_alpha(auc, self.rule), jnp.nan)
        decay = jnp.asarray(self.decay, jnp.float32)
        return update_measured_alpha(state, estimate, decay=decay)

    @abstractmethod
    def measure(
        self,
        scores: LossInputs,
        classes: ClassMasks | None,
        where: Bool[Array, "anchors keys"],
        tau_plus: Any,
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """The AUC of the scores of a step, and whether they tell it."""


@pytree_dataclass
class AlphaFromLabels(AlphaEstimator):
    r"""Measured with labels: how often one of the same class scores above one of another.

    The published code measures the AUC of features before the head, of a batch of images with all
    others, once in 20 epochs. Here it is that of the scores that the loss sees, of views of a
    batch, in each step; the own view of an anchor is left out.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.14 and 6.21.
    """

    def measure(
        self,
        scores: LossInputs,
        classes: ClassMasks | None,
        where: Bool[Array, "anchors keys"],
        tau_plus: Any,
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """See :meth:`AlphaEstimator.measure`."""
        del tau_plus
        if classes is None:
            raise ValueError("`alpha` by labels needs data that are tasks.Labelled, got others.")
        return auc_of(scores, classes, where)


@pytree_dataclass
class AlphaFromViews(AlphaEstimator):
    r"""Estimated without labels: how often the other view of an anchor scores above a sample.

    Of the samples a share :math:`\tau^+` is of the anchor's class and wins half of the time, so

    .. math:: \mathrm{AUC} = \frac{\mathrm{AUC}_u - \tau^+/2}{1 - \tau^+}

    with the :math:`\mathrm{AUC}_u` against all samples. It takes the other view for any sample of
    the class. As views of one example score higher than that, it is *too high*, and near 1 for an
    encoder that tells examples apart.
    """

    def measure(
        self,
        scores: LossInputs,
        classes: ClassMasks | None,
        where: Bool[Array, "anchors keys"],
        tau_plus: Any,
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """See :meth:`AlphaEstimator.measure`."""
        del classes
        auc, known = auc_of_views(scores, where)
        tau_plus = jnp.asarray(tau_plus, auc.dtype)
        return jnp.clip((auc - tau_plus / 2) / (1 - tau_plus), 0.5, 1), known
