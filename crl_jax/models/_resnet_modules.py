"""The modules of :class:`ResNet`; imported only where one is built."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from .._floats import at_least_float32
from ._convolution import Convolution, convolve
from ._normalization import EPSILON, batch_norm, finished, group_norm, scaled_and_shifted
from ._resnet import EXPANSION, ResNet

MOMENTUM = 0.9
"""Share of a running average that a step keeps."""

Mask = Bool[Array, "batch"] | None
"""False for examples that do not enter the statistics of a batch."""


class Conv(nnx.Module):
    """A convolution without a bias; a stride of 1 keeps the size of the image."""

    def __init__(
        self, size: int, n_in: int, n_out: int, stride: int, way: Convolution, rngs: nnx.Rngs
    ):
        deviation = (2 / (size**2 * n_out)) ** 0.5
        normal = jax.random.normal(rngs.params(), (size, size, n_in, n_out))
        self.kernel = nnx.Param(deviation * normal)
        self.stride = stride
        self.way: Convolution = way

    def __call__(self, x: Float[Array, "batch rows columns n_in"]) -> Array:
        """The convolved images, in the type of ``x``."""
        return convolve(x, self.kernel[...].astype(x.dtype), self.stride, self.way)


class BatchNorm(nnx.Module):
    """Each channel with mean 0 and variance 1 over a batch, or over all batches so far."""

    def __init__(self, n: int, *, first_scale: float = 1.0):
        self.scale = nnx.Param(jnp.full(n, first_scale, jnp.result_type(float)))
        self.bias = nnx.Param(jnp.zeros(n))
        self.mean = nnx.BatchStat(jnp.zeros(n))
        self.var = nnx.BatchStat(jnp.ones(n))
        self.use_running_average = False  # which `train` and `eval` of a module set

    def __call__(
        self, x: Float[Array, "batch *places n"], where: Mask = None, skip: Any = None, *,
        relu: bool = False,
    ) -> Array:  # fmt: skip
        """The normalised activations, in the type of ``x``, see :func:`finished`."""
        scale, bias, mean, var = at_least_float32(
            self.scale[...], self.bias[...], self.mean[...], self.var[...]
        )
        if self.use_running_average:
            out = scaled_and_shifted(x, scale * jax.lax.rsqrt(var + EPSILON), bias, mean)
            return finished(out, skip, relu)
        out, seen = batch_norm(x, scale, bias, where, skip, relu=relu)
        unbiased = seen.var * seen.n / jnp.maximum(seen.n - 1, 1)
        # A batch without an example says nothing.
        keep = jnp.where(seen.n > 0, MOMENTUM, 1).astype(mean.dtype)
        for average, now in ((self.mean, seen.mean), (self.var, unbiased)):
            before = average[...]
            moved = keep * before.astype(keep.dtype) + (1 - keep) * now.astype(keep.dtype)
            average[...] = moved.astype(before.dtype)
        return out


class GroupNorm(nnx.Module):
    """Groups of channels of each example with mean 0 and variance 1."""

    def __init__(self, n: int, groups: int, *, first_scale: float = 1.0):
        self.scale = nnx.Param(jnp.full(n, first_scale, jnp.result_type(float)))
        self.bias = nnx.Param(jnp.zeros(n))
        self.groups = groups

    def __call__(
        self, x: Float[Array, "batch rows columns n"], where: Mask = None, skip: Any = None, *,
        relu: bool = False,
    ) -> Array:  # fmt: skip
        """The normalised activations, in the type of ``x``, see :func:`finished`."""
        del where  # every example is normalised by itself
        out = group_norm(x, self.scale[...], self.bias[...], self.groups)
        return finished(out, skip, relu)


class Block(nnx.Module):
    """relu(x + f(x)), where f has two convolutions, or three with the middle one narrow."""

    def __init__(self, n_in: int, n: int, stride: int, settings: ResNet, rngs: nnx.Rngs):
        conv, norm = _parts(settings, rngs)
        # The size, the channels and the stride of each convolution.
        layers = [(3, n, stride), (3, n, 1)]
        if settings.has_bottlenecks:
            layers = [(1, n, 1), (3, n, stride), (1, EXPANSION * n, 1)]
        self.n_layers, self.n_out = len(layers), layers[-1][1]
        before = n_in
        for place, (size, n_out, own_stride) in enumerate(layers, 1):
            is_last = place == self.n_layers
            first_scale = 0.0 if is_last and settings.zero_init_residual else 1.0
            setattr(self, f"conv_{place}", conv(size, before, n_out, own_stride))
            setattr(self, f"norm_{place}", norm(n_out, first_scale=first_scale))
            before = n_out
        self.is_identity = stride == 1 and n_in == self.n_out
        if not self.is_identity:
            self.conv_skip, self.norm_skip = conv(1, n_in, self.n_out, stride), norm(self.n_out)

    def __call__(self, x: Float[Array, "batch rows columns n_in"], where: Mask = None) -> Array:
        """The activations after the block."""
        out, skip = x, x if self.is_identity else self.norm_skip(self.conv_skip(x), where)
        for place in range(1, self.n_layers + 1):
            out = getattr(self, f"conv_{place}")(out)
            added = skip if place == self.n_layers else None
            out = getattr(self, f"norm_{place}")(out, where, added, relu=True)
        return out


class ResNetModule(nnx.Module):
    """A stem, blocks, and the mean over all places."""

    def __init__(self, settings: ResNet, rngs: nnx.Rngs):
        conv, norm = _parts(settings, rngs)
        self.is_pooled = settings.stem == "imagenet"
        size, stride = (7, 2) if self.is_pooled else (3, 1)
        self.conv = conv(size, settings.n_channels, settings.width, stride)
        self.norm = norm(settings.width)
        self.n_channels, before, names = settings.n_channels, settings.width, []
        for stage, n_blocks in enumerate(settings.blocks):
            for place in range(n_blocks):
                stride = 2 if stage and not place else 1
                block = Block(before, settings.width * 2**stage, stride, settings, rngs)
                names.append(f"block_{stage + 1}_{place + 1}")
                setattr(self, names[-1], block)
                before = block.n_out
        self.names = tuple(names)

    def __call__(self, x: Float[Array, "batch rows columns channels"], where: Mask = None) -> Array:
        """Features ``[batch, n_features]``, in the type of ``x``.

        Raises:
          ValueError: If the images have another number of channels.
        """
        if x.shape[-1] != self.n_channels:
            raise ValueError(f"Images must have {self.n_channels} channels, got {x.shape[-1]}.")
        x = self.norm(self.conv(x), where, relu=True)
        if self.is_pooled:
            low = -jnp.inf
            window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
            padding = ((0, 0), (1, 1), (1, 1), (0, 0))
            x = jax.lax.reduce_window(x, low, jax.lax.max, window, strides, padding)
        for name in self.names:
            x = getattr(self, name)(x, where)
        (wide,) = at_least_float32(x)
        return jnp.mean(wide, axis=(1, 2)).astype(x.dtype)


def _parts(settings: ResNet, rngs: nnx.Rngs) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Makers of convolutions and of norms."""

    def conv(size: int, n_in: int, n_out: int, stride: int) -> Conv:
        return Conv(size, n_in, n_out, stride, settings.convolution, rngs)

    def norm(n: int, **more: float) -> nnx.Module:
        if settings.norm == "group":
            return GroupNorm(n, settings.groups, **more)
        return BatchNorm(n, **more)

    return conv, norm
