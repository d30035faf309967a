"""SimCLR: the other examples of the batch as negatives."""

from collections.abc import Callable
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from .._pytree import STATIC, pytree_dataclass
from ..losses import info_nce, normalize, view_scores
from ..train import StepContext, stream
from ._alpha import AlphaEstimator
from ._base import ScoreTask, init_model_state, with_alpha
from ._labels import LossInputs, class_masks
from ._views import TwoViewTask, ViewBatch, both_views, cast_like, check_batch_size


@pytree_dataclass
class SimCLR(ScoreTask, TwoViewTask):
    r"""SimCLR: all 2B views of a batch are anchors, all views of other examples their negatives.

    With labels, the history reports ``false_negatives``, the share of negatives of the anchor's
    class, and ``auc``, the AUC of keys of the anchor's class against the others, at least 0.5.
    Neither affects training.

    Attributes:
      network: Encoder of a view, ``[batch, dim]``. Scores are cosines, so embeddings need not be
        normalized. Static.
      augment: Random views, see :data:`Augment`.
      hyperparams: Hyper-parameters of the loss, such as its temperature.
      loss_fn: ``loss(pos, neg, *, where, reduce_fn, **hyperparams)``, for instance
        :func:`crl_jax.losses.bayesian_contrastive`. Static.
      alpha: Estimator of the loss's ``alpha``: :class:`AlphaFromLabels` or
        :class:`AlphaFromViews`. None uses ``hyperparams``.
      pretrained: See :class:`TwoViewTask`.

    Raises:
      ValueError: If a field has the wrong type, if ``alpha`` is also in ``hyperparams``, or if the
        batch size is 1.

    References:
      Chen et al., `A Simple Framework for Contrastive Learning of Visual Representations
      <https://arxiv.org/abs/2002.05709>`_, 2020, algorithm 1.
    """

    hyperparams: dict[str, Any] = field(default_factory=dict)
    loss_fn: Callable[..., Array] = field(default=info_nce, metadata=STATIC)
    alpha: AlphaEstimator | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_fields()

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Initializes the network; its non-trainable variables are the model state."""
        params, variables = self.init_network(stream(key, "params"))
        return params, init_model_state(self, variables)

    def loss(
        self, params: Any, model_state: Any, batch: ViewBatch, ctx: StepContext
    ) -> tuple[Array, tuple[Any, dict[str, Array]]]:
        """Computes the mean over both views of the real examples."""
        check_batch_size(self, ctx)
        views = jax.tree.map(lambda *views: jnp.concatenate(views), batch.first, batch.second)
        _, variables = self.network_variables(params, model_state)
        z, variables = self.network.apply(params, variables, cast_like(params, views), train=True)
        scores = view_scores(*jnp.split(normalize(z), 2))
        ctx = both_views(ctx)
        real = ctx.where[:, None] & ctx.where[None, :]  # padding is not a negative
        labels = None if batch.labels is None else jnp.tile(batch.labels, 2)
        inputs = LossInputs(
            scores.pos, scores.neg, scores.where & real, class_masks(labels, labels)
        )
        alpha = getattr(model_state, "alpha", None)
        loss, alpha, metrics = self.score_loss(inputs, alpha, ctx)
        return loss, (with_alpha(variables, alpha), metrics)
