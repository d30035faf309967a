"""Configuration of a run on pairs: command-line flags, with their docstrings as help texts.

Flags of a loss or an encoder are declared by the loss or encoder.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from .. import _study_options as shared
from .._bert import BertOptions, WeightsOptions, check_bert
from .._ranges import (
    COUNT,
    MAX_COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Range,
    declared_ranges,
    option_group,
)
from .._registry import LEGACY_VALUE, with_flags
from .._schema import Schema
from ..images import _config as images
from ..images._config import EncoderOptions
from ..view_losses import PAIR_LOSSES

_DATA = (
    "digits, or a folder: with captions.tsv and images (Flickr8k), or with pairs.tsv and drawings "
    "(pictograms)."
)


@option_group
class DataOptions:
    """Source of images and texts."""

    data: Annotated[str, tyro.conf.arg(help=_DATA)] = "digits"
    image_size: Annotated[int | None, Range(4, 4096)] = None
    """Side length in pixels to resize images to; required if their sizes differ."""
    column: str | None = None
    """For pictograms: the column of the texts; by default label_en."""
    drawings: tuple[str, ...] = ()
    """For pictograms: the sets of drawings to read; by default all."""
    valid_fraction: Annotated[float | None, Range(0, 1, low_open=True, high_open=True)] = None
    """Validation fraction if the data have no predefined split; by default 0.1."""
    test_fraction: Annotated[float | None, Range(0, 1, low_open=True, high_open=True)] = None
    """Test fraction if the data have no predefined split; by default 0.2."""
    split_seed: Annotated[int, Range(0, MAX_COUNT)] = 0
    """Seed of the train/validation/test split."""


@option_group
class ViewOptions(images.ViewOptions):
    """Augmentation of training images; by default none."""

    crop: Annotated[float | None, Range(0, 1, low_open=True)] = 1.0
    """Minimum area fraction that a random crop keeps; 1 disables cropping."""
    flip: Annotated[float | None, SHARE] = 0.0
    """Probability of a horizontal flip. Avoid it for texts that mention left or right."""
    jitter: Annotated[float | None, Range(0, 2.5)] = 0.0
    """Strength of the colour jitter: brightness, contrast and saturation change by up to 0.8 times
    this value, the hue by 0.2 times it."""
    grey_p: Annotated[float | None, SHARE] = 0.0
    """Probability of conversion to greyscale."""
    blur_p: Annotated[float | None, SHARE] = 0.0
    """Probability of blurring."""


@option_group
class TextOptions(WeightsOptions):
    """Text encoder: a small BERT trained from scratch, or one with published weights."""

    length: Annotated[int | None, Range(3, 4096)] = None
    """Maximum number of tokens of a text; longer texts are truncated. By default the length of the
    longest training text, at most 32."""
    text_width: Annotated[int | None, COUNT] = None
    """Width of a text encoder without --weights; by default 64."""
    text_n_layers: Annotated[int | None, COUNT] = None
    """Number of layers of a text encoder without --weights; by default 2."""
    text_vocab_size: Annotated[int | None, Range(5, MAX_COUNT)] = None
    """Maximum vocabulary size of a text encoder without --weights; by default 2000."""
    text_heads: Annotated[int | None, COUNT] = None
    """Number of attention heads; by default 4, or with --weights that of their config.json."""
    text_dropout: Annotated[float | None, Range(0, 1, high_open=True)] = None
    """Dropout rate; by default 0.1, or with --weights that of their config.json."""

    @property
    def bert(self) -> BertOptions:
        """The same options, under the common names of text encoders."""
        own = {name: getattr(self, TEXT + name) for name in declared_ranges(BertOptions)}
        return BertOptions(self.weights, self.lowercase, **own)


TEXT = "text_"
"""Prefix of text flags whose names image flags also use."""


@option_group
class TrainOptions(shared.ContrastOptions):
    """Shared embedding space and optimiser."""

    batch_size: Annotated[int, Range(2, MAX_COUNT)] = 128
    """Number of pairs per step (B); each image or text has B - 1 negatives."""
    batches: Literal["device", "host", "disk"] = field(
        default="device", metadata={LEGACY_VALUE: "device"}
    )
    """Where the training images are held: in device memory; in host memory; or on disk, where the
    first run decodes them to the cache. Batches of the latter two are read and copied while the
    device computes."""
    epochs: Annotated[int, COUNT] = 10
    """Number of training epochs, which the schedule spans. There is no early stopping. An epoch
    uses each image once, with one of its texts."""
    dim: Annotated[int, COUNT] = 64
    """Dimension of the shared embedding space of images and texts."""
    temperature: Annotated[float | None, POSITIVE] = None
    """Initial temperature, which divides all cosines; by default 0.07, or 0.1 for siglip."""
    least_temperature: Annotated[float | None, NOT_NEGATIVE] = None
    """Lower bound of the learned temperature; by default 0.01, or 0 for siglip."""
    learn_temperature: bool = True
    """Whether to learn the temperature; False keeps it fixed."""
    exclude_equal: bool = False
    """Whether to exclude pairs that are known to be equal from the negatives."""


LossOptions = with_flags(shared.LossOptions, "loss", PAIR_LOSSES, default="clip")


@dataclass(frozen=True)
class Config:
    """Configuration of a run on pairs of images and texts."""

    source: DataOptions = DataOptions()
    views: ViewOptions = ViewOptions()
    objective: shared.LossOptions = LossOptions()
    encoding: shared.EncoderOptions = EncoderOptions()
    text: TextOptions = TextOptions()
    training: TrainOptions = TrainOptions()
    protocol: shared.SeedOptions = shared.SeedOptions()
    output: shared.OutputOptions = shared.OutputOptions()


def _check_together(config: Config) -> None:
    shared.check_search(config.protocol)
    text, training = config.text, config.training
    check_bert(text.bert, TEXT)
    if not training.learn_temperature and training.least_temperature is not None:
        raise ValueError(
            "--least-temperature is for one that is learned, got --learn-temperature False."
        )


SCHEMA = Schema(
    "pairs",
    Config,
    numbers=(*shared.NUMBERS, "temperature"),
    check=_check_together,
    renamed={
        "size": "image_size",
        "n_heads": "text_heads",
        "on_disk": "batches",
        "valid": "valid_fraction",
        "test": "test_fraction",
    },
)
