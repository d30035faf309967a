"""Contrastive learning of two views with class labels: SupCon and the supervised oracle."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._pytree import STATIC, pytree_dataclass
from ..losses import oracle_contrastive, supervised_contrastive
from ._labels import ClassMasks, LossInputs
from ._simclr import SimCLR


@pytree_dataclass
class SupCon(SimCLR):
    """SupCon: the positives of a view are all other views of its class, the rest its negatives.

    The data are :class:`LabelledExamples`. The only positive of a view of unknown class is the
    example's other view; all other examples are its negatives.

    Attributes:
      loss_fn: ``loss(pos, neg, *, where_pos, where, reduce_fn, **hyperparams)`` of ``pos`` and
        ``neg``, ``[anchors, keys]``. Static.

    The other attributes are those of :class:`SimCLR`.

    References:
      Khosla et al., `Supervised Contrastive Learning <https://arxiv.org/abs/2004.11362>`_, 2020,
      Eq. 2.
    """

    loss_fn: Callable[..., Array] = field(default=supervised_contrastive, metadata=STATIC)
    needs_labels: ClassVar[bool] = True

    def losses(
        self, inputs: LossInputs, mask: Bool[Array, "anchors"], hyperparams: Mapping[str, Any]
    ) -> Float[Array, "anchors"]:
        """See :meth:`ScoreTask.losses`."""
        assert inputs.where is not None
        same = require_classes(inputs, self).same
        identity = jnp.eye(len(mask), dtype=bool)
        other_view = jnp.roll(identity, len(mask) // 2, axis=1)
        return self.loss_fn(
            inputs.neg, inputs.neg, where_pos=(same | other_view) & ~identity & mask[None, :],
            where=inputs.where & ~same, reduce_fn=None, **hyperparams,
        )  # fmt: skip


@pytree_dataclass
class SupervisedOracle(SimCLR):
    """Supervised counterpart of the debiased losses: labels remove false negatives.

    Upper reference for :class:`SimCLR` with :func:`crl_jax.losses.debiased_contrastive` or
    :func:`crl_jax.losses.bayesian_contrastive`. The data are :class:`LabelledExamples`; pairs not
    known to share a class are true negatives.

    Attributes:
      loss_fn: ``loss(pos, neg, *, true_negative, where, reduce_fn, **hyperparams)``. Static.

    The other attributes are those of :class:`SimCLR`.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.1.
    """

    loss_fn: Callable[..., Array] = field(default=oracle_contrastive, metadata=STATIC)
    needs_labels: ClassVar[bool] = True

    def losses(
        self, inputs: LossInputs, mask: Bool[Array, "anchors"], hyperparams: Mapping[str, Any]
    ) -> Float[Array, "anchors"]:
        """See :meth:`ScoreTask.losses`."""
        del mask
        same = require_classes(inputs, self).same
        return self.loss_fn(
            inputs.pos, inputs.neg, true_negative=~same, where=inputs.where, reduce_fn=None,
            **hyperparams,
        )  # fmt: skip


def require_classes(inputs: LossInputs, task: SimCLR) -> ClassMasks:
    """Raises ``ValueError`` for a batch without labels."""
    if inputs.classes is None:
        raise ValueError(f"`data` of {type(task).__name__} must be tasks.LabelledExamples.")
    return inputs.classes
