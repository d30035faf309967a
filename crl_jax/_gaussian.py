"""Exponents of Gaussian functions of scores."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._hyperparams import Finite, Positive, expand_anchor_axis, per_anchor

# Largest distance, in standard deviations, that a Gaussian weight resolves: its square is finite.
_FARTHEST = 1e18


def gaussian_exponents(neg: Array, mu: Finite, sigma: Positive, where: Array | None) -> Array:
    r"""Computes :math:`[\min_i (s_i - \mu)^2 - (s_j - \mu)^2] / 2\sigma^2`, ``[*batch, n_neg]``."""
    mu, sigma = (
        expand_anchor_axis(per_anchor(name, value, neg.shape[:-1], neg.dtype))
        for name, value in (("mu", mu), ("sigma", sigma))
    )
    if where is not None:  # mask first: 0 * NaN would reach the gradients of mu and sigma
        neg = jnp.where(where, neg, 0)

    # Relative to the score nearest to the mean: far from it, the squares have no common digits.
    distance = jax.lax.stop_gradient(jnp.abs(neg - mu))
    distance = distance if where is None else jnp.where(where, distance, jnp.inf)
    is_nearest = distance == jnp.min(distance, axis=-1, keepdims=True)
    nearest = jnp.max(jnp.where(is_nearest, neg, -jnp.inf), axis=-1, keepdims=True)
    nearest = jax.lax.stop_gradient(jnp.where(jnp.isneginf(nearest), jnp.nan, nearest))
    limit = _FARTHEST * sigma  # before the division, whose gradient could be 0 * inf
    difference = jnp.clip(neg - nearest, -limit, limit) / sigma
    total = jnp.clip((neg - mu) + (nearest - mu), -limit, limit) / sigma
    return -difference * total / 2
