"""Two views of examples of which a few are labelled positive, and nothing is known of the rest."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._pytree import STATIC, pytree_dataclass
from ..losses import punce
from ..weights import MeasuredAlpha
from ._labels import ClassMasks, LabelledExamples, LossInputs, auc_of
from ._simclr import SimCLR
from ._supcon import known_classes


@pytree_dataclass
class PuNCE(SimCLR):
    r"""puNCE: labelled examples are alike, and an unlabelled one counts in part as one of them.

    The positives of a labelled view are its other view and all other labelled views of the batch.
    The loss of an unlabelled one is the mean of two, weighted by :math:`\tau^+` and
    :math:`1 - \tau^+`: with the same positives, and with its other view alone. All other views are
    in every denominator. Without labelled examples that is :class:`SimCLR`, and with
    :math:`\tau^+ = 0` it is :class:`SupCon`.

    The data are :class:`LabelledExamples`. A negative label is that of an unlabelled example,
    and any other
    number, the same for all, that of a labelled one. As in :class:`SupCon`, a view that
    the batch has no unlabelled negative for has loss 0.

    The history has ``labelled``, the share of the views that are labelled, and ``auc``, how often a
    labelled view scores above an unlabelled one with a labelled anchor, or 0.5 if that is more.

    Attributes:
      network: See :class:`SimCLR`.
      augment: See :class:`SimCLR`.
      hyperparams: See :class:`SimCLR`. For puNCE ``tau_plus``, the prior in [0, 1) that an
        unlabelled example is in truth a positive, and a temperature.
      loss_fn: ``loss(pos, neg, *, labelled, where_pos, where, reduce_fn, **hyperparams)`` of
        ``labelled``, ``[anchors]``, of ``pos`` and ``where_pos``, ``[anchors, 1 + keys]``, whose
        first column is the other view, and of ``neg``, ``[anchors, keys]``. Static.
      alpha: See :class:`SimCLR`.
      pretrained: See :class:`SimCLR`.

    References:
      Acharya et al., `Positive Unlabeled Contrastive Learning
      <https://arxiv.org/abs/2206.01206>`_, 2022.
    """

    loss_fn: Callable[..., Array] = field(default=punce, metadata=STATIC)

    def check_data(self, data: Any) -> None:
        """Refuses several classes."""
        labels = np.asarray(data.labels) if isinstance(data, LabelledExamples) else np.empty(0)
        positive = np.unique(labels[labels >= 0])
        if len(positive) > 1:
            raise ValueError(
                "`data` must have one label for what is labelled positive, and negative ones for "
                f"the rest, got {', '.join(map(str, positive[:5]))}."
            )

    def losses(
        self,
        scores: LossInputs,
        classes: ClassMasks | None,
        real: Bool[Array, "anchors"],
        hyperparams: Mapping[str, Any],
    ) -> Float[Array, "anchors"]:
        """The loss of each anchor."""
        del real
        assert scores.where is not None
        labelled = self._labelled(classes)
        other_view = jnp.ones_like(labelled)[:, None]
        return self.loss_fn(
            jnp.concatenate([scores.pos[:, None], scores.neg], axis=1), scores.neg,
            labelled=labelled,
            where_pos=jnp.concatenate([other_view, scores.where & labelled[None, :]], axis=1),
            where=scores.where & ~labelled[None, :],
            reduce_fn=None, **hyperparams,
        )  # fmt: skip

    def observe(
        self,
        scores: LossInputs,
        classes: ClassMasks | None,
        alpha: MeasuredAlpha | None,
        where: Bool[Array, "anchors keys"],
    ) -> tuple[dict[str, Array], MeasuredAlpha | None, dict[str, Array]]:
        """As of any task with labels, but for the metrics: one class alone has no AUC."""
        labelled = self._labelled(classes)
        known, alpha, _ = super().observe(scores, classes, alpha, where)
        of_labelled = jnp.broadcast_to(labelled[:, None], where.shape)
        auc, _ = auc_of(scores, ClassMasks(of_labelled & labelled[None, :], of_labelled), where)
        real = jnp.any(where, axis=1)
        share = jnp.sum(real & labelled) / jnp.maximum(jnp.sum(real), 1)
        metrics = {"labelled": share.astype(jnp.float32), "auc": auc}
        return known, alpha, {**known, **metrics}

    def _labelled(self, classes: ClassMasks | None) -> Bool[Array, "anchors"]:
        return jnp.diagonal(known_classes(classes, self).known)
