"""Exponential moving average of the encoder quality during training."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_range
from .._hyperparams import Scalar


class MeasuredAlpha(NamedTuple):
    """State of the moving average of the encoder quality."""

    lead: Float[Array, ""]
    """Weighted sum of the excess of the estimates over 0.5."""
    weight: Float[Array, ""]
    """Sum of the weights: 0 before the first estimate, converging to 1."""


def init_measured_alpha() -> MeasuredAlpha:
    """Returns the initial state, for which :func:`measured_alpha` is 0.5.

    >>> print(measured_alpha(init_measured_alpha()))
    0.5
    """
    return MeasuredAlpha(jnp.float32(0), jnp.float32(0))


def update_measured_alpha(
    state: MeasuredAlpha, estimate: Float[Array, ""], *, decay: Scalar = 0.9
) -> MeasuredAlpha:
    """Updates the exponential moving average with an estimate; NaN estimates are ignored.

    Args:
      state: State from :func:`init_measured_alpha` or the previous update.
      estimate: Estimate of the encoder quality, for instance from :func:`estimate_alpha`.
      decay: Decay rate in [0, 1); the new estimate has weight ``1 - decay``.

    Returns:
      Updated state.

    Raises:
      ValueError: If ``decay`` is out of range.

    >>> state = update_measured_alpha(init_measured_alpha(), jnp.float32(0.8))
    >>> print(f"{measured_alpha(state):.4f}")  # the first estimate counts in full
    0.8000
    >>> print(f"{measured_alpha(update_measured_alpha(state, jnp.float32(0.9))):.4f}")
    0.8526
    """
    dtype = state.lead.dtype
    check_range("decay", decay, 0.0, 1.0, high_open=True, dtype=dtype)
    decay = jnp.asarray(decay, dtype)
    known = ~jnp.isnan(estimate)
    lead = jnp.where(known, jnp.asarray(estimate, dtype) - 0.5, 0)
    updated = MeasuredAlpha(
        decay * state.lead + (1 - decay) * lead,
        decay * state.weight + (1 - decay),
    )
    return MeasuredAlpha(*(jnp.where(known, new, old) for new, old in zip(updated, state)))


def measured_alpha(state: MeasuredAlpha) -> Float[Array, ""]:
    """Bias-corrected exponential moving average of the estimates; 0.5 before the first one.

    Weights are normalised to sum to 1, so that the average has no bias towards an initial value.
    """
    return 0.5 + state.lead / jnp.where(state.weight > 0, state.weight, 1)
