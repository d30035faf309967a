"""Residual networks for images."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from .._hyperparams import Range, check_fields
from ..kernels import Convolution

# Importing `flax.nnx` is slow, and only networks need it.
if TYPE_CHECKING:
    from flax import nnx

BLOCKS = {
    10: (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Number of blocks per stage, by depth."""

Stem = Literal["cifar", "imagenet"]
"""Layers before the first stage."""
Norm = Literal["batch", "group"]
"""Normalisation over a batch or over groups of channels of each image."""

EXPANSION = 4
"""Ratio of the output channels of a bottleneck to those of its 3 × 3 convolution."""


@dataclass(frozen=True)
class ResNet:
    r"""Configuration of a residual network, for ``models.Network(models.ResNet(18))``.

    The module maps images ``[batch, height, width, n_channels]`` to features
    ``[batch, n_features]``: a stem; stages of widths ``width`` · 1, 2, 4, …, all but the first of
    which halve the resolution; and global average pooling. A block is
    :math:`\mathrm{relu}(x + f(x))`, where f has two 3 × 3 convolutions or, in a bottleneck, 1 × 1,
    3 × 3 and 1 × 1, with the stride in the 3 × 3. It computes in the dtype of the images, and
    normalises in at least float32. An optional argument ``where``, ``[batch]``, excludes padded
    images from batch statistics.

    As in PyTorch, running averages have momentum 0.1 and that of the variance is unbiased.
    Convolutions are initialised by He's normal initializer, N(0, 2 / (k² · channels out)).

    Attributes:
      depth: 10, 18, 34, 50, 101 or 152; or a tuple of the number of blocks per stage.
      width: Channels of the first stage, >= 1.
      stem: ``"cifar"``: a 3 × 3 convolution; ``"imagenet"``: a 7 × 7 convolution of stride 2 and a
        3 × 3 max pooling of stride 2.
      norm: ``"batch"`` or ``"group"``.
      groups: Groups of channels if ``norm`` is ``"group"``; must divide ``width``.
      n_channels: Channels of images, >= 1.
      bottleneck: Whether blocks are bottlenecks; by default for depths of 50 and more.
      zero_init_residual: Whether to initialise the last scale of f to 0, the block to the identity.
      convolution: Implementation of convolutions, see :data:`Convolution`.

    Raises:
      ValueError: If a value is out of range.

    References:
      He et al., `Deep Residual Learning for Image Recognition <https://arxiv.org/abs/1512.03385>`_,
      2016, table 1; He et al., `Delving Deep into Rectifiers <https://arxiv.org/abs/1502.01852>`_,
      2015, Eq. 14; Wu and He, `Group Normalization <https://arxiv.org/abs/1803.08494>`_, 2018.
    """

    depth: int | tuple[int, ...] = 18
    width: Annotated[int, Range(1)] = 64
    stem: Stem = "cifar"
    norm: Norm = "batch"
    groups: Annotated[int, Range(1)] = 32
    n_channels: Annotated[int, Range(1)] = 3
    bottleneck: bool | None = None
    zero_init_residual: bool = False
    convolution: Convolution = "auto"

    def __post_init__(self):
        if isinstance(self.depth, int) and self.depth not in BLOCKS:
            raise ValueError(
                f"`depth` must be one of {', '.join(map(str, BLOCKS))} or the blocks of each "
                f"stage, got {self.depth}."
            )
        if not self.blocks or min(self.blocks) < 1:
            raise ValueError(f"`depth` must have a block in each stage, got {self.depth}.")
        check_fields(self)
        if self.norm == "group" and self.width % self.groups:
            raise ValueError(f"`groups` must divide `width`, {self.width}, got {self.groups}.")

    @property
    def blocks(self) -> tuple[int, ...]:
        """Number of blocks per stage."""
        return BLOCKS[self.depth] if isinstance(self.depth, int) else self.depth

    @property
    def has_bottlenecks(self) -> bool:
        """Whether blocks are bottlenecks."""
        if self.bottleneck is None:
            return isinstance(self.depth, int) and self.depth >= 50
        return self.bottleneck

    @property
    def n_features(self) -> int:
        """Dimension of the features."""
        return self.width * 2 ** (len(self.blocks) - 1) * (EXPANSION if self.has_bottlenecks else 1)

    def __call__(self, rngs: "nnx.Rngs") -> Any:
        """Builds the module."""
        from ._resnet_modules import ResNetModule

        return ResNetModule(self, rngs)
