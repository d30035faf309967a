"""Modules of :class:`SASRec`, imported when one is built."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ._attention import Drop, DropoutModule, attend
from ._layers import LayerNorm, Linear
from ._remat import Remat, rematerialize
from ._sasrec import SASRec

_INIT = nnx.initializers.normal(0.02)


class Block(nnx.Module):
    """Causal self-attention and a feed-forward network, each after LayerNorm."""

    def __init__(self, settings: SASRec, rngs: nnx.Rngs):
        width = settings.width
        self.n_heads = settings.n_heads
        linear = partial(Linear, width, width, _INIT, rngs)
        self.norm_1 = LayerNorm(width, settings.epsilon)
        self.query, self.key, self.value = (linear(has_bias=False) for _ in range(3))
        self.norm_2 = LayerNorm(width, settings.epsilon)
        self.linear_1, self.linear_2 = linear(), linear()

    def __call__(
        self, x: Float[Array, "batch length width"], mask: Bool[Array, "batch length"], drop: Drop
    ) -> Array:
        """Returns the vectors after the block."""
        normed, n = self.norm_1(x), x.shape[1]
        attended = attend(
            self.query(normed), self.key(normed), self.value(normed), n_heads=self.n_heads,
            mask=jnp.tri(n, dtype=bool)[None, None] & mask[:, None, None, :], drop=drop,
        )  # fmt: skip
        x = x + drop(attended)
        return x + drop(self.linear_2(jax.nn.relu(self.linear_1(self.norm_2(x)))))


class SASRecModule(DropoutModule):
    """Embeddings, blocks and a final LayerNorm."""

    def __init__(self, settings: SASRec, rngs: nnx.Rngs):
        sizes = settings.n_items, settings.n_positions
        tables = (nnx.Param(_INIT(rngs.params(), (n, settings.width))) for n in sizes)
        self.item_embedding, self.position_embedding = tables
        self.names = tuple(f"block_{i}" for i in range(1, settings.n_layers + 1))
        for name in self.names:
            setattr(self, name, Block(settings, rngs))
        self.norm = LayerNorm(settings.width, settings.epsilon)
        self.init_dropout(rngs)
        self.settings = settings
        self.remat: Remat = "none"  # set by `Network`

    def __call__(self, items: Int[Array, "batch length"]) -> Array:
        """Returns the vectors of all positions, ``[batch, length, width]``.

        Raises:
          ValueError: If sequences are longer than ``n_positions``.
        """
        n_positions, length = self.settings.n_positions, items.shape[1]
        if length > n_positions:
            raise ValueError(f"`items` must have at most {n_positions} columns, got {length}.")
        mask, drop = items >= 0, self.next_dropout(self.settings.dropout)
        x = jnp.take(self.item_embedding[...], jnp.maximum(items, 0), axis=0)
        x = x * jnp.asarray(self.settings.width**0.5, x.dtype)
        x = drop(x + self.position_embedding[...][None, n_positions - length :])
        apply = partial(Block.__call__, drop=drop)
        for name in self.names:
            x = rematerialize(apply, self.remat, getattr(self, name), x, mask)
        return self.norm(x)

    def item_vectors(self) -> Array:
        """Returns the vectors of all items, ``[n_items, width]``."""
        return self.item_embedding[...]
