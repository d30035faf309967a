r"""Schedules of the encoder quality :math:`\alpha` and the drop rate, and measured :math:`\alpha`.

An untrained encoder is at chance level, :math:`\alpha = 0.5`: neither its ranks nor its losses
are informative yet. Schedules can be called inside a jitted step with traced arguments.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._floats import at_least_float32
from .._hyperparams import Alpha, Decay, DropRate, Scalar, Share, check_arguments


@check_arguments
def fixed_alpha(progress: Float[Array, "*shape"], *, alpha: Alpha) -> Float[Array, "*shape"]:
    r"""Constant schedule of :math:`\alpha`.

    Args:
      progress: Fraction of training completed, in [0, 1), any shape.
      alpha: Encoder quality :math:`\alpha` in [0.5, 1].

    Returns:
      ``alpha``, broadcast to the shape of ``progress``, at least float32.

    Raises:
      ValueError: If ``alpha`` is out of range.

    >>> print(fixed_alpha(jnp.array(0.3), alpha=0.75))
    0.75
    """
    return warmup_alpha(progress, alpha=alpha, until=0.0)


@check_arguments
def warmup_alpha(
    progress: Float[Array, "*shape"], *, alpha: Alpha, until: Share = 1.0
) -> Float[Array, "*shape"]:
    r"""Linear warmup from 0.5, where ranks are ignored, to :math:`\alpha`.

    .. math:: \tfrac12 + (\alpha - \tfrac12)\,\min(p/p_{\text{until}},\, 1)

    Args:
      progress: Fraction :math:`p` of training completed, in [0, 1), any shape.
      alpha: Final value :math:`\alpha` in [0.5, 1].
      until: Progress :math:`p_{\text{until}}` in [0, 1] at which the warmup ends; 0 disables it.

    Returns:
      Current :math:`\alpha`, shape of ``progress``, at least float32.

    Raises:
      ValueError: If a hyper-parameter is out of range.

    >>> print(warmup_alpha(jnp.array([0.0, 0.25, 0.5, 0.75]), alpha=0.9, until=0.5))
    [0.5 0.7 0.9 0.9]
    """
    return _ramp(progress, 0.5, alpha, until)


@check_arguments
def ramp_drop_rate(
    progress: Float[Array, "*shape"],
    *,
    drop_rate: DropRate,
    until: Share = 1.0,
) -> Float[Array, "*shape"]:
    r"""Linear ramp of the drop rate of a truncated loss, starting at 0.

    .. math:: \epsilon\,\min(p/p_{\text{until}},\, 1)

    The loss separates noisy from clean positives only after the model has been partly trained.

    Args:
      progress: Fraction :math:`p` of training completed, in [0, 1), any shape.
      drop_rate: Final drop rate :math:`\epsilon` in [0, 1].
      until: Progress :math:`p_{\text{until}}` in [0, 1] at which the ramp ends; 0 disables it.

    Returns:
      Current drop rate, shape of ``progress``, at least float32.

    Raises:
      ValueError: If a hyper-parameter is out of range.

    References:
      Wang et al., `Denoising Implicit Feedback for Recommendation
      <https://arxiv.org/abs/2006.04153>`_, 2021, the drop rate of the truncated loss.

    >>> print(ramp_drop_rate(jnp.array([0.0, 0.25, 0.5, 0.75]), drop_rate=0.25, until=0.5))
    [0.    0.125 0.25  0.25 ]
    """
    return _ramp(progress, 0.0, drop_rate, until)


def _ramp(progress: Array, start: float, end: Scalar, until: Scalar) -> Array:
    """Linear ramp from ``start`` to ``end``, which is reached exactly."""
    (progress,) = at_least_float32(progress)
    end, until = (jnp.asarray(value, progress.dtype) for value in (end, until))
    is_complete = progress >= until
    share = jnp.where(is_complete, 1, progress / jnp.where(until == 0, 1, until))
    return start * (1 - share) + end * share


class MeasuredAlphaState(NamedTuple):
    """State of the moving average of the encoder quality."""

    lead: Float[Array, ""]
    """Weighted sum of the excess of the estimates over 0.5."""
    weight: Float[Array, ""]
    """Sum of the weights: 0 before the first estimate, converging to 1."""


def init_measured_alpha() -> MeasuredAlphaState:
    """Returns the initial state, for which :func:`measured_alpha` is 0.5.

    >>> print(measured_alpha(init_measured_alpha()))
    0.5
    """
    return MeasuredAlphaState(jnp.float32(0), jnp.float32(0))


@check_arguments
def update_measured_alpha(
    state: MeasuredAlphaState, estimate: Float[Array, ""], *, decay: Decay = 0.9
) -> MeasuredAlphaState:
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
    decay = jnp.asarray(decay, dtype)
    known = ~jnp.isnan(estimate)
    lead = jnp.where(known, jnp.asarray(estimate, dtype) - 0.5, 0)
    total, weight = decay * state.lead + (1 - decay) * lead, decay * state.weight + (1 - decay)
    updated = MeasuredAlphaState(total, weight)
    return MeasuredAlphaState(*(jnp.where(known, new, old) for new, old in zip(updated, state)))


def measured_alpha(state: MeasuredAlphaState) -> Float[Array, ""]:
    """Bias-corrected exponential moving average of the estimates; 0.5 before the first one."""
    return 0.5 + state.lead / jnp.where(state.weight > 0, state.weight, 1)
