"""Modules of :class:`BERT`, imported when one is built."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Key

from .._floats import at_least_float32
from ..data import Tokens
from ._bert import BERT
from ._layers import LayerNorm, Linear
from ._remat import Remat, rematerialize

Drop = Callable[[Float[Array, "*shape"]], Float[Array, "*shape"]]
"""Dropout with another random key at each call."""

_INIT = nnx.initializers.normal(0.02)


class DropoutKey(nnx.Variable):
    """Data of the random key for the next call."""


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
        heads = (*x.shape[:2], self.n_heads, -1)
        query, key, value = (f(x).reshape(heads) for f in (self.query, self.key, self.value))
        query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
        # -inf would give NaN weights for a text without tokens.
        scores = jnp.where(mask[:, None, None, :], scores, jnp.finfo(scores.dtype).min)
        weights = drop(jax.nn.softmax(scores, axis=-1).astype(x.dtype))
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape))


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


class BERTModule(nnx.Module):
    """Embeddings, Transformer layers and pooling."""

    def __init__(self, settings: BERT, rngs: nnx.Rngs):
        sizes = (settings.vocab_size, settings.n_positions, settings.n_types)
        tables = (nnx.Param(_INIT(rngs.params(), (n, settings.width))) for n in sizes)
        self.token_embedding, self.position_embedding, self.type_embedding = tables
        self.norm = LayerNorm(settings.width, settings.epsilon)
        self.names = tuple(f"layer_{i}" for i in range(1, settings.n_layers + 1))
        for name in self.names:
            setattr(self, name, Layer(settings, rngs))
        self.dropout_key = DropoutKey(jax.random.key_data(rngs.dropout()))
        self.settings = settings
        self.deterministic = False  # set by `train` and `eval` of a module
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
        kept = jnp.where(tokens.mask[:, :, None], wide, 0)
        n = jnp.maximum(jnp.sum(tokens.mask, axis=1, keepdims=True), 1).astype(wide.dtype)
        return (jnp.sum(kept, axis=1) / n).astype(x.dtype)

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
                f"`tokens` must be of at most {self.settings.n_positions} places, "
                f"got {ids.shape[1]}."
            )
        drop = self._next_dropout()
        x = jnp.take(self.token_embedding[...], ids, axis=0)
        x = x + self.position_embedding[...][None, : ids.shape[1]]
        x = drop(self.norm(x + self.type_embedding[...][None, :1]))
        apply = partial(Layer.__call__, drop=drop)
        for name in self.names:
            x = rematerialize(apply, self.remat, getattr(self, name), x, mask)
        return x

    def _next_dropout(self) -> Drop:
        """Splits the key once per call of the module; layers use keys folded from it."""
        rate = self.settings.dropout
        if self.deterministic or not rate:
            return lambda x: x
        next_key, key = jax.random.split(jax.random.wrap_key_data(self.dropout_key[...]))
        self.dropout_key[...] = jax.random.key_data(next_key)
        n_calls = 0

        def drop(x: Array) -> Array:
            nonlocal n_calls
            n_calls += 1
            return _dropout(jax.random.fold_in(key, n_calls), x, rate)

        return drop


def _dropout(key: Key[Array, ""], x: Array, rate: float) -> Array:
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / jnp.asarray(1 - rate, x.dtype), 0)
