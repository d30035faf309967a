"""Modules of :class:`ResNet`, imported when one is built."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from .._floats import at_least_float32
from ..kernels import Convolution, convolve
from ._layers import BatchNorm, GroupNorm, Mask
from ._remat import Remat, product, rematerialize
from ._resnet import EXPANSION, ResNet


class Conv(nnx.Module):
    """Convolution without bias; a stride of 1 preserves the image size."""

    def __init__(
        self, size: int, n_in: int, n_out: int, stride: int, method: Convolution, rngs: nnx.Rngs
    ):
        std = (2 / (size**2 * n_out)) ** 0.5
        normal = jax.random.normal(rngs.params(), (size, size, n_in, n_out))
        self.kernel = nnx.Param(std * normal)
        self.stride = stride
        self.method: Convolution = method

    def __call__(self, x: Float[Array, "batch rows columns n_in"]) -> Array:
        """Returns the convolved images in the dtype of ``x``."""
        return product(convolve(x, self.kernel[...].astype(x.dtype), self.stride, self.method))


class Block(nnx.Module):
    """Residual block relu(x + f(x)), where f has two convolutions or is a bottleneck of three."""

    def __init__(self, n_in: int, n: int, stride: int, settings: ResNet, rngs: nnx.Rngs):
        conv, norm = _layers(settings, rngs)
        # Size, channels and stride of each convolution.
        layers = [(3, n, stride), (3, n, 1)]
        if settings.has_bottlenecks:
            layers = [(1, n, 1), (3, n, stride), (1, EXPANSION * n, 1)]
        self.n_layers, self.n_out = len(layers), layers[-1][1]
        n_before = n_in
        for layer, (size, n_out, layer_stride) in enumerate(layers, 1):
            is_last = layer == self.n_layers
            first_scale = 0.0 if is_last and settings.zero_init_residual else 1.0
            setattr(self, f"conv_{layer}", conv(size, n_before, n_out, layer_stride))
            setattr(self, f"norm_{layer}", norm(n_out, first_scale=first_scale))
            n_before = n_out
        self.is_identity = stride == 1 and n_in == self.n_out
        if not self.is_identity:
            self.conv_skip, self.norm_skip = conv(1, n_in, self.n_out, stride), norm(self.n_out)

    def __call__(self, x: Float[Array, "batch rows columns n_in"], where: Mask = None) -> Array:
        """Returns the activations after the block."""
        out, skip = x, x if self.is_identity else self.norm_skip(self.conv_skip(x), where)
        for layer in range(1, self.n_layers + 1):
            out = getattr(self, f"conv_{layer}")(out)
            added = skip if layer == self.n_layers else None
            out = getattr(self, f"norm_{layer}")(out, where, added, relu=True)
        return out


class ResNetModule(nnx.Module):
    """Stem, residual blocks and global average pooling."""

    def __init__(self, settings: ResNet, rngs: nnx.Rngs):
        conv, norm = _layers(settings, rngs)
        self.is_pooled = settings.stem == "imagenet"
        size, stride = (7, 2) if self.is_pooled else (3, 1)
        self.conv = conv(size, settings.n_channels, settings.width, stride)
        self.norm = norm(settings.width)
        self.n_channels, n_before, names = settings.n_channels, settings.width, []
        for stage, n_blocks in enumerate(settings.blocks):
            for layer in range(n_blocks):
                stride = 2 if stage and not layer else 1
                block = Block(n_before, settings.width * 2**stage, stride, settings, rngs)
                names.append(f"block_{stage + 1}_{layer + 1}")
                setattr(self, names[-1], block)
                n_before = block.n_out
        self.names = tuple(names)
        self.remat: Remat = "none"  # set by `Network`

    def __call__(self, x: Float[Array, "batch rows columns channels"], where: Mask = None) -> Array:
        """Returns features ``[batch, n_features]`` in the dtype of ``x``.

        Raises:
          ValueError: If the images do not have ``n_channels`` channels.
        """
        if x.shape[-1] != self.n_channels:
            raise ValueError(f"`x` must have {self.n_channels} channels, got {x.shape[-1]}.")
        x = self.norm(self.conv(x), where, relu=True)
        if self.is_pooled:
            low = -jnp.inf
            window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
            padding = ((0, 0), (1, 1), (1, 1), (0, 0))
            x = jax.lax.reduce_window(x, low, jax.lax.max, window, strides, padding)
        for name in self.names:
            x = rematerialize(Block.__call__, self.remat, getattr(self, name), x, where)
        (wide,) = at_least_float32(x)
        return jnp.mean(wide, axis=(1, 2)).astype(x.dtype)


def _layers(settings: ResNet, rngs: nnx.Rngs) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Constructors of convolutions and norms."""

    def conv(size: int, n_in: int, n_out: int, stride: int) -> Conv:
        return Conv(size, n_in, n_out, stride, settings.convolution, rngs)

    def norm(n: int, **options: float) -> nnx.Module:
        if settings.norm == "group":
            return GroupNorm(n, settings.groups, **options)
        return BatchNorm(n, **options)

    return conv, norm
