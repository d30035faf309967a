"""A running measurement of the quality of the encoder, carried along in training."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_range
from .._hyperparams import Scalar


class MeasuredAlpha(NamedTuple):
    """State of a running measurement of the encoder's quality; a pytree to carry along."""

    lead: Float[Array, ""]
    """Weighted sum of how far the estimates lay above 0.5."""
    weight: Float[Array, ""]
    """Sum of the weights, from 0 before the first estimate up to 1."""


def init_measured_alpha() -> MeasuredAlpha:
    """The state before the first estimate, in which :func:`measured_alpha` is 0.5.

    >>> print(measured_alpha(init_measured_alpha()))
    0.5
    """
    return MeasuredAlpha(jnp.float32(0), jnp.float32(0))


def update_measured_alpha(
    state: MeasuredAlpha, estimate: Float[Array, ""], *, decay: Scalar = 0.9
) -> MeasuredAlpha:
    """Takes an estimate into the exponential moving average; a NaN leaves it as it is.

    Args:
      state: What :func:`init_measured_alpha` or the last update gave.
      estimate: An estimate of the quality, as :func:`estimate_alpha` gives.
      decay: Weight of the past in [0, 1), next to ``1 - decay`` for the new estimate.

    Returns:
      The new state.

    Raises:
      ValueError: If ``decay`` leaves its range.

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
    """The average of the estimates so far, the latest counting most; 0.5 before the first.

    The weights of the estimates sum to 1 from the first on, so the average does not start
    from an arbitrary value.
    """
    return 0.5 + state.lead / jnp.where(state.weight > 0, state.weight, 1)
