r"""Schedules of the encoder quality :math:`\alpha` and of the drop rate of truncated losses.

An untrained encoder is at chance level, :math:`\alpha = 0.5`: neither its ranks nor its losses
are informative yet. Schedules can be called inside a jitted step with traced arguments.
"""

from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_range
from .._floats import at_least_float32
from .._hyperparams import Range, Scalar, check_arguments


def fixed_alpha(progress: Float[Array, "*shape"], *, alpha: Scalar) -> Float[Array, "*shape"]:
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


def warmup_alpha(
    progress: Float[Array, "*shape"], *, alpha: Scalar, until: Scalar = 1.0
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
    check_range("alpha", alpha, 0.5, 1.0)
    return _ramp(progress, 0.5, alpha, until)


@check_arguments
def ramp_drop_rate(
    progress: Float[Array, "*shape"],
    *,
    drop_rate: Annotated[Scalar, Range(0.0, 1.0)],
    until: Scalar = 1.0,
) -> Float[Array, "*shape"]:
    r"""Linear ramp of the drop rate of a truncated loss, starting at 0.

    .. math:: \epsilon\,\min(p/p_{\text{until}},\, 1)

    The loss separates noisy from clean positives only after the model has been partly trained.

    Args:
      progress: Fraction :math:`p` of training completed, as in :func:`warmup_alpha`.
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
    check_range("until", until, 0.0, 1.0)
    (progress,) = at_least_float32(progress)
    end, until = (jnp.asarray(value, progress.dtype) for value in (end, until))
    risen = progress >= until
    share = jnp.where(risen, 1, progress / jnp.where(until == 0, 1, until))
    return start * (1 - share) + end * share
