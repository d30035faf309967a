"""Random choices within each graph of a batch: so many of its nodes, or of its edges."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from .._checks import check_range
from .._hyperparams import Scalar

_BITS = 32


def random_bits(
    keys: Key[Array, "graphs"], graph: Int[Array, "members"], member: Int[Array, "members"]
) -> UInt32[Array, "members"]:
    """Random numbers that depend on the key of a graph and the place in it, and on nothing else."""
    return jax.vmap(jax.random.bits)(member_keys(keys, graph, member))


def member_keys(
    keys: Key[Array, "graphs"], graph: Int[Array, "members"], member: Int[Array, "members"]
) -> Key[Array, "members"]:
    """A key for each member of each graph."""
    own = keys[jnp.minimum(graph, keys.shape[0] - 1)]
    return jax.vmap(jax.random.fold_in)(own, member)


def lowest(
    values: UInt32[Array, "members"], graph: Int[Array, "members"], count: Int[Array, "graphs"]
) -> Bool[Array, "members"]:
    """The ``count`` lowest values of each graph; of equal values at this border, none.

    By halving the range of values, as sorting takes ten times as long on a CPU. Random values of 32
    bits are equal once in four milliards.
    """
    n = count.shape[0]
    inside = graph < n
    own = jnp.minimum(graph, n - 1)

    def halve(step: Array, border: Array) -> Array:
        tried = border | (jnp.uint32(1) << (_BITS - 1 - step).astype(jnp.uint32))
        below = (inside & (values < tried[own])).astype(jnp.int32)
        found = jnp.zeros(n, jnp.int32).at[own].add(below, indices_are_sorted=True)
        return jnp.where(found <= count, tried, border)

    border = jax.lax.fori_loop(0, _BITS, halve, jnp.zeros(n, jnp.uint32))
    return inside & (values < border[own])


def share_of(ratio: Scalar | Float[Array, "graphs"], n: Int[Array, "graphs"]) -> Array:
    """``ratio * n`` rounded down, as in published code."""
    check_range("ratio", ratio, 0, 1)
    # In float32 0.2 * 5 is 1 and 0.1 * 30 is 3.0000001; 0.7 * 10 would be 6.9999995.
    exact = jnp.asarray(ratio, jnp.float32) * n.astype(jnp.float32)
    return jnp.minimum(jnp.floor(exact * (1 + 1e-6)).astype(jnp.int32), n)
