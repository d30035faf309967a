"""Two views of each example, which a network is to tell from the views of the others."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ..losses import BatchScores, info_nce, normalize, view_scores
from ..models import Network
from ..train import Examples, Moment, Task, stream

STATIC = {"static": True}
Augment = Callable[[Key[Array, ""], Any], Any]
"""``augment(key, example)``: a random view of one example."""


class Views(NamedTuple):
    """A batch: two views of each example."""

    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TwoViews(Task):
    r"""SimCLR: all 2B views of a batch are anchors, with the other views as negatives.

    Attributes:
      network: Makes an embedding of each view, ``[batch, dim]``; its length does not matter, as
        scores are cosines. Static.
      augment: See :data:`Augment`. Static.
      hyperparams: Hyper-parameters of the loss, such as its temperature.
      loss_fn: ``loss(pos, neg, *, where, reduce_fn, **hyperparams)``, for instance
        :func:`crl_jax.losses.bayesian_contrastive`. Static.

    References:
      Chen et al., `A Simple Framework for Contrastive Learning of Visual Representations
      <https://arxiv.org/abs/2002.05709>`_, 2020, algorithm 1.
    """

    network: Network = field(metadata=STATIC)
    augment: Augment = field(metadata=STATIC)
    hyperparams: dict[str, Any] = field(default_factory=dict)
    loss_fn: Callable[..., Array] = field(default=info_nce, metadata=STATIC)

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Of the network: its other variables are what changes besides the parameters."""
        return self.network.init(stream(key, "params"))

    def batch(self, key: Key[Array, ""], examples: Examples) -> Views:
        """Two views of each example, independently."""
        n = examples.place.shape[0]
        keys = jax.random.split(key, (2, n))
        return Views(*(jax.vmap(self.augment)(own, examples.data) for own in keys))

    def loss(
        self, params: Any, extra: Any, batch: Views, moment: Moment
    ) -> tuple[Array, tuple[Any, dict[str, Array]]]:
        """The mean over both views of the real examples."""
        both = jax.tree.map(lambda *views: jnp.concatenate(views), *batch)
        z, extra = self.network.apply(params, extra, cast_like(params, both), train=True)
        scores = view_scores(*jnp.split(normalize(z), 2))
        value = masked_loss(
            self.loss_fn, scores, jnp.tile(moment.where, 2), 2 * moment.n, self.hyperparams
        )
        return value, (extra, {})

    def embed(self, params: Any, extra: Any, examples: Any) -> Float[Array, "batch dim"]:
        """Embeddings of examples as they are, outside training."""
        return self.network.apply(params, extra, examples)[0]


def masked_loss(
    loss_fn: Callable[..., Array],
    scores: BatchScores,
    real: Array,
    n: Array,
    hyperparams: dict[str, Any],
) -> Float[Array, ""]:
    """The mean over real anchors, which see no keys that only fill the batch up.

    Args:
      loss_fn: See :class:`TwoViews`.
      scores: Of anchors with the same batch as keys.
      real: Which anchors, and keys, are real, ``[anchors]``.
      n: How many.
      hyperparams: Of the loss.
    """
    where = scores.where & real[:, None] & real[None, :]
    losses = loss_fn(scores.pos, scores.neg, where=where, reduce_fn=None, **hyperparams)
    return jnp.sum(jnp.where(real, losses, 0)) / jnp.maximum(n, 1).astype(losses.dtype)


def cast_like(params: Any, inputs: Any) -> Any:
    """Floating inputs in the dtype of the parameters, which a network computes in."""
    floating = [x for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating)]

    def cast(x: Array) -> Array:
        return x.astype(floating[0].dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, inputs) if floating else inputs
