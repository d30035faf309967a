"""Residual networks of images, as settings that build Flax NNX modules."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ._convolution import Convolution

# Flax takes long to import, and only networks need it.
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
"""The blocks in each stage, by the number of layers with weights."""

Stem = Literal["cifar", "imagenet"]
"""The layers before the first stage."""
Norm = Literal["batch", "group"]
"""What the activations are normalised over: a batch, or groups of channels of each image."""

EXPANSION = 4
"""How many times wider the output of a bottleneck is than its 3 × 3 convolution."""


@dataclass(frozen=True)
class ResNet:
    r"""A residual network: ``models.Network(models.ResNet(18))`` maps images to features.

    The module maps images ``[batch, height, width, n_channels]`` to features
    ``[batch, n_features]``: a stem; stages of widths ``width`` · 1, 2, 4, 8, … of which all but the
    first halve the image; and the mean over all places. A block is
    :math:`\mathrm{relu}(x + f(x))`, where f has two 3 × 3 convolutions or, in a bottleneck, 1 × 1,
    3 × 3 and 1 × 1, with the stride in the 3 × 3. It computes in the type of its images; means,
    variances and what follows from them are float32. In training, it may be called with
    ``where``, ``[batch]``: images that are False there do not enter the statistics of a batch.

    As in PyTorch, running averages move by a tenth in each step, and that of the variance is
    unbiased. Convolutions start from He's normal values, N(0, 2 / (k² · channels out)).

    Attributes:
      depth: 10, 18, 34, 50, 101 or 152; or the number of blocks in each stage.
      width: Channels of the first stage, >= 1.
      stem: ``"cifar"``: a 3 × 3 convolution; ``"imagenet"``: a 7 × 7 convolution of stride 2 and a
        3 × 3 max pooling of stride 2.
      norm: ``"batch"`` or ``"group"``.
      groups: Groups of channels where ``norm`` is ``"group"``; must divide ``width``.
      n_channels: Channels of an image, >= 1.
      bottleneck: Whether blocks are bottlenecks; by default those of depth 50 and more are.
      zero_init_residual: Whether each block starts as the identity: the last scale in f is 0.
      convolution: How convolutions are computed, see :data:`Convolution`.

    Raises:
      ValueError: If a setting is out of range.

    References:
      He et al., `Deep Residual Learning for Image Recognition <https://arxiv.org/abs/1512.03385>`_,
      2016, table 1; He et al., `Delving Deep into Rectifiers <https://arxiv.org/abs/1502.01852>`_,
      2015, Eq. 14; Wu and He, `Group Normalization <https://arxiv.org/abs/1803.08494>`_, 2018.
    """

    depth: int | tuple[int, ...] = 18
    width: int = 64
    stem: Stem = "cifar"
    norm: Norm = "batch"
    groups: int = 32
    n_channels: int = 3
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
        for name in ("width", "n_channels", "groups"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        for name, allowed in (("stem", Stem), ("norm", Norm), ("convolution", Convolution)):
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(
                    f"`{name}` must be one of {', '.join(get_args(allowed))}, "
                    f"got {getattr(self, name)!r}."
                )
        if self.norm == "group" and self.width % self.groups:
            raise ValueError(f"`groups` must divide `width`, {self.width}, got {self.groups}.")

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks in each stage."""
        return BLOCKS[self.depth] if isinstance(self.depth, int) else self.depth

    @property
    def has_bottlenecks(self) -> bool:
        """Whether blocks are bottlenecks."""
        if self.bottleneck is None:
            return isinstance(self.depth, int) and self.depth >= 50
        return self.bottleneck

    @property
    def n_features(self) -> int:
        """Width of the features."""
        return self.width * 2 ** (len(self.blocks) - 1) * (EXPANSION if self.has_bottlenecks else 1)

    def __call__(self, rngs: "nnx.Rngs") -> Any:
        """The module."""
        from ._resnet_modules import ResNetModule

        return ResNetModule(self, rngs)
