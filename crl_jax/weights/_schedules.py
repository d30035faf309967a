r"""How the assumed quality :math:`\alpha` of the encoder goes along with its training.

An encoder begins as a blind guess, :math:`\alpha = 0.5`, and its weights should then trust
ranks as little. These functions are called inside a jitted step; their numbers may be traced.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import at_least_float32, check_range
from ._per_anchor import Scalar


def fixed_alpha(progress: Float[Array, "*shape"], *, alpha: Scalar) -> Float[Array, "*shape"]:
    r"""The same :math:`\alpha` throughout.

    Args:
      progress: Share of the training that is done, in [0, 1), any shape.
      alpha: The :math:`\alpha` in [0.5, 1].

    Returns:
      ``alpha`` in the shape of ``progress``, at least float32.

    Raises:
      ValueError: If ``alpha`` leaves its range.

    >>> print(fixed_alpha(jnp.array(0.3), alpha=0.75))
    0.75
    """
    return warmup_alpha(progress, alpha=alpha, until=0.0)


def warmup_alpha(
    progress: Float[Array, "*shape"], *, alpha: Scalar, until: Scalar = 1.0
) -> Float[Array, "*shape"]:
    r"""From 0.5, which trusts no rank, up to :math:`\alpha` in a straight line.

    .. math::
        \tfrac12 + (\alpha - \tfrac12)\,\min(p/p_{\text{until}},\, 1)

    Args:
      progress: Share :math:`p` of the training that is done, in [0, 1), any shape.
      alpha: The :math:`\alpha` in [0.5, 1] to reach.
      until: Progress :math:`p_{\text{until}}` in [0, 1] from which ``alpha`` holds; 0 starts
        with it.

    Returns:
      The :math:`\alpha` of the moment, in the shape of ``progress``, at least float32.

    Raises:
      ValueError: If a hyper-parameter leaves its range.

    >>> print(warmup_alpha(jnp.array([0.0, 0.25, 0.5, 0.75]), alpha=0.9, until=0.5))
    [0.5 0.7 0.9 0.9]
    """
    check_range("alpha", alpha, 0.5, 1.0)
    check_range("until", until, 0.0, 1.0)
    (progress,) = at_least_float32(progress)
    alpha, until = (jnp.asarray(value, progress.dtype) for value in (alpha, until))
    risen = progress >= until
    share = jnp.where(risen, 1, progress / jnp.where(until > 0, until, 1))
    return 0.5 * (1 - share) + alpha * share  # exactly alpha in the end


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
    check_range("decay", decay, 0.0, 1.0, high_open=True)
    decay = jnp.asarray(decay, state.lead.dtype)
    known = ~jnp.isnan(estimate)
    lead = jnp.where(known, jnp.asarray(estimate, state.lead.dtype) - 0.5, 0)
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
