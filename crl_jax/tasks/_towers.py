"""Two networks that put the two halves of each pair next to each other."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .._pytree import STATIC
from ..losses import clip_contrastive, normalize
from ..models import Network
from ..train import Examples, Moment, Task, stream
from ._views import cast_like


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Towers(Task):
    r"""CLIP: two networks, cosines of all pairs of a batch, and a temperature that is learned.

    The data of the batches are pairs ``(first, second)``, such as images and texts.

    Attributes:
      first: Embeds the first halves. Static.
      second: Embeds the second halves, in the same width. Static.
      temperature: Its initial value, > 0.
      least_temperature: Where it stops falling, > 0.
      loss_fn: ``loss(scores [batch, batch], *, temperature, where, reduce_fn)``. Static.

    References:
      Radford et al., `Learning Transferable Visual Models From Natural Language Supervision
      <https://arxiv.org/abs/2103.00020>`_, 2021, Figure 3 and section 2.5.
    """

    first: Network = field(metadata=STATIC)
    second: Network = field(metadata=STATIC)
    temperature: Any = 0.07
    least_temperature: Any = 0.01
    loss_fn: Callable[..., Array] = field(default=clip_contrastive, metadata=STATIC)

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Of both networks, and the logarithm of the temperature's inverse."""
        keys = jax.random.split(stream(key, "params"))
        (first, first_rest), (second, second_rest) = (
            network.init(own) for network, own in zip((self.first, self.second), keys)
        )
        log_scale = -jnp.log(jnp.asarray(self.temperature, jnp.float32))
        params = {"first": first, "second": second, "log_scale": log_scale}
        return params, {"first": first_rest, "second": second_rest}

    def batch(self, key: Key[Array, ""], examples: Examples) -> tuple[Any, Any]:
        """The pairs as they are."""
        del key
        return examples.data

    def loss(
        self, params: Any, extra: Any, batch: tuple[Any, Any], moment: Moment
    ) -> tuple[Array, tuple[Any, dict[str, Array]]]:
        """The mean over the real pairs; ``temperature`` beside it."""
        halves = {}
        after = {}
        for name, network, x in zip(("first", "second"), (self.first, self.second), batch):
            x = cast_like(params[name], x)
            z, after[name] = network.apply(params[name], extra[name], x, train=True)
            halves[name] = normalize(z)
        least = jnp.asarray(self.least_temperature, jnp.float32)
        temperature = jnp.maximum(jnp.exp(-params["log_scale"].astype(jnp.float32)), least)
        losses = self.loss_fn(
            halves["first"] @ halves["second"].T, temperature=temperature, where=moment.where,
            reduce_fn=None,
        )  # fmt: skip
        return moment.mean(losses), (after, {"temperature": temperature})

    def embed(
        self, params: Any, extra: Any, first: Any, second: Any
    ) -> tuple[Float[Array, "batch dim"], Float[Array, "batch dim"]]:
        """Embeddings of both halves, of length 1, outside training."""
        a, _ = self.first.apply(params["first"], extra["first"], first)
        b, _ = self.second.apply(params["second"], extra["second"], second)
        return normalize(a), normalize(b)
