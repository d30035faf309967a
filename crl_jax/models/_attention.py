"""Attention and dropout shared by Transformer modules."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

Drop = Callable[[Float[Array, "*shape"]], Float[Array, "*shape"]]
"""Dropout with another random key at each call."""


def attend(
    query: Float[Array, "batch length width"],
    key: Float[Array, "batch length width"],
    value: Float[Array, "batch length width"],
    *,
    n_heads: int,
    mask: Bool[Array, "#batch 1 #length length"],
    drop: Drop,
) -> Float[Array, "batch length width"]:
    """Multi-head scaled dot-product attention, with the softmax in float32.

    Args:
      query, key, value: Projected inputs.
      n_heads: Number of heads.
      mask: Keys that each query may attend to. If there are none, the weights are uniform.
      drop: Dropout of the attention weights.
    """
    heads = (*query.shape[:2], n_heads, -1)
    q, k, v = (x.reshape(heads) for x in (query, key, value))
    q = q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    # -inf would give NaN weights for a query without keys.
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    weights = drop(jax.nn.softmax(scores, axis=-1).astype(query.dtype))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(query.shape)


class DropoutKey(nnx.Variable):
    """Data of the random key for the next call."""


class DropoutModule(nnx.Module):
    """Module with dropout whose random key changes at each call."""

    def init_dropout(self, rngs: nnx.Rngs) -> None:
        """Creates the key; called by the constructors of subclasses."""
        self.dropout_key = DropoutKey(jax.random.key_data(rngs.dropout()))
        self.deterministic = False  # set by `train` and `eval` of a module

    def next_dropout(self, rate: float) -> Drop:
        """Splits the key once per call of the module; layers use keys folded from it."""
        if self.deterministic or not rate:
            return lambda x: x
        next_key, key = jax.random.split(jax.random.wrap_key_data(self.dropout_key[...]))
        self.dropout_key[...] = jax.random.key_data(next_key)
        n_calls = 0

        def drop(x: Array) -> Array:
            nonlocal n_calls
            n_calls += 1
            keep = jax.random.bernoulli(jax.random.fold_in(key, n_calls), 1 - rate, x.shape)
            return jnp.where(keep, x / jnp.asarray(1 - rate, x.dtype), 0)

        return drop
