r"""How the assumed quality :math:`\alpha` of the encoder, or a drop rate, goes along with training.

An encoder begins as a blind guess, :math:`\alpha = 0.5`, and its weights should then trust
ranks as little, nor should it say at once which positives are noise. These functions are
called inside a jitted step; their numbers may be traced.
"""

from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_range
from .._floats import at_least_float32
from .._hyperparams import Range, Scalar, check_arguments


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
    return _ramp(progress, 0.5, alpha, until)


@check_arguments
def ramp_drop_rate(
    progress: Float[Array, "*shape"],
    *,
    drop_rate: Annotated[Scalar, Range(0.0, 1.0)],
    until: Scalar = 1.0,
) -> Float[Array, "*shape"]:
    r"""From 0, which drops nothing, up to a drop rate in a straight line.

    .. math::
        \epsilon\,\min(p/p_{\text{until}},\, 1)

    What is noise shows by its loss only to a model that has learned something.

    Args:
      progress: As in :func:`warmup_alpha`.
      drop_rate: The :math:`\epsilon` in [0, 1] to reach.
      until: Progress :math:`p_{\text{until}}` in [0, 1] from which ``drop_rate`` holds; 0
        starts with it.

    Returns:
      The drop rate of the moment, in the shape of ``progress``, at least float32.

    Raises:
      ValueError: If a hyper-parameter leaves its range.

    References:
      Wang et al., `Denoising Implicit Feedback for Recommendation
      <https://arxiv.org/abs/2006.04153>`_, 2021, the drop rate of the truncated loss.

    >>> print(ramp_drop_rate(jnp.array([0.0, 0.25, 0.5, 0.75]), drop_rate=0.25, until=0.5))
    [0.    0.125 0.25  0.25 ]
    """
    return _ramp(progress, 0.0, drop_rate, until)


def _ramp(progress: Array, start: float, end: Scalar, until: Scalar) -> Array:
    """From ``start`` to ``end`` in a straight line, which is reached exactly."""
    check_range("until", until, 0.0, 1.0)
    (progress,) = at_least_float32(progress)
    end, until = (jnp.asarray(value, progress.dtype) for value in (end, until))
    risen = progress >= until
    share = jnp.where(risen, 1, progress / jnp.where(until == 0, 1, until))
    return start * (1 - share) + end * share
