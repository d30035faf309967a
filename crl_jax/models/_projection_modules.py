"""Modules of projection heads, imported when one is built."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from ._projection import Projection
from ._resnet_modules import BatchNorm, Mask


class Linear(nnx.Module):
    """Linear layer in the dtype of its input."""

    def __init__(self, n_in: int, n_out: int, has_bias: bool, rngs: nnx.Rngs):
        initial = nnx.initializers.lecun_normal()
        self.kernel = nnx.Param(initial(rngs.params(), (n_in, n_out)))
        self.has_bias = has_bias
        if has_bias:
            self.bias = nnx.Param(jnp.zeros(n_out))

    def __call__(self, x: Float[Array, "batch n_in"]) -> Array:
        """Returns outputs ``[batch, n_out]``."""
        out = x @ self.kernel[...].astype(x.dtype)
        return out + self.bias[...].astype(x.dtype)[None] if self.has_bias else out


class ProjectionModule(nnx.Module):
    """MLP with optional batch normalisation."""

    def __init__(self, settings: Projection, n_in: int, rngs: nnx.Rngs):
        self.n_layers = len(settings.widths)
        for layer, n_out in enumerate(settings.widths, 1):
            is_last = layer == self.n_layers
            has_norm = settings.last_norm if is_last else settings.norm
            has_bias = not has_norm and (settings.last_bias or not is_last)
            setattr(self, f"linear_{layer}", Linear(n_in, n_out, has_bias, rngs))
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
        """Returns ``x[:, :n_features]``.

        Raises:
          ValueError: If ``x`` has fewer features.
        """
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
