"""The configuration of a run on pairs: its flags, whose docstrings are the help.

Flags of a loss or an encoder are declared by the loss or encoder.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import tyro

from .. import _study_options as shared
from .._bert import BertOptions, WeightsOptions, check_bert
from .._ranges import COUNT, MOST, NOT_NEGATIVE, POSITIVE, SHARE, Range, declared_ranges
from .._registry import with_flags
from .._schema import Schema, absolute
from ..images import _config as images
from ..images._config import EncoderOptions
from ..images.encoders import EncoderOptions as ImageOptions
from .losses import LOSSES

_DATA = (
    "digits, or a folder: with captions.tsv and images (Flickr8k), or with pairs.tsv and drawings "
    "(pictograms)."
)


@dataclass(frozen=True)
class DataOptions:
    """Where images and texts come from."""

    data: Annotated[str, tyro.conf.arg(help=_DATA)] = "digits"
    image_size: Annotated[int | None, Range(4, 4096)] = None
    """Resize images to so many pixels a side; needed where they differ in size."""
    column: str | None = None
    """Of pictograms: the column that has the texts; label_en."""
    drawings: tuple[str, ...] = ()
    """Of pictograms: whose drawings are read; by default all."""
    valid: Annotated[float | None, Range(0, 1, low_open=True, high_open=True)] = None
    """Share for validation, where the source has no parts: 0.1."""
    test: Annotated[float | None, Range(0, 1, low_open=True, high_open=True)] = None
    """Share for testing, where the source has no parts: 0.2."""
    split_seed: Annotated[int, Range(0, MOST)] = 0
    """Seed of the draw of the parts."""


@dataclass(frozen=True)
class ViewOptions(images.ViewOptions):
    """What is done to an image each time that it is learned from; by default nothing."""

    crop: Annotated[float | None, Range(0, 1, low_open=True)] = 1.0
    """Least share of the image that a random crop keeps; 1 keeps all of it."""
    flip: Annotated[float | None, SHARE] = 0.0
    """How often an image is turned left to right. Mind texts that tell left from right."""
    jitter: Annotated[float | None, Range(0, 2.5)] = 0.0
    """Strength of the colour jitter: brightness, contrast and saturation change by up to 0.8 times
    it, the hue by 0.2 times it."""
    grey_p: Annotated[float | None, SHARE] = 0.0
    """How often an image is made grey."""
    blur_p: Annotated[float | None, SHARE] = 0.0
    """How often an image is blurred."""


@dataclass(frozen=True)
class TextOptions(WeightsOptions):
    """What makes features of a text: a BERT, small and from scratch, or with published weights."""

    length: Annotated[int | None, Range(3, 4096)] = None
    """Tokens of a text; what is longer loses its end. By default those of the longest text of the
    training part, but 32 at most."""
    text_width: Annotated[int | None, COUNT] = None
    """Width of an encoder without --weights; 64."""
    text_n_layers: Annotated[int | None, COUNT] = None
    """Its layers; 2."""
    text_vocab_size: Annotated[int | None, Range(5, MOST)] = None
    """Pieces in its vocabulary at most; 2000."""
    text_heads: Annotated[int | None, COUNT] = None
    """Heads of attention: 4; of --weights what their config.json says."""
    text_dropout: Annotated[float | None, Range(0, 1, high_open=True)] = None
    """Share that dropout leaves out: 0.1, or what config.json says."""

    @property
    def bert(self) -> BertOptions:
        """The same by the names of every encoder of texts."""
        own = {name: getattr(self, TEXT + name) for name in declared_ranges(BertOptions)}
        return BertOptions(self.weights, self.lowercase, **own)


TEXT = "text_"
"""What the names of flags begin with that images have, too."""


@dataclass(frozen=True)
class TrainOptions(shared.OptimizerOptions):
    """Shared space and optimiser."""

    batch_size: Annotated[int, Range(2, MOST)] = 128
    """Pairs per step (B); a half has B - 1 negatives."""
    epochs: Annotated[int, COUNT] = 10
    """Length of the training, which the schedule spans. No run ends earlier. An epoch takes each
    image once, with one of its texts."""
    dim: Annotated[int, COUNT] = 64
    """Width of the space that images and texts are embedded in."""
    temperature: Annotated[float | None, POSITIVE] = None
    """Divides all cosines, at the start: 0.07, of siglip 0.1."""
    least_temperature: Annotated[float | None, NOT_NEGATIVE] = None
    """Where it stops falling: 0.01, of siglip 0."""
    learn_temperature: bool = True
    """Whether it is learned; False keeps it."""
    exclude_equal: bool = False
    """Whether what is known to be equal is left out of the negatives."""
    tile: Annotated[int | None, COUNT] = None
    """Anchors whose scores are held at a time, for large batches; by default all."""


LossOptions = with_flags(shared.LossOptions, "loss", LOSSES, default="clip")


@dataclass(frozen=True)
class Config:
    """One run on pairs of images and texts."""

    source: DataOptions = DataOptions()
    views: ViewOptions = ViewOptions()
    objective: shared.LossOptions = LossOptions()
    encoding: ImageOptions = EncoderOptions()
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
    renamed={"size": "image_size", "n_heads": "text_heads"},
)


def anchor(config: Config) -> Config:
    """The configuration with absolute paths, which hold in every working directory."""
    source = absolute(config.source, "data", but=("digits",))
    return replace(config, source=source, text=absolute(config.text, "weights"))
