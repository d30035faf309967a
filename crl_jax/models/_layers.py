"""Layers shared by networks, in the dtype of their input."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from .._floats import at_least_float32
from ._normalization import EPSILON, add_and_activate, batch_norm, per_channel, scale_and_shift

MOMENTUM = 0.9
"""Decay of running averages."""

Mask = Bool[Array, "batch"] | None
"""False for examples excluded from batch statistics."""


class Linear(nnx.Module):
    """Linear layer."""

    def __init__(
        self, n_in: int, n_out: int, kernel_init: Any, rngs: nnx.Rngs, *, has_bias: bool = True
    ):
        self.kernel = nnx.Param(kernel_init(rngs.params(), (n_in, n_out)))
        self.has_bias = has_bias
        if has_bias:
            self.bias = nnx.Param(jnp.zeros(n_out))

    def __call__(self, x: Float[Array, "*batch n_in"]) -> Array:
        """Returns outputs ``[*batch, n_out]``."""
        out = x @ self.kernel[...].astype(x.dtype)
        if not self.has_bias:
            return out
        return out + self.bias[...].astype(x.dtype).reshape(*[1] * (x.ndim - 1), -1)


class LayerNorm(nnx.Module):
    """Layer normalisation in at least float32; that of Flax promotes types implicitly."""

    def __init__(self, n: int, epsilon: float):
        self.scale = nnx.Param(jnp.ones(n, jnp.result_type(float)))
        self.bias = nnx.Param(jnp.zeros(n))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "batch length n"]) -> Array:
        """Returns normalised vectors."""
        wide, scale, bias = at_least_float32(x, self.scale[...], self.bias[...])
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        out = centred * jax.lax.rsqrt(variance + self.epsilon) * scale[None, None]
        return (out + bias[None, None]).astype(x.dtype)


class BatchNorm(nnx.Module):
    """Batch normalisation by batch statistics or running averages."""

    def __init__(self, n: int, *, first_scale: float = 1.0):
        self.scale = nnx.Param(jnp.full(n, first_scale, jnp.result_type(float)))
        self.bias = nnx.Param(jnp.zeros(n))
        self.mean = nnx.BatchStat(jnp.zeros(n))
        self.var = nnx.BatchStat(jnp.ones(n))
        self.use_running_average = False  # set by `train` and `eval` of a module

    def __call__(
        self, x: Float[Array, "batch *spatial n"], where: Mask = None, skip: Any = None, *,
        relu: bool = False,
    ) -> Array:  # fmt: skip
        """Returns normalised activations, see :func:`add_and_activate`."""
        scale, bias, mean, var = at_least_float32(
            self.scale[...], self.bias[...], self.mean[...], self.var[...]
        )
        if self.use_running_average:
            out = scale_and_shift(x, scale * jax.lax.rsqrt(var + EPSILON), bias, mean)
            return add_and_activate(out, skip, relu)
        out, stats = batch_norm(x, scale, bias, where, skip, relu=relu)
        unbiased = stats.var * stats.n / jnp.maximum(stats.n - 1, 1)
        # A batch without examples leaves the averages unchanged.
        keep = jnp.where(stats.n > 0, MOMENTUM, 1).astype(mean.dtype)
        for average, new in ((self.mean, stats.mean), (self.var, unbiased)):
            old = average[...]
            moved = keep * old.astype(keep.dtype) + (1 - keep) * new.astype(keep.dtype)
            average[...] = moved.astype(old.dtype)
        return out


class GroupNorm(nnx.Module):
    """Group normalisation in at least float32: groups of neighbouring channels of each example."""

    def __init__(self, n: int, groups: int, *, first_scale: float = 1.0):
        self.scale = nnx.Param(jnp.full(n, first_scale, jnp.result_type(float)))
        self.bias = nnx.Param(jnp.zeros(n))
        self.groups = groups

    def __call__(
        self, x: Float[Array, "batch rows columns n"], where: Mask = None, skip: Any = None, *,
        relu: bool = False,
    ) -> Array:  # fmt: skip
        """Returns normalised activations, see :func:`add_and_activate`."""
        del where  # examples are normalised separately
        wide, scale, bias = at_least_float32(x, self.scale[...], self.bias[...])
        parts = wide.reshape(*x.shape[:3], self.groups, -1)
        mean = jnp.mean(parts, axis=(1, 2, 4), keepdims=True)
        var = jnp.mean(jnp.square(parts - mean), axis=(1, 2, 4), keepdims=True)
        normal = ((parts - mean) * jax.lax.rsqrt(var + EPSILON)).reshape(x.shape)
        out = per_channel(scale, x) * normal + per_channel(bias, x)
        return add_and_activate(out.astype(x.dtype), skip, relu)
