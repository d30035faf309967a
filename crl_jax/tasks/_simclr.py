"""SimCLR and its variants with class labels: SupCon, the supervised oracle and puNCE."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .._pytree import STATIC, pytree_dataclass
from ..losses import (
    fused_view_loss,
    info_nce,
    oracle_contrastive,
    punce,
    supervised_contrastive,
    tiled_view_loss,
    view_scores,
)
from ..train import LossOutput, StepContext, stream
from ..weights import MeasuredAlphaState
from ._score_task import (
    AlphaEstimator,
    ClassMasks,
    LabelledExamples,
    LossInputs,
    ScoreTask,
    class_masks,
    label_auc,
    with_alpha,
)
from ._tiles import Tile, by_tile, check_tile, first_inputs
from ._views import TwoViewTask, ViewBatch, both_views, check_batch_size


@pytree_dataclass
class SimCLR(ScoreTask, TwoViewTask):
    r"""SimCLR: all 2B views of a batch are anchors, all views of other examples their negatives.

    With labels, the history reports ``false_negatives``, the share of negatives of the anchor's
    class, and ``auc``, the AUC of keys of the anchor's class against the others, at least 0.5.
    Neither affects training.

    Precision: that of :func:`crl_jax.losses.view_scores`.

    Attributes:
      network: Encoder of a view, ``[batch, dim]``. Scores are cosines, so embeddings need not be
        normalized. Static.
      augment: See :class:`TwoViewTask`.
      pretrained: See :class:`TwoViewTask`.
      hyperparams: See :class:`ScoreTask`.
      loss_fn: See :class:`ScoreTask`.
      alpha: See :class:`ScoreTask`.
      tile: Number of anchors whose scores are in memory at a time; None for all. With tiles, memory
        is linear in the batch size, also in the backward pass, and label metrics are computed on
        the first ``max(tile, 16)`` anchors only. See :func:`crl_jax.losses.tiled_view_loss`. With
        ``"fused"``, a TPU stores no scores, on one device: see
        :func:`crl_jax.losses.fused_view_loss`. Subclasses need all scores. Static.

    Raises:
      ValueError: If a field has the wrong type, if ``alpha`` is also in ``hyperparams``, if the
        batch size is 1, or if ``tile`` is set in a subclass with another loss.

    References:
      Chen et al., `A Simple Framework for Contrastive Learning of Visual Representations
      <https://arxiv.org/abs/2002.05709>`_, 2020, algorithm 1.
    """

    hyperparams: dict[str, Any] = field(default_factory=dict)
    loss_fn: Callable[..., Array] = field(default=info_nce, metadata=STATIC)
    alpha: AlphaEstimator | None = field(default=None, kw_only=True)
    tile: Tile | None = field(default=None, kw_only=True, metadata=STATIC)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_fields()
        check_tile(self, SimCLR)

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Initializes the network; its non-trainable variables are the model state."""
        params, variables = self.init_network(stream(key, "params"))
        return params, with_alpha(variables, self.initial_alpha())

    def loss(self, params: Any, model_state: Any, batch: ViewBatch, ctx: StepContext) -> LossOutput:
        """Computes the mean over both views of the real examples."""
        check_batch_size(self, ctx)
        (first, second), variables = self.encode_views(
            params, model_state, batch.first, batch.second
        )
        if self.tile is not None:
            alpha = getattr(model_state, "alpha", None)
            loss, alpha, metrics = self._tiled_loss(first, second, batch.labels, alpha, ctx)
            return loss, (with_alpha(variables, alpha), metrics)
        inputs = view_inputs(first, second, batch.labels, ctx)
        return self.state_loss(inputs, model_state, variables, both_views(ctx))

    def _tiled_loss(
        self, first: Array, second: Array, labels: Any, alpha: Any, ctx: StepContext
    ) -> tuple[Array, MeasuredAlphaState | None, dict[str, Array]]:
        """Computes the loss tile by tile, and label metrics from the first anchors."""
        assert self.tile is not None
        n, real = len(first), both_views(ctx).where
        z, index = jnp.concatenate([first, second]), jnp.arange(2 * n, dtype=jnp.int32)
        labels = None if labels is None else jnp.tile(labels, 2)
        inputs = first_inputs(self.tile, z, z, (index + n) % (2 * n), index % n, real, labels)
        estimates, alpha, metrics = self.alpha_and_metrics(inputs, alpha)
        loss = by_tile(self.tile, tiled_view_loss, fused_view_loss)
        hyperparams = {**self.hyperparams, **estimates}
        return loss(self.loss_fn, first, second, where=ctx.where, **hyperparams), alpha, metrics


def view_inputs(
    first: Float[Array, "batch dim"],
    second: Float[Array, "batch dim"],
    labels: Int[Array, "batch"] | None,
    ctx: StepContext,
) -> LossInputs:
    """Returns the scores of both views as anchors; padding is not a negative."""
    scores = view_scores(first, second)
    real = both_views(ctx).where
    where = scores.where & (real[:, None] & real[None, :])
    labels = None if labels is None else jnp.tile(labels, 2)
    return LossInputs(scores.pos, scores.neg, where, class_masks(labels, labels))


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
        same = _require_classes(inputs, self).same
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
        same = _require_classes(inputs, self).same
        return self.loss_fn(
            inputs.pos, inputs.neg, true_negative=~same, where=inputs.where, reduce_fn=None,
            **hyperparams,
        )  # fmt: skip


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
            labels = np.asarray(data.labels)
            if len(classes := np.unique(labels[labels >= 0])) > 1:
                raise ValueError(
                    "`data` must have one label for positives and negative labels for unlabelled "
                    f"examples, got {', '.join(map(str, classes[:5]))}."
                )
            if (labels >= 0).all():
                raise ValueError(
                    "`data` must have unlabelled examples, marked by a negative label, got none."
                )
        super().check_data(data)

    def losses(
        self, inputs: LossInputs, mask: Bool[Array, "anchors"], hyperparams: Mapping[str, Any]
    ) -> Float[Array, "anchors"]:
        """See :meth:`ScoreTask.losses`."""
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

    def label_metrics(self, inputs: LossInputs) -> dict[str, Float[Array, ""]]:
        """Returns ``labelled`` and ``auc``: a single class needs other metrics."""
        assert inputs.where is not None
        labelled = self._labelled(inputs)
        anchors = jnp.broadcast_to(labelled[:, None], inputs.where.shape)
        classes = ClassMasks(anchors & labelled[None, :], anchors)
        real = jnp.any(inputs.where, axis=1)
        fraction = jnp.sum(real & labelled) / jnp.maximum(jnp.sum(real), 1)
        auc, _ = label_auc(inputs._replace(classes=classes))
        return {"labelled": fraction.astype(jnp.float32), "auc": auc}

    def _labelled(self, inputs: LossInputs) -> Bool[Array, "anchors"]:
        return jnp.diagonal(_require_classes(inputs, self).known)


def _require_classes(inputs: LossInputs, task: SimCLR) -> ClassMasks:
    """Raises ``ValueError`` for a batch without labels."""
    if inputs.classes is None:
        raise ValueError(f"`data` of {type(task).__name__} must be tasks.LabelledExamples.")
    return inputs.classes
