"""Heads between an encoder's features and a loss, as settings that build Flax NNX modules."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

# Flax takes long to import, and only networks need it.
if TYPE_CHECKING:
    from flax import nnx


@dataclass(frozen=True)
class Projection:
    r"""Linear layers with ReLU between them: g in :math:`z = g(f(x))`.

    The module maps ``[batch, n_in]`` to ``[batch, widths[-1]]``. A layer that a norm follows has no
    bias, as the norm has one. Kernels start from LeCun's normal values, N(0, 1 / channels in), cut
    off at two deviations, and biases from 0. In training it may be called with ``where``, as
    :class:`ResNet`.

    ===================================== ==============================================
    published head                        settings
    ===================================== ==============================================
    SimCLR                                ``Projection((512, 128), norm=False)``
    BCL, DCL and HCL                      ``Projection((512, 128))``
    MoCo v2, of a ResNet-50               ``Projection((2048, 128), norm=False)``
    BYOL, projector and predictor         ``Projection((4096, 256), last_bias=False)``
    SimSiam, projector                    ``Projection((2048,) * 3, last_norm=True)``
    ===================================== ==============================================

    Attributes:
      widths: Width of each layer, the last of which is that of the embeddings.
      norm: Whether batch normalisation follows all layers but the last.
      last_norm: Whether it follows the last layer, too.
      last_bias: Whether the last layer has a bias, where no norm follows it.
      n_in: Width of the features. :class:`BackboneWithHead` knows it of a backbone that has
        ``n_features``.

    Raises:
      ValueError: If a width is below 1, or ``n_in`` is missing where the module is built.

    References:
      Chen et al., `A Simple Framework for Contrastive Learning of Visual Representations
      <https://arxiv.org/abs/2002.05709>`_, 2020, section 2.1; Chen et al., `Improved Baselines with
      Momentum Contrastive Learning <https://arxiv.org/abs/2003.04297>`_, 2020; Grill et al.,
      `BYOLState Your Own Latent <https://arxiv.org/abs/2006.07733>`_, 2020, section 3.3.
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
        """Width of the embeddings."""
        return self.widths[-1]

    def __call__(self, rngs: "nnx.Rngs") -> Any:
        """The module."""
        from ._projection_modules import ProjectionModule

        if self.n_in is None:
            raise ValueError(
                "`n_in` must be given: the backbone has no `n_features` that would tell it."
            )
        return ProjectionModule(self, self.n_in, rngs)


@dataclass(frozen=True)
class FeatureSlice:
    """The first features as they are: a head without parameters.

    Attributes:
      n_features: How many, the :math:`d_0`, >= 1.

    Raises:
      ValueError: If it is below 1, or above the width of the features where they come.

    References:
      Jing et al., `Understanding Dimensional Collapse in Contrastive Self-supervised Learning
      <https://arxiv.org/abs/2110.09348>`_, 2022, section 6 (DirectCLR).
    """

    n_features: int

    def __post_init__(self):
        if self.n_features < 1:
            raise ValueError(f"`n_features` must be at least 1, got {self.n_features}.")

    def __call__(self, rngs: "nnx.Rngs") -> Any:
        """The module."""
        from ._projection_modules import FeatureSliceModule

        del rngs  # nothing is random
        return FeatureSliceModule(self.n_features)


@dataclass(frozen=True)
class BackboneWithHead:
    """A backbone with a head: losses see the head's embeddings, all else the backbone's features.

    The module gives head(backbone(x)) where it is called, and backbone(x) as its method
    ``features``: ``network.apply(params, rest, x, method="features")``. What is called with
    ``where`` beside the images hands it on to both.

    Attributes:
      backbone: Makes the module of features, such as :class:`ResNet`.
      head: Makes the module of embeddings, such as :class:`Projection`. If it has an ``n_in`` that
        is None, that becomes the ``n_features`` of the backbone.
    """

    backbone: Callable[["nnx.Rngs"], Any]
    head: Callable[["nnx.Rngs"], Any]

    @property
    def n_features(self) -> int:
        """Width of the embeddings, if the head tells it."""
        return self.head.n_features  # pyright: ignore[reportFunctionMemberAccess]

    def __call__(self, rngs: "nnx.Rngs") -> Any:
        """The module."""
        from ._projection_modules import BackboneWithHeadModule

        head: Any = self.head
        if getattr(head, "n_in", 0) is None:
            head = replace(head, n_in=getattr(self.backbone, "n_features", None))
        return BackboneWithHeadModule(self.backbone(rngs), head(rngs))
