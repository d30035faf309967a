"""Projection heads between a backbone's features and a loss."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

# Importing `flax.nnx` is slow, and only networks need it.
if TYPE_CHECKING:
    from flax import nnx


@dataclass(frozen=True)
class Projection:
    r"""Configuration of an MLP head, the g in :math:`z = g(f(x))`.

    The module maps ``[batch, n_in]`` to ``[batch, widths[-1]]`` by linear layers with ReLU between
    them. Layers followed by batch normalisation have no bias. Kernels are initialised by LeCun's
    truncated normal initializer, biases by 0. The module takes an optional ``where``, as
    :class:`ResNet` does.

    ===================================== ==============================================
    published head                        configuration
    ===================================== ==============================================
    SimCLR                                ``Projection((512, 128), norm=False)``
    BCL, DCL and HCL                      ``Projection((512, 128))``
    MoCo v2, of a ResNet-50               ``Projection((2048, 128), norm=False)``
    BYOL, projector and predictor         ``Projection((4096, 256), last_bias=False)``
    SimSiam, projector                    ``Projection((2048,) * 3, last_norm=True)``
    ===================================== ==============================================

    Attributes:
      widths: Output dimension of each layer; the last is that of the embeddings.
      norm: Whether batch normalisation follows all layers but the last.
      last_norm: Whether it also follows the last layer.
      last_bias: Whether the last layer has a bias if it is not normalised.
      n_in: Dimension of the features; :class:`BackboneWithHead` sets it to ``n_features`` of
        the backbone.

    Raises:
      ValueError: If a width is below 1, or ``n_in`` is None when the module is built.

    References:
      Chen et al., `A Simple Framework for Contrastive Learning of Visual Representations
      <https://arxiv.org/abs/2002.05709>`_, 2020, section 2.1; Chen et al., `Improved Baselines with
      Momentum Contrastive Learning <https://arxiv.org/abs/2003.04297>`_, 2020; Grill et al.,
      `Bootstrap Your Own Latent <https://arxiv.org/abs/2006.07733>`_, 2020, section 3.3.
    """

    widths: tuple[int, ...] = (512, 128)
    norm: bool = True
    last_norm: bool = False
    last_bias: bool = True
    n_in: int | None = None

    def __post_init__(self):
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"`widths` must be one or more, each at least 1, got {self.widths}.")
        if self.n_in is not None and self.n_in < 1:
            raise ValueError(f"`n_in` must be at least 1, got {self.n_in}.")

    @property
    def n_features(self) -> int:
        """Dimension of the embeddings."""
        return self.widths[-1]

    def __call__(self, rngs: "nnx.Rngs") -> Any:
        """Builds the module."""
        from ._projection_modules import ProjectionModule

        if self.n_in is None:
            raise ValueError("`n_in` must be given if the backbone has no attribute `n_features`.")
        return ProjectionModule(self, self.n_in, rngs)


@dataclass(frozen=True)
class FeatureSlice:
    """Head without parameters that returns the first features.

    Attributes:
      n_features: Number of features :math:`d_0`, >= 1.

    Raises:
      ValueError: If it is below 1, or above the dimension of the features when called.

    References:
      Jing et al., `Understanding Dimensional Collapse in Contrastive Self-supervised Learning
      <https://arxiv.org/abs/2110.09348>`_, 2022, section 6 (DirectCLR).
    """

    n_features: int

    def __post_init__(self):
        if self.n_features < 1:
            raise ValueError(f"`n_features` must be at least 1, got {self.n_features}.")

    def __call__(self, rngs: "nnx.Rngs") -> Any:
        """Builds the module."""
        from ._projection_modules import FeatureSliceModule

        del rngs  # nothing is random
        return FeatureSliceModule(self.n_features)


@dataclass(frozen=True)
class BackboneWithHead:
    """Backbone with a projection head: the loss uses embeddings, downstream tasks use features.

    The module returns ``head(backbone(x))``; its method ``features`` returns ``backbone(x)``:
    ``network.apply(params, rest, x, method="features")``. An additional argument ``where`` is
    passed to both.

    Attributes:
      backbone: Builds the module of features, such as :class:`ResNet`.
      head: Builds the module of embeddings, such as :class:`Projection`. An ``n_in`` of None is
        replaced by the ``n_features`` of the backbone.
    """

    backbone: Callable[["nnx.Rngs"], Any]
    head: Callable[["nnx.Rngs"], Any]

    @property
    def n_features(self) -> int:
        """Dimension of the embeddings, if the head has ``n_features``."""
        return self.head.n_features  # pyright: ignore[reportFunctionMemberAccess]

    def __call__(self, rngs: "nnx.Rngs") -> Any:
        """Builds the module."""
        from ._projection_modules import BackboneWithHeadModule

        head: Any = self.head
        if getattr(head, "n_in", 0) is None:
            head = replace(head, n_in=getattr(self.backbone, "n_features", None))
        return BackboneWithHeadModule(self.backbone(rngs), head(rngs))
