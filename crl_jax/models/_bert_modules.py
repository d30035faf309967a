"""The modules of :class:`BERT`; imported only where one is built."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Key

from .._floats import at_least_float32
from ..data import Tokens
from ._bert import BERT

Drop = Callable[[Float[Array, "*shape"]], Float[Array, "*shape"]]
"""Leaves numbers out, other ones at each call."""

_DEVIATION = 0.02


class DropoutKey(nnx.Variable):
    """The random key of the next call, as the numbers that it is made of."""


class Linear(nnx.Module):
    """A linear layer in the type of its input."""

    def __init__(self, n_in: int, n_out: int, rngs: nnx.Rngs):
        self.kernel = nnx.Param(_DEVIATION * jax.random.normal(rngs.params(), (n_in, n_out)))
        self.bias = nnx.Param(jnp.zeros(n_out))

    def __call__(self, x: Float[Array, "*batch n_in"]) -> Array:
        """The outputs ``[*batch, n_out]``."""
        bias = self.bias[...].astype(x.dtype)
        return x @ self.kernel[...].astype(x.dtype) + jax.lax.broadcast_in_dim(
            bias, (*x.shape[:-1], bias.size), (x.ndim - 1,)
        )


class LayerNorm(nnx.Module):
    """Each vector with mean 0 and variance 1."""

    def __init__(self, n: int, epsilon: float):
        self.scale = nnx.Param(jnp.ones(n, jnp.result_type(float)))
        self.bias = nnx.Param(jnp.zeros(n))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "batch length n"]) -> Array:
        """The normalised vectors, in the type of ``x``."""
        wide, scale, bias = at_least_float32(x, self.scale[...], self.bias[...])
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        out = centred * jax.lax.rsqrt(variance + self.epsilon) * scale[None, None]
        return (out + bias[None, None]).astype(x.dtype)


class Attention(nnx.Module):
    """Each token takes of all tokens of its text, by several heads."""

    def __init__(self, settings: BERT, rngs: nnx.Rngs):
        width = settings.width
        self.n_heads = settings.n_heads
        self.query, self.key = Linear(width, width, rngs), Linear(width, width, rngs)
        self.value, self.out = Linear(width, width, rngs), Linear(width, width, rngs)

    def __call__(
        self, x: Float[Array, "batch length width"], mask: Bool[Array, "batch length"], drop: Drop
    ) -> Array:
        """What the tokens take, ``[batch, length, width]``."""
        heads = (*x.shape[:2], self.n_heads, -1)
        query, key, value = (f(x).reshape(heads) for f in (self.query, self.key, self.value))
        query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
        # Not -inf: a text without a token would make NaN of its weights.
        scores = jnp.where(mask[:, None, None, :], scores, jnp.finfo(scores.dtype).min)
        weights = drop(jax.nn.softmax(scores, axis=-1).astype(x.dtype))
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape))


class Layer(nnx.Module):
    """Attention, and two linear layers for each token."""

    def __init__(self, settings: BERT, rngs: nnx.Rngs):
        width, inner = settings.width, settings.inner_width
        self.attention = Attention(settings, rngs)
        self.norm_1 = LayerNorm(width, settings.epsilon)
        self.linear_1, self.linear_2 = Linear(width, inner, rngs), Linear(inner, width, rngs)
        self.norm_2 = LayerNorm(width, settings.epsilon)

    def __call__(
        self, x: Float[Array, "batch length width"], mask: Bool[Array, "batch length"], drop: Drop
    ) -> Array:
        """The vectors after the layer."""
        x = self.norm_1(x + drop(self.attention(x, mask, drop)))
        inner = jax.nn.gelu(self.linear_1(x), approximate=False)
        return self.norm_2(x + drop(self.linear_2(inner)))


class BERTModule(nnx.Module):
    """Embeddings, layers, and one vector for each text."""

    def __init__(self, settings: BERT, rngs: nnx.Rngs):
        self.token_embedding = _table(settings.vocab_size, settings.width, rngs)
        self.position_embedding = _table(settings.n_positions, settings.width, rngs)
        self.type_embedding = _table(settings.n_types, settings.width, rngs)
        self.norm = LayerNorm(settings.width, settings.epsilon)
        self.names = tuple(f"layer_{i}" for i in range(1, settings.n_layers + 1))
        for name in self.names:
            setattr(self, name, Layer(settings, rngs))
        self.dropout_key = DropoutKey(jax.random.key_data(rngs.dropout()))
        self.settings = settings
        self.deterministic = False  # which `train` and `eval` of a module set

    def __call__(self, tokens: Tokens, where: Bool[Array, "batch"] | None = None) -> Array:
        """Features ``[batch, width]``.

        Raises:
          ValueError: As of :meth:`hidden`.
        """
        del where  # every text is by itself
        return self.features(tokens)

    def features(self, tokens: Tokens) -> Array:
        """The same."""
        x = self.hidden(tokens)
        if self.settings.pooling == "cls":
            return x[:, 0]
        (wide,) = at_least_float32(x)
        kept = jnp.where(tokens.mask[:, :, None], wide, 0)
        n = jnp.maximum(jnp.sum(tokens.mask, axis=1, keepdims=True), 1).astype(wide.dtype)
        return (jnp.sum(kept, axis=1) / n).astype(x.dtype)

    def hidden(self, tokens: Tokens) -> Array:
        """Vectors of the tokens, ``[batch, length, width]``; those of fillers mean nothing.

        Raises:
          ValueError: If the ids and the mask differ in shape, or a text is longer than there are
            places.
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
        drop = self._start_dropout()
        x = jnp.take(self.token_embedding[...], ids, axis=0)
        x = x + self.position_embedding[...][None, : ids.shape[1]]
        x = drop(self.norm(x + self.type_embedding[...][None, :1]))
        for name in self.names:
            x = getattr(self, name)(x, mask, drop)
        return x

    def _start_dropout(self) -> Drop:
        """Dropout of one call of the module: the key moves on once, whatever the layers draw."""
        rate = self.settings.dropout
        if self.deterministic or not rate:
            return lambda x: x
        after, key = jax.random.split(jax.random.wrap_key_data(self.dropout_key[...]))
        self.dropout_key[...] = jax.random.key_data(after)
        n_drawn = 0

        def drop(x: Array) -> Array:
            nonlocal n_drawn
            n_drawn += 1
            return _dropped(jax.random.fold_in(key, n_drawn), x, rate)

        return drop


def _table(n: int, width: int, rngs: nnx.Rngs) -> nnx.Param[Array]:
    return nnx.Param(_DEVIATION * jax.random.normal(rngs.params(), (n, width)))


def _dropped(key: Key[Array, ""], x: Array, rate: float) -> Array:
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / jnp.asarray(1 - rate, x.dtype), 0)
