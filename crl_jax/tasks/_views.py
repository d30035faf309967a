"""Two views of each example, which a network is to tell from the views of the others."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .._floats import cast_floats
from .._pytree import STATIC
from ..losses import info_nce, normalize, view_scores
from ..models import Network
from ..train import Examples, Moment, Task, stream

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
        # Both views of a real example are real; fillers are nobody's negatives.
        moment = moment._replace(where=jnp.tile(moment.where, 2), n=2 * moment.n)
        where = scores.where & moment.where[:, None] & moment.where[None, :]
        losses = self.loss_fn(
            scores.pos, scores.neg, where=where, reduce_fn=None, **self.hyperparams
        )
        return moment.mean(losses), (extra, {})

    def embed(self, params: Any, extra: Any, examples: Any) -> Float[Array, "batch dim"]:
        """Embeddings of examples as they are, outside training."""
        return self.network.apply(params, extra, examples)[0]


def cast_like(params: Any, inputs: Any) -> Any:
    """Floating inputs in the dtype of the parameters, which a network computes in."""
    dtypes = [x.dtype for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating)]
    return cast_floats(inputs, dtypes[0]) if dtypes else inputs
