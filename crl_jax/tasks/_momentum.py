"""Two views, with a queue of keys and an averaged network."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._pytree import STATIC
from ..losses import normalize
from ..train import Moment, stream
from ._views import TwoViews, Views, cast_like


class Momentum(NamedTuple):
    """What changes besides the parameters of :class:`MomentumViews`.

    Attributes:
      rest: Other variables of the network.
      target: Averaged parameters, which make the keys.
      target_rest: Other variables of the averaged network.
      queue: Keys of the last batches, of length 1, ``[queue, dim]``.
      end: Where the next key goes.
    """

    rest: Any
    target: Any
    target_rest: Any
    queue: Float[Array, "queue dim"]
    end: Int[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MomentumViews(TwoViews):
    r"""MoCo: the negatives are keys of earlier batches, made by an average of the network.

    After each update :math:`\theta_k \leftarrow m\,\theta_k + (1 - m)\,\theta_q`. The first view is
    the anchor, the second its positive.

    Attributes:
      momentum: The m, in [0, 1].
      dim: Width of the embeddings. Static.
      queue: Keys that are kept, at least as many as a batch has. Static.

    References:
      He et al., `Momentum Contrast for Unsupervised Visual Representation Learning
      <https://arxiv.org/abs/1911.05722>`_, 2020, algorithm 1.
    """

    momentum: Any = 0.999
    dim: int = field(default=128, metadata=STATIC)
    queue: int = field(default=4096, metadata=STATIC)

    def init(self, key: Key[Array, ""]) -> tuple[Any, Momentum]:
        """The network, its copy, and a queue of random directions."""
        params, rest = self.network.init(stream(key, "params"))
        queue = normalize(jax.random.normal(stream(key, "extra"), (self.queue, self.dim)))
        return params, Momentum(rest, params, rest, queue, jnp.int32(0))

    def loss(
        self, params: Any, extra: Momentum, batch: Views, moment: Moment
    ) -> tuple[Array, tuple[Momentum, dict[str, Array]]]:
        """The mean over the first views of the real examples."""
        first, second = cast_like(params, batch)
        n = moment.where.shape[0]
        if n > self.queue:
            raise ValueError(f"`queue` must hold a batch of {n} keys, got {self.queue}.")
        query, rest = self.network.apply(params, extra.rest, first, train=True)
        key, target_rest = self.network.apply(
            jax.tree.map(lambda x, like: x.astype(like.dtype), extra.target, params),
            extra.target_rest, second, train=True,
        )  # fmt: skip
        query, key = normalize(query), jax.lax.stop_gradient(normalize(key))
        pos = jnp.sum(query * key, axis=-1)
        neg = query @ extra.queue.astype(query.dtype).T
        losses = self.loss_fn(pos, neg, reduce_fn=None, **self.hyperparams)
        mean = moment.mean(losses)
        # Fillers come last, and go nowhere.
        place = (extra.end + jnp.arange(key.shape[0], dtype=jnp.int32)) % self.queue
        place = jnp.where(moment.where, place, self.queue)
        queue = extra.queue.at[place].set(key.astype(extra.queue.dtype), mode="drop")
        end = (extra.end + moment.n.astype(jnp.int32)) % self.queue
        return mean, (Momentum(rest, extra.target, target_rest, queue, end), {})

    def after_update(self, params: Any, extra: Momentum) -> Momentum:
        """Moves the average."""

        def move(target: Array, now: Array) -> Array:
            m = jnp.asarray(self.momentum, target.dtype)
            return m * target + (1 - m) * now

        return extra._replace(target=jax.tree.map(move, extra.target, params))

    def embed(self, params: Any, extra: Momentum, examples: Any) -> Float[Array, "batch dim"]:
        """Embeddings of examples as they are, outside training."""
        return self.network.apply(params, extra.rest, examples)[0]
