"""Modules of :class:`BERT`, imported when one is built."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from .._floats import at_least_float32
from ..data import Tokens
from ._attention import Drop, DropoutModule, attend
from ._bert import BERT
from ._layers import LayerNorm, Linear
from ._remat import Remat, rematerialize

_INIT = nnx.initializers.normal(0.02)


class Attention(nnx.Module):
    """Multi-head self-attention."""

    def __init__(self, settings: BERT, rngs: nnx.Rngs):
        width = settings.width
        self.n_heads = settings.n_heads
        linear = partial(Linear, width, width, _INIT, rngs)
        self.query, self.key, self.value, self.out = linear(), linear(), linear(), linear()

    def __call__(
        self, x: Float[Array, "batch length width"], mask: Bool[Array, "batch length"], drop: Drop
    ) -> Array:
        """Returns the attended values, ``[batch, length, width]``."""
        attended = attend(
            self.query(x), self.key(x), self.value(x),
            n_heads=self.n_heads, mask=mask[:, None, None, :], drop=drop,
        )  # fmt: skip
        return self.out(attended)


class Layer(nnx.Module):
    """Transformer layer: self-attention and a feed-forward network."""

    def __init__(self, settings: BERT, rngs: nnx.Rngs):
        width, inner = settings.width, settings.inner_width
        self.attention = Attention(settings, rngs)
        self.norm_1 = LayerNorm(width, settings.epsilon)
        self.linear_1 = Linear(width, inner, _INIT, rngs)
        self.linear_2 = Linear(inner, width, _INIT, rngs)
        self.norm_2 = LayerNorm(width, settings.epsilon)

    def __call__(
        self, x: Float[Array, "batch length width"], mask: Bool[Array, "batch length"], drop: Drop
    ) -> Array:
        """Returns the token vectors after the layer."""
        x = self.norm_1(x + drop(self.attention(x, mask, drop)))
        inner = jax.nn.gelu(self.linear_1(x), approximate=False)
        return self.norm_2(x + drop(self.linear_2(inner)))


class BERTModule(DropoutModule):
    """Embeddings, Transformer layers and pooling."""

    def __init__(self, settings: BERT, rngs: nnx.Rngs):
        sizes = (settings.vocab_size, settings.n_positions, settings.n_types)
        tables = (nnx.Param(_INIT(rngs.params(), (n, settings.width))) for n in sizes)
        self.token_embedding, self.position_embedding, self.type_embedding = tables
        self.norm = LayerNorm(settings.width, settings.epsilon)
        self.names = tuple(f"layer_{i}" for i in range(1, settings.n_layers + 1))
        for name in self.names:
            setattr(self, name, Layer(settings, rngs))
        self.init_dropout(rngs)
        self.settings = settings
        self.remat: Remat = "none"  # set by `Network`

    def __call__(self, tokens: Tokens, where: Bool[Array, "batch"] | None = None) -> Array:
        """Returns features ``[batch, width]``; see :meth:`hidden` for errors."""
        del where  # there are no batch statistics
        return self.features(tokens)

    def features(self, tokens: Tokens) -> Array:
        """Returns features ``[batch, width]``."""
        x = self.hidden(tokens)
        if self.settings.pooling == "cls":
            return x[:, 0]
        (wide,) = at_least_float32(x)
        masked = jnp.where(tokens.mask[:, :, None], wide, 0)
        n = jnp.maximum(jnp.sum(tokens.mask, axis=1, keepdims=True), 1).astype(wide.dtype)
        return (jnp.sum(masked, axis=1) / n).astype(x.dtype)

    def hidden(self, tokens: Tokens) -> Array:
        """Returns token vectors, ``[batch, length, width]``; those of padding are arbitrary.

        Raises:
          ValueError: If ids and mask differ in shape, or texts are longer than ``n_positions``.
        """
        ids, mask = tokens
        if ids.ndim != 2 or ids.shape != mask.shape:
            raise ValueError(
                "`tokens` must have ids and a mask of one shape [batch, length], "
                f"got {ids.shape} and {mask.shape}."
            )
        if ids.shape[1] > self.settings.n_positions:
            raise ValueError(
                f"`tokens` must have at most {self.settings.n_positions} positions, "
                f"got {ids.shape[1]}."
            )
        drop = self.next_dropout(self.settings.dropout)
        x = jnp.take(self.token_embedding[...], ids, axis=0)
        x = x + self.position_embedding[...][None, : ids.shape[1]]
        x = drop(self.norm(x + self.type_embedding[...][None, :1]))
        apply = partial(Layer.__call__, drop=drop)
        for name in self.names:
            x = rematerialize(apply, self.remat, getattr(self, name), x, mask)
        return x
