"""Density ratio of true negatives and unlabelled samples at a rank among the scores of an anchor.

Shared by the Bayesian weights and by the kernels of fused losses, which evaluate it in fast memory.
"""

import jax.numpy as jnp
from jaxtyping import Array


def target_proportions(alpha: Array, beta: Array) -> tuple[Array, Array]:
    """Proportions of easy and hard samples in the target distribution of true negatives."""
    easy, hard = (1 - beta) * alpha, beta * (1 - alpha)
    total = easy + hard
    is_empty = total == 0
    total = jnp.where(is_empty, 1, total)
    return jnp.where(is_empty, 1, easy / total), hard / total


def end_densities(alpha: Array, tau_plus: Array) -> tuple[Array, Array]:
    """The density h of unlabelled samples at the highest and the lowest score; their sum is 1."""
    small = (1 - alpha) * (1 - tau_plus) + alpha * tau_plus
    big = alpha * (1 - tau_plus) + (1 - alpha) * tau_plus
    return small, big


def density_ratio(
    rank: Array, n: Array, easy: Array, hard: Array, small: Array, big: Array
) -> Array:
    r"""Density ratio ``(easy (1-Φ) + hard Φ) / h`` at ranks among n scores."""
    u, v = rank / n, (n - rank) / n  # v = 1 - u, exactly

    # All terms below are non-negative, which avoids cancellation both where the quadratic
    # degenerates (alpha or tau_plus = 0.5) and at its endpoints. In the published root,
    # a + b = 1, b/2 = big, and the discriminant b² + 4au is 4h².
    gap = v - small  # = big - u
    last = v == 0  # the highest score: h = small exactly, even if its square underflows
    h = jnp.where(last, small, jnp.sqrt(jnp.where(last, 1, gap * gap + u * v)))
    # h + gap = u v / (h - gap), whose denominator is joined with that of the weight. At the highest
    # score, h + gap is 0 exactly.
    below = (gap < 0) & ~last
    h_minus_gap = jnp.where(below, h - gap, 1)
    h_plus_gap = jnp.where(below, u * v, h + gap)  # times h_minus_gap

    # h = 0 only at the highest score of a perfect encoder without false negatives; the weight
    # is constant in u there, and its limit is 1.
    flat = h == 0
    # Φ = u / (big + h) and 1 - Φ = (h + gap) / (big + h).
    numerator = easy * h_plus_gap + hard * u * h_minus_gap
    weight = numerator / jnp.where(flat, 1, (big + h) * h * h_minus_gap)
    return jnp.where(flat, 1, weight)
