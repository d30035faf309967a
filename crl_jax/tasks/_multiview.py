"""SimCLR with several positive views per example."""

from collections.abc import Callable
from dataclasses import field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._floats import at_least_float32
from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..losses import attention_contrastive
from ..train import Batch, LossOutput, StepContext
from ._score_task import split_labels
from ._simclr import SimCLR, view_inputs
from ._views import both_views, check_batch_size, draw_views


class MultiViewBatch(NamedTuple):
    """Two anchor views and further positive views of each example of a batch.

    Attributes:
      first: First anchor view of each example.
      second: Second anchor view of each example.
      positives: Positive views, each like ``first``.
      indices: Indices of the examples in the data, ``[batch]``.
      labels: Their classes, ``[batch]``; None without labels.
    """

    first: Any
    second: Any
    positives: tuple[Any, ...]
    indices: Int[Array, "batch"] | None = None
    labels: Int[Array, "batch"] | None = None


@pytree_dataclass
class MultiView(SimCLR):
    """SimCLR whose positives are several further views of the anchor's example, as in AttentionNCE.

    Both anchor views of an example have the same M positives; the anchor views of all other
    examples are their negatives. A step encodes 2 + M views of each example instead of 2.

    Precision: that of :func:`crl_jax.losses.view_scores`.

    Attributes:
      n_positives: Number M of positive views per example. Static.
      loss_fn: ``loss(pos, neg, *, where, reduce_fn, **hyperparams)`` of ``pos``, ``[anchors, M]``:
        :func:`crl_jax.losses.attention_contrastive`,
        :func:`crl_jax.losses.bilateral_softmax`, or a debiased loss, whose positive is the first of
        them and whose other M - 1 estimate the false-negative term. Static.

    The other attributes are those of :class:`SimCLR`.

    References:
      Liu, `AttentionNCE: Contrastive Learning with Instance Attention
      <https://openreview.net/forum?id=FfHGAAoSVJ>`_, 2025, with M = 4.
    """

    loss_fn: Callable[..., Array] = field(default=attention_contrastive, metadata=STATIC)
    n_positives: Annotated[int, Range(1)] = field(default=4, kw_only=True, metadata=STATIC)

    def batch(self, key: Key[Array, ""], examples: Batch) -> Any:
        """Draws 2 + M independent views of each example."""
        data, labels = split_labels(examples.data)
        keys = jax.random.split(key, (2 + self.n_positives, examples.indices.shape[0]))
        first, second, *positives = (draw_views(self.augment, k, data) for k in keys)
        return MultiViewBatch(first, second, tuple(positives), examples.indices, labels)

    def loss(self, params: Any, model_state: Any, batch: Any, ctx: StepContext) -> LossOutput:
        """Computes the mean over both anchor views of the real examples."""
        check_batch_size(self, ctx)
        (first, second, *positives), variables = self.encode_views(
            params, model_state, batch.first, batch.second, *batch.positives
        )
        inputs = view_inputs(first, second, batch.labels, ctx)
        stacked = jnp.stack(positives, axis=1)
        pos = jnp.concatenate([_scores(z, stacked) for z in (first, second)])
        return self.state_loss(inputs._replace(pos=pos), model_state, variables, both_views(ctx))


def _scores(
    anchors: Float[Array, "batch dim"], positives: Float[Array, "batch n_positives dim"]
) -> Float[Array, "batch n_positives"]:
    """Scores of each anchor with its positives, at least float32."""
    anchors, positives = at_least_float32(anchors, positives)
    return jnp.sum(anchors[:, None] * positives, axis=-1)
