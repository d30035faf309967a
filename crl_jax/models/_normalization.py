"""Normalisation of activations, with their gradients in few passes over memory.

Statistics are sums over all axes but the last. Under ``jit`` an array that is spread over devices
is summed as a whole, so a batch has the same statistics wherever its examples lie.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._floats import at_least_float32

EPSILON = 1e-5
"""What is added to variances, as in PyTorch."""


class BatchStats(NamedTuple):
    """Statistics of a batch, without a gradient.

    Attributes:
      mean: Mean of each channel.
      var: Variance of each channel, divided by ``n``.
      n: How many places were seen.
    """

    mean: Float[Array, "n_channels"]
    var: Float[Array, "n_channels"]
    n: Float[Array, ""]


def batch_norm(
    x: Float[Array, "batch *places n_channels"],
    scale: Float[Array, "n_channels"],
    bias: Float[Array, "n_channels"],
    where: Bool[Array, "batch"] | None = None,
    skip: Float[Array, "batch *places n_channels"] | None = None,
    *,
    relu: bool = False,
) -> tuple[Float[Array, "batch *places n_channels"], BatchStats]:
    r"""Each channel with mean 0 and variance 1 over a batch, then scaled and shifted.

    .. math:: y = \gamma\,\frac{x - \mathrm{mean}(x)}{\sqrt{\mathrm{var}(x) + 10^{-5}}} + \beta

    Args:
      x: Activations.
      scale: The γ of each channel, at least float32.
      bias: The β of each channel, at least float32.
      where: False for examples that are normalised, but do not enter the statistics.
      skip: What is added to y.
      relu: Whether negative numbers of that sum become 0. Static.

    Returns:
      The normalised activations, in the type of ``x``; and what was seen.

    References:
      Ioffe and Szegedy, `SamplingContext Normalization <https://arxiv.org/abs/1502.03167>`_, 2015,
      algorithm 1.
    """
    weights = None if where is None else where.astype(scale.dtype)
    both: Any = _batch_norm(x, scale, bias, weights, skip, relu)
    return both


def finished(x: Array, skip: Array | None, relu: bool) -> Array:
    """What a norm gives, with ``skip`` added and negative numbers left out, if asked for."""
    x = x if skip is None else x + skip
    return jax.nn.relu(x) if relu else x


def group_norm(
    x: Float[Array, "batch rows columns n_channels"],
    scale: Float[Array, "n_channels"],
    bias: Float[Array, "n_channels"],
    groups: int,
) -> Float[Array, "batch rows columns n_channels"]:
    """Groups of neighbouring channels of each example with mean 0 and variance 1.

    Args:
      x: Activations.
      scale: Multiplies each channel.
      bias: Is added to each channel.
      groups: Number of groups. Static.

    Returns:
      The normalised activations, in the type of ``x``.

    References:
      Wu and He, `Group Normalization <https://arxiv.org/abs/1803.08494>`_, 2018, Eq. 1 and 7.
    """
    wide, scale, bias = at_least_float32(x, scale, bias)
    parts = wide.reshape(*x.shape[:3], groups, -1)
    mean = jnp.mean(parts, axis=(1, 2, 4), keepdims=True)
    var = jnp.mean(jnp.square(parts - mean), axis=(1, 2, 4), keepdims=True)
    normal = ((parts - mean) * jax.lax.rsqrt(var + EPSILON)).reshape(x.shape)
    return (_along(scale, x) * normal + _along(bias, x)).astype(x.dtype)


def scaled_and_shifted(
    x: Float[Array, "*shape n_channels"],
    scale: Float[Array, "n_channels"],
    bias: Float[Array, "n_channels"],
    mean: Float[Array, "n_channels"],
) -> Float[Array, "*shape n_channels"]:
    """``scale * (x - mean) + bias`` in the type of the scale, returned in that of ``x``."""
    wide = x.astype(scale.dtype)
    return (wide * _along(scale, x) + _along(bias - mean * scale, x)).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _batch_norm(
    x: Array, scale: Array, bias: Array, weights: Array | None, skip: Array | None, relu: bool
) -> tuple[Array, BatchStats]:
    seen = _statistics(x, scale.dtype, weights)
    rate = jax.lax.rsqrt(seen.var + EPSILON)
    return finished(scaled_and_shifted(x, scale * rate, bias, seen.mean), skip, relu), seen


def _batch_norm_fwd(
    x: Array, scale: Array, bias: Array, weights: Array | None, skip: Array | None, relu: bool
) -> tuple[tuple[Array, BatchStats], Any]:
    both: Any = _batch_norm(x, scale, bias, weights, skip, relu)
    out, seen = both
    return both, (x, scale, weights, skip is not None, out if relu else None, seen)


def _batch_norm_bwd(relu: bool, given: Any, slopes: Any) -> tuple[Any, ...]:
    r"""With :math:`\hat x` normalised and m_i whether an example was seen.

    dx = γ / σ (dy − m (Σ dy + x̂ Σ dy x̂) / n), which is linear in x and dy: three numbers of each
    channel and one pass.
    """
    x, scale, weights, has_skip, out, seen = given
    passed = jnp.where(out > 0, slopes[0], 0) if relu else slopes[0]
    rate = jax.lax.rsqrt(seen.var + EPSILON)
    wide, slope = x.astype(scale.dtype), passed.astype(scale.dtype)
    of_bias = _sum(slope)
    of_scale = rate * (_sum(slope * wide) - seen.mean * of_bias)
    n = jnp.maximum(seen.n, 1)
    of_slope, of_x = scale * rate, -scale * jnp.square(rate) * of_scale / n
    rest = -scale * rate * of_bias / n - of_x * seen.mean
    back = wide * _along(of_x, x) + _along(rest, x)
    if weights is not None:
        back = back * weights.reshape(-1, *[1] * (x.ndim - 1))
        weights = jnp.zeros_like(weights)
    of_images = (slope * _along(of_slope, x) + back).astype(x.dtype)
    return of_images, of_scale, of_bias, weights, passed if has_skip else None


_batch_norm.defvjp(_batch_norm_fwd, _batch_norm_bwd)


def _statistics(x: Array, dtype: Any, weights: Array | None) -> BatchStats:
    """Mean and variance in one pass: the mean of squares less the square of the mean."""
    wide = x.astype(dtype)
    n = jnp.asarray(x.size // x.shape[-1], dtype)
    if weights is not None:
        n = jnp.sum(weights) * (x.size // (x.shape[0] * x.shape[-1]))
        own = weights.reshape(-1, *[1] * (x.ndim - 1))
        wide = jnp.where(own > 0, wide, 0)
    mean = _sum(wide) / jnp.maximum(n, 1)
    squares = _sum(jnp.square(wide)) / jnp.maximum(n, 1)
    return BatchStats(mean, jnp.maximum(squares - jnp.square(mean), 0), n)


def _sum(x: Array) -> Array:
    return jnp.sum(x, axis=tuple(range(x.ndim - 1)))


def _along(values: Array, x: Array) -> Array:
    """Values of channels with the axes of ``x``."""
    return values.reshape(*[1] * (x.ndim - 1), -1)
