"""Batch normalisation, with gradients in few passes over memory.

Batch statistics are sums over all axes but the last. Under ``jit`` these include the examples on
all devices, so that statistics do not depend on the sharding of a batch.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

EPSILON = 1e-5
"""Added to variances, as in PyTorch."""


class BatchStats(NamedTuple):
    """Mean and variance of each channel over ``n`` positions, not differentiated."""

    mean: Float[Array, "n_channels"]
    var: Float[Array, "n_channels"]
    n: Float[Array, ""]


def batch_norm(
    x: Float[Array, "batch *spatial n_channels"],
    scale: Float[Array, "n_channels"],
    bias: Float[Array, "n_channels"],
    where: Bool[Array, "batch"] | None = None,
    skip: Float[Array, "batch *spatial n_channels"] | None = None,
    *,
    relu: bool = False,
) -> tuple[Float[Array, "batch *spatial n_channels"], BatchStats]:
    r"""Batch normalisation, followed by an optional residual connection and ReLU.

    .. math:: y = \gamma\,\frac{x - \mathrm{mean}(x)}{\sqrt{\mathrm{var}(x) + 10^{-5}}} + \beta

    Scale and bias are at least float32. Examples with a False ``where`` are normalised but excluded
    from the statistics. See Ioffe and Szegedy, `Batch Normalization
    <https://arxiv.org/abs/1502.03167>`_, 2015, algorithm 1.
    """
    weights = None if where is None else where.astype(scale.dtype)
    both: Any = _batch_norm(x, scale, bias, weights, skip, relu)
    return both


def add_and_activate(x: Array, skip: Array | None, relu: bool) -> Array:
    """Adds a residual and applies ReLU, both optional."""
    x = x if skip is None else x + skip
    return jax.nn.relu(x) if relu else x


def scale_and_shift(
    x: Float[Array, "*shape n_channels"],
    scale: Float[Array, "n_channels"],
    bias: Float[Array, "n_channels"],
    mean: Float[Array, "n_channels"],
) -> Float[Array, "*shape n_channels"]:
    """``scale * (x - mean) + bias`` in the dtype of the scale, cast to that of ``x``."""
    wide = x.astype(scale.dtype)
    return (wide * per_channel(scale, x) + per_channel(bias - mean * scale, x)).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _batch_norm(
    x: Array, scale: Array, bias: Array, weights: Array | None, skip: Array | None, relu: bool
) -> tuple[Array, BatchStats]:
    stats = _statistics(x, scale.dtype, weights)
    rate = jax.lax.rsqrt(stats.var + EPSILON)
    return add_and_activate(scale_and_shift(x, scale * rate, bias, stats.mean), skip, relu), stats


def _batch_norm_fwd(
    x: Array, scale: Array, bias: Array, weights: Array | None, skip: Array | None, relu: bool
) -> tuple[tuple[Array, BatchStats], Any]:
    both: Any = _batch_norm(x, scale, bias, weights, skip, relu)
    out, stats = both
    return both, (x, scale, weights, skip is not None, out if relu else None, stats)


def _batch_norm_bwd(relu: bool, residuals: Any, grads: Any) -> tuple[Any, ...]:
    r"""Gradients of batch normalisation.

    With the normalised :math:`\hat x` and the mask m of examples,
    dx = γ / σ (dy − m (Σ dy + x̂ Σ dy x̂) / n), which is linear in x and dy: three numbers per
    channel and one pass.
    """
    x, scale, weights, has_skip, out, stats = residuals
    out_grad = jnp.where(out > 0, grads[0], 0) if relu else grads[0]
    rate = jax.lax.rsqrt(stats.var + EPSILON)
    wide, grad = x.astype(scale.dtype), out_grad.astype(scale.dtype)
    bias_grad = _sum(grad)
    scale_grad = rate * (_sum(grad * wide) - stats.mean * bias_grad)
    n = jnp.maximum(stats.n, 1)
    grad_factor, x_factor = scale * rate, -scale * jnp.square(rate) * scale_grad / n
    offset = -scale * rate * bias_grad / n - x_factor * stats.mean
    through_stats = wide * per_channel(x_factor, x) + per_channel(offset, x)
    if weights is not None:
        through_stats = through_stats * weights.reshape(-1, *[1] * (x.ndim - 1))
        weights = jnp.zeros_like(weights)
    x_grad = (grad * per_channel(grad_factor, x) + through_stats).astype(x.dtype)
    return x_grad, scale_grad, bias_grad, weights, out_grad if has_skip else None


_batch_norm.defvjp(_batch_norm_fwd, _batch_norm_bwd)


def _statistics(x: Array, dtype: Any, weights: Array | None) -> BatchStats:
    """Mean and variance in one pass: the variance is the mean of squares minus the squared mean."""
    wide = x.astype(dtype)
    n = jnp.asarray(x.size // x.shape[-1], dtype)
    if weights is not None:
        n = jnp.sum(weights) * (x.size // (x.shape[0] * x.shape[-1]))
        mask = weights.reshape(-1, *[1] * (x.ndim - 1))
        wide = jnp.where(mask > 0, wide, 0)
    mean = _sum(wide) / jnp.maximum(n, 1)
    squares = _sum(jnp.square(wide)) / jnp.maximum(n, 1)
    return BatchStats(mean, jnp.maximum(squares - jnp.square(mean), 0), n)


def _sum(x: Array) -> Array:
    return jnp.sum(x, axis=tuple(range(x.ndim - 1)))


def per_channel(values: Array, x: Array) -> Array:
    """Broadcasts values per channel to the rank of ``x``."""
    return values.reshape(*[1] * (x.ndim - 1), -1)
