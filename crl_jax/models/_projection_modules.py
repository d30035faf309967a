"""Modules of projection heads, imported when one is built."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from ._layers import BatchNorm, Linear, Mask
from ._projection import Projection


class ProjectionModule(nnx.Module):
    """MLP with optional batch normalisation."""

    def __init__(self, settings: Projection, n_in: int, rngs: nnx.Rngs):
        self.n_layers = len(settings.widths)
        for layer, n_out in enumerate(settings.widths, 1):
            is_last = layer == self.n_layers
            has_norm = settings.last_norm if is_last else settings.norm
            has_bias = not has_norm and (settings.last_bias or not is_last)
            kernel_init = nnx.initializers.lecun_normal()
            linear = Linear(n_in, n_out, kernel_init, rngs, has_bias=has_bias)
            setattr(self, f"linear_{layer}", linear)
            if has_norm:
                setattr(self, f"norm_{layer}", BatchNorm(n_out))
            n_in = n_out

    def __call__(self, x: Float[Array, "batch n_in"], where: Mask = None) -> Array:
        """Returns embeddings ``[batch, widths[-1]]``."""
        for layer in range(1, self.n_layers + 1):
            x = getattr(self, f"linear_{layer}")(x)
            if hasattr(self, f"norm_{layer}"):
                x = getattr(self, f"norm_{layer}")(x, where)
            if layer < self.n_layers:
                x = jax.nn.relu(x)
        return x


class FeatureSliceModule(nnx.Module):
    """Slice of the first features."""

    def __init__(self, n_features: int):
        self.n_features = n_features

    def __call__(self, x: Float[Array, "batch n_in"], where: Mask = None) -> Array:
        """Returns ``x[:, :n_features]``."""
        del where  # there are no batch statistics
        if self.n_features > x.shape[1]:
            raise ValueError(f"`n_features` must be at most {x.shape[1]}, got {self.n_features}.")
        return x[:, : self.n_features]


class BackboneWithHeadModule(nnx.Module):
    """Backbone followed by a head."""

    def __init__(self, backbone: Any, head: Any):
        self.backbone, self.head = backbone, head

    def __call__(self, x: Any, *where: Any) -> Array:
        """Returns embeddings."""
        return self.head(self.backbone(x, *where), *where)

    def features(self, x: Any, *where: Any) -> Array:
        """Returns features."""
        return self.backbone(x, *where)
