"""Configuration of a run on images: command-line flags, with their docstrings as help texts.

Flags of a method, a loss or an encoder are declared by the method, loss or encoder.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from .. import _study_options as shared
from .._ranges import COUNT, MAX_COUNT, POSITIVE, SHARE, Range, option_group
from .._registry import LEGACY_VALUE, with_flags
from .._schema import Schema
from ..backbones import IMAGE_ENCODERS
from ..view_losses import IMAGE_LOSSES
from .methods import METHODS

_DATA = (
    "digits, cifar10, cifar100, stl10, tiny-imagenet, tfds:NAME, or a folder or archive of class "
    "folders, of one of these binary releases, or of images without labels."
)


@option_group
class DataOptions:
    """Source and number of images."""

    data: Annotated[str, tyro.conf.arg(help=_DATA)] = "digits"
    labels: bool = field(default=True, metadata={LEGACY_VALUE: True})
    """Whether to read labels. Without labels, folders may have any names, and the evaluation uses
    only the views of images."""
    image_size: Annotated[int | None, Range(4, 4096)] = None
    """Side length in pixels to resize images to; required if their sizes differ."""
    train_images: Annotated[int | None, Range(10, MAX_COUNT)] = None
    """Number of training images to use, sampled evenly across classes; by default all."""
    test_images: Annotated[int | None, Range(10, MAX_COUNT)] = None
    """Number of test images to use, sampled evenly across classes; by default all."""
    valid_fraction: Annotated[float | None, Range(0, 1, low_open=True, high_open=True)] = None
    """Fraction of the training images held out to select the best point of a --sweep; by default
    0.1. The final training uses them too."""
    split_seed: Annotated[int, Range(0, MAX_COUNT)] = 0
    """Seed of the image sampling and of the validation split."""


@option_group
class ViewOptions:
    """Augmentation that produces two views of an image. Defaults depend on the images."""

    view_size: Annotated[int | None, Range(4, 4096)] = None
    """Side length of a view in pixels; by default that of the images."""
    eval_size: Annotated[int | None, Range(4, 4096)] = None
    """Side length of images in pixels at evaluation; by default that of a view."""
    crop: Annotated[float | None, Range(0, 1, low_open=True)] = None
    """Minimum area fraction that a crop keeps; by default 0.08, or 0.5 for grey images."""
    flip: Annotated[float | None, SHARE] = None
    """Probability of a horizontal flip; by default 0.5, or 0 for grey images."""
    jitter: Annotated[float | None, Range(0, 2.5)] = None
    """Strength of the colour jitter: brightness, contrast and saturation change by up to 0.8 times
    this value, the hue by 0.2 times it; by default 0.5."""
    jitter_p: Annotated[float | None, SHARE] = None
    """Probability of colour jitter; by default 0.8."""
    grey_p: Annotated[float | None, SHARE] = None
    """Probability of conversion to greyscale; by default 0.2."""
    blur_p: Annotated[float | None, SHARE] = None
    """Probability of blurring; by default 0.5, or 0 for images smaller than 16 pixels."""
    rotation: Annotated[float, Range(0, 180)] = field(default=30.0, metadata={LEGACY_VALUE: 30.0})
    """Maximum angle of a rotation in degrees, in both directions."""
    rotation_p: Annotated[float, SHARE] = field(default=0.0, metadata={LEGACY_VALUE: 0.0})
    """Probability of a rotation."""
    cutout: Annotated[float, SHARE] = field(default=0.5, metadata={LEGACY_VALUE: 0.5})
    """Side of the square that cutout sets to the mean, relative to that of a view."""
    cutout_p: Annotated[float, SHARE] = field(default=0.0, metadata={LEGACY_VALUE: 0.0})
    """Probability of cutout."""
    noise: Annotated[float, Range(0, 1)] = field(default=0.1, metadata={LEGACY_VALUE: 0.1})
    """Maximum standard deviation of Gaussian noise; values of pixels lie in [0, 1]."""
    noise_p: Annotated[float, SHARE] = field(default=0.0, metadata={LEGACY_VALUE: 0.0})
    """Probability of Gaussian noise."""
    mean: Annotated[tuple[float, ...] | None, SHARE] = None
    """Mean to subtract from each channel, whose values lie in [0, 1]; by default that of the
    training images."""
    std: Annotated[tuple[float, ...] | None, POSITIVE] = None
    """Standard deviation to divide each channel by; by default that of the training images."""


@option_group
class TrainOptions(shared.ContrastOptions):
    """Projection head and optimiser."""

    batch_size: Annotated[int, Range(2, MAX_COUNT)] = 128
    """Number of images per step (B); a view has 2B - 2 negatives."""
    batches: Literal["device", "host", "disk"] = field(
        default="device", metadata={LEGACY_VALUE: "device"}
    )
    """Where the training images are held: in device memory; in host memory; or on disk, where the
    first run decodes them to the cache. Batches of the latter two are read and copied while the
    device computes."""
    temperature: Annotated[float, POSITIVE] = 0.5
    """Temperature, which divides all cosine similarities."""
    head: Annotated[tuple[int, ...], COUNT] = (512, 128)
    """Widths of the projection head: hidden layers, then the embedding."""


@option_group
class ProtocolOptions(shared.SeedOptions):
    """Seeds, hyper-parameter search and evaluation."""

    neighbours: Annotated[int, COUNT] = 200
    """Number of neighbours for the kNN accuracy, capped at a tenth of the images."""
    knn_temperature: Annotated[float, POSITIVE] = 0.1
    """Temperature of the kNN vote, which divides the cosine similarities."""
    probe: Literal["fast", "published", "both"] = "fast"
    """Linear classifier of the test: fast is fitted to convergence on features of unaugmented
    images, with the L2 strength selected within the training part; published is trained for
    --probe-epochs on features of crops and flips."""
    probe_epochs: Annotated[int, COUNT] = 100
    """Number of epochs of the published linear evaluation."""


MethodOptions = with_flags(shared.MethodOptions, "method", METHODS, default="simclr")
LossOptions = with_flags(shared.LossOptions, "loss", IMAGE_LOSSES)
EncoderOptions = with_flags(shared.EncoderOptions, "encoder", IMAGE_ENCODERS, default="resnet10")


@dataclass(frozen=True)
class Config:
    """Configuration of a run on images."""

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
        methods = ", ".join(name for name, entry in METHODS.items() if entry.takes_loss)
        raise ValueError(
            f"--method {config.method.method} has its own loss; --loss and its numbers are for "
            f"{methods}."
        )


SCHEMA = Schema(
    "images",
    Config,
    numbers=(*shared.NUMBERS, "temperature"),
    check=_check_together,
    renamed={
        "size": "image_size",
        "k": "neighbours",
        "on_disk": "batches",
        "valid": "valid_fraction",
    },
)
