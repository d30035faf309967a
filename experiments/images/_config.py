"""The configuration of a run on images: its flags, whose docstrings are the help.

Flags of a method, a loss or an encoder are declared by the method, loss or encoder.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import tyro

from crl_jax.data import IMAGE_SETS

from .. import _study_options as shared
from .._ranges import COUNT, MOST, POSITIVE, SHARE, Range
from .._registry import with_flags
from .._schema import WAS, Schema, absolute
from ..view_losses import LOSSES
from .encoders import ENCODERS
from .methods import METHODS

_DATA = (
    "digits, cifar10, cifar100, stl10, tiny-imagenet, tfds:NAME, or a folder or archive of class "
    "folders, of one of these binary releases, or of images without labels."
)


@dataclass(frozen=True)
class DataOptions:
    """Where the images come from, and how many are used."""

    data: Annotated[str, tyro.conf.arg(help=_DATA)] = "digits"
    labels: bool = field(default=True, metadata={WAS: True})
    """Whether labels are read. Without them, folders may have any names, and images are judged by
    their views alone."""
    image_size: Annotated[int | None, Range(4, 4096)] = None
    """Resize images to so many pixels a side; needed where they differ in size."""
    train_images: Annotated[int | None, Range(10, MOST)] = None
    """Learn from so many images of the training part, drawn evenly by class; by default all."""
    test_images: Annotated[int | None, Range(10, MOST)] = None
    """Judge by so many images of the test part, drawn evenly by class; by default all."""
    valid: Annotated[float | None, Range(0, 1, low_open=True, high_open=True)] = None
    """Share of the training images that a --sweep is decided on; by default 0.1. The final training
    learns from them too."""
    split_seed: Annotated[int, Range(0, MOST)] = 0
    """Seed of these draws."""


@dataclass(frozen=True)
class ViewOptions:
    """How two views of an image are made. What is left out depends on the images."""

    view_size: Annotated[int | None, Range(4, 4096)] = None
    """Pixels of a view a side; by default those of the images."""
    judged_size: Annotated[int | None, Range(4, 4096)] = None
    """Pixels a side of images as they are judged; by default those of a view."""
    crop: Annotated[float | None, Range(0, 1, low_open=True)] = None
    """Least share of the image that a crop keeps: 0.08, or 0.5 of grey images."""
    flip: Annotated[float | None, SHARE] = None
    """How often a view is turned left to right: 0.5, or never in grey images."""
    jitter: Annotated[float | None, Range(0, 2.5)] = None
    """Strength of the colour jitter: brightness, contrast and saturation change by up to 0.8 times
    it, the hue by 0.2 times it; 0.5."""
    jitter_p: Annotated[float | None, SHARE] = None
    """How often colours are jittered: 0.8."""
    grey_p: Annotated[float | None, SHARE] = None
    """How often a view is made grey: 0.2."""
    blur_p: Annotated[float | None, SHARE] = None
    """How often a view is blurred: 0.5, or never in images of less than 16 pixels."""
    mean: Annotated[tuple[float, ...] | None, SHARE] = None
    """What is subtracted from each channel, whose values lie in [0, 1]: the mean of the training
    images."""
    std: Annotated[tuple[float, ...] | None, POSITIVE] = None
    """What each channel is then divided by: their standard deviation."""


@dataclass(frozen=True)
class TrainOptions(shared.OptimizerOptions):
    """Projection head and optimiser."""

    batch_size: Annotated[int, Range(2, MOST)] = 128
    """Images per step (B); a view has 2B - 2 negatives."""
    temperature: Annotated[float, POSITIVE] = 0.5
    """Divides all cosines."""
    head: Annotated[tuple[int, ...], COUNT] = (512, 128)
    """Widths of the projection head: hidden layers, and the embedding."""


@dataclass(frozen=True)
class ProtocolOptions(shared.SeedOptions):
    """Seeds, search and judging."""

    neighbours: Annotated[int, COUNT] = 200
    """Neighbours that vote in the kNN accuracy; no more than a tenth of the images do."""
    knn_temperature: Annotated[float, POSITIVE] = 0.1
    """Divides the neighbours' cosines."""
    probe: Literal["fast", "published", "both"] = "fast"
    """The linear classifier of the test: fast is fitted to its optimum on the features of images as
    they are, its strength of L2 chosen within the training part; published is trained for
    --probe-epochs on features of crops and flips."""
    probe_epochs: Annotated[int, COUNT] = 100
    """Epochs of the published linear evaluation."""


MethodOptions = with_flags(shared.MethodOptions, "method", METHODS, default="simclr")
LossOptions = with_flags(shared.LossOptions, "loss", LOSSES)
EncoderOptions = with_flags(shared.EncoderOptions, "encoder", ENCODERS, default="resnet10")


@dataclass(frozen=True)
class Config:
    """One run on images."""

    source: DataOptions = DataOptions()
    views: ViewOptions = ViewOptions()
    method: shared.MethodOptions = MethodOptions()
    objective: shared.LossOptions = LossOptions()
    encoding: shared.EncoderOptions = EncoderOptions()
    training: TrainOptions = TrainOptions()
    protocol: ProtocolOptions = ProtocolOptions()
    output: shared.OutputOptions = shared.OutputOptions()


def _check_together(config: Config) -> None:
    shared.check_search(config.protocol)
    method = METHODS[config.method.method]
    if not method.takes_loss and config.objective != LossOptions():
        takers = ", ".join(name for name, of in METHODS.items() if of.takes_loss)
        raise ValueError(
            f"--method {config.method.method} has its own loss; --loss and its numbers are for "
            f"{takers}."
        )


SCHEMA = Schema(
    "images",
    Config,
    numbers=(*shared.NUMBERS, "temperature"),
    check=_check_together,
    renamed={"size": "image_size", "k": "neighbours"},
)


def anchor(config: Config) -> Config:
    """The configuration with an absolute path, which holds in every working directory."""
    named = ("digits", *IMAGE_SETS)
    return replace(config, source=absolute(config.source, "data", but=named))
