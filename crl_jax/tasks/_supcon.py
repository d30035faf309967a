"""Two views of examples whose classes are known."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._pytree import STATIC, pytree_dataclass
from ..losses import oracle_contrastive, supervised_contrastive
from ._labels import ClassMasks, LossInputs
from ._simclr import SimCLR


@pytree_dataclass
class SupCon(SimCLR):
    """SupCon: the positives of a view are all other views of its class, the rest its negatives.

    The data are :class:`LabelledExamples`. An example whose class is not known has its own two
    views for
    positives, and all other examples for negatives.

    Attributes:
      network: See :class:`SimCLR`.
      augment: See :class:`SimCLR`.
      hyperparams: See :class:`SimCLR`.
      loss_fn: ``loss(pos, neg, *, where_pos, where, reduce_fn, **hyperparams)`` of ``pos`` and
        ``neg``, ``[anchors, keys]``. Static.
      alpha: See :class:`SimCLR`.
      pretrained: See :class:`SimCLR`.

    References:
      Khosla et al., `Supervised Contrastive Learning <https://arxiv.org/abs/2004.11362>`_, 2020,
      Eq. 2.
    """

    loss_fn: Callable[..., Array] = field(default=supervised_contrastive, metadata=STATIC)

    def losses(
        self,
        scores: LossInputs,
        classes: ClassMasks | None,
        real: Bool[Array, "anchors"],
        hyperparams: Mapping[str, Any],
    ) -> Float[Array, "anchors"]:
        """The loss of each anchor."""
        assert scores.where is not None
        same = known_classes(classes, self).same
        itself = jnp.eye(len(real), dtype=bool)
        other_view = jnp.roll(itself, len(real) // 2, axis=1)
        return self.loss_fn(
            scores.neg, scores.neg, where_pos=(same | other_view) & ~itself & real[None, :],
            where=scores.where & ~same, reduce_fn=None, **hyperparams,
        )  # fmt: skip


@pytree_dataclass
class SupervisedOracle(SimCLR):
    """The supervised loss that debiased losses estimate: labels take false negatives out.

    What :class:`SimCLR` with :func:`crl_jax.losses.debiased_contrastive` or
    :func:`crl_jax.losses.bayesian_contrastive` would reach if it knew the classes. The data are
    :class:`LabelledExamples`; whoever is not known to be of the anchor's class is a true negative.

    Attributes:
      network: See :class:`SimCLR`.
      augment: See :class:`SimCLR`.
      hyperparams: See :class:`SimCLR`.
      loss_fn: ``loss(pos, neg, *, true_negative, where, reduce_fn, **hyperparams)``. Static.
      alpha: See :class:`SimCLR`.
      pretrained: See :class:`SimCLR`.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.1.
    """

    loss_fn: Callable[..., Array] = field(default=oracle_contrastive, metadata=STATIC)

    def losses(
        self,
        scores: LossInputs,
        classes: ClassMasks | None,
        real: Bool[Array, "anchors"],
        hyperparams: Mapping[str, Any],
    ) -> Float[Array, "anchors"]:
        """The loss of each anchor."""
        del real
        same = known_classes(classes, self).same
        return self.loss_fn(
            scores.pos, scores.neg, true_negative=~same, where=scores.where, reduce_fn=None,
            **hyperparams,
        )  # fmt: skip


def known_classes(classes: ClassMasks | None, task: SimCLR) -> ClassMasks:
    if classes is None:
        raise ValueError(f"`data` of {type(task).__name__} must be tasks.Labelled, got others.")
    return classes
