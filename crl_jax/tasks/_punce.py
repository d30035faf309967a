"""puNCE: contrastive learning of two views from positive and unlabelled examples."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._pytree import STATIC, pytree_dataclass
from ..losses import punce
from ..weights import MeasuredAlpha
from ._labels import ClassMasks, LabelledExamples, LossInputs, known_labels, label_auc
from ._simclr import SimCLR
from ._supcon import require_classes


@pytree_dataclass
class PuNCE(SimCLR):
    r"""puNCE: an unlabelled example is a positive with probability :math:`\tau^+`.

    The positives of a labelled view are its other view and all other labelled views of the batch.
    The loss of an unlabelled view is a mean of two, weighted by :math:`\tau^+` and
    :math:`1 - \tau^+`: with the same positives, and with its other view alone. All other views are
    in every denominator. Without labelled examples this is :class:`SimCLR`; with
    :math:`\tau^+ = 0` it is :class:`SupCon`.

    The data are :class:`LabelledExamples`: labelled positives share one label >= 0, unlabelled
    examples have a negative one. As in :class:`SupCon`, a view without unlabelled negatives in the
    batch has loss 0.

    The history reports ``labelled``, the fraction of labelled views, and ``auc``, the AUC of
    labelled against unlabelled views with a labelled anchor, at least 0.5.

    Attributes:
      hyperparams: Hyper-parameters of the loss: for puNCE ``tau_plus``, the prior in [0, 1) that an
        unlabelled example is a positive, and a temperature.
      loss_fn: ``loss(pos, neg, *, labelled, where_pos, where, reduce_fn, **hyperparams)`` of
        ``labelled``, ``[anchors]``, of ``pos`` and ``where_pos``, ``[anchors, 1 + keys]``, whose
        first column is the other view, and of ``neg``, ``[anchors, keys]``. Static.

    The other attributes are those of :class:`SimCLR`.

    References:
      Acharya et al., `Positive Unlabeled Contrastive Learning
      <https://arxiv.org/abs/2206.01206>`_, 2022.
    """

    loss_fn: Callable[..., Array] = field(default=punce, metadata=STATIC)
    needs_labels: ClassVar[bool] = True

    def check_data(self, data: Any) -> None:
        """Raises ``ValueError`` for several positive classes, or without unlabelled examples."""
        if isinstance(data, LabelledExamples):
            positive = known_labels(data)
            if len(classes := np.unique(positive)) > 1:
                raise ValueError(
                    "`data` must have one label for positives and negative labels for unlabelled "
                    f"examples, got {', '.join(map(str, classes[:5]))}."
                )
            if len(positive) == len(data.labels):
                raise ValueError(
                    "`data` must have unlabelled examples, marked by a negative label, got none."
                )
        super().check_data(data)

    def losses(
        self, inputs: LossInputs, mask: Bool[Array, "anchors"], hyperparams: Mapping[str, Any]
    ) -> Float[Array, "anchors"]:
        """See :meth:`ScoreTask.losses`."""
        del mask
        assert inputs.where is not None
        labelled = self._labelled(inputs)
        other_view = jnp.ones_like(labelled)[:, None]
        return self.loss_fn(
            jnp.concatenate([inputs.pos[:, None], inputs.neg], axis=1), inputs.neg,
            labelled=labelled,
            where_pos=jnp.concatenate([other_view, inputs.where & labelled[None, :]], axis=1),
            where=inputs.where & ~labelled[None, :],
            reduce_fn=None, **hyperparams,
        )  # fmt: skip

    def alpha_and_metrics(
        self, inputs: LossInputs, alpha: MeasuredAlpha | None
    ) -> tuple[dict[str, Array], MeasuredAlpha | None, dict[str, Array]]:
        """See :meth:`ScoreTask.alpha_and_metrics`; a single class needs other metrics."""
        assert inputs.where is not None
        labelled = self._labelled(inputs)
        estimates, alpha, _ = super().alpha_and_metrics(inputs, alpha)
        anchors = jnp.broadcast_to(labelled[:, None], inputs.where.shape)
        classes = ClassMasks(anchors & labelled[None, :], anchors)
        auc, _ = label_auc(inputs._replace(classes=classes))
        real = jnp.any(inputs.where, axis=1)
        fraction = jnp.sum(real & labelled) / jnp.maximum(jnp.sum(real), 1)
        metrics = {"labelled": fraction.astype(jnp.float32), "auc": auc}
        return estimates, alpha, {**estimates, **metrics}

    def _labelled(self, inputs: LossInputs) -> Bool[Array, "anchors"]:
        return jnp.diagonal(require_classes(inputs, self).known)
