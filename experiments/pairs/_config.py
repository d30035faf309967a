"""The configuration of a run on pairs: what flags and files may say."""

from dataclasses import dataclass, replace
from pathlib import Path

from .. import _study_options as shared
from .._bert import check_bert
from .._flags import flags_of
from .._registry import with_flags
from .._schema import Schema
from .._study_options import NUMBERS, OutputOptions, SeedOptions, check_search
from ..images._config import EncoderOptions
from ..images.encoders import ENCODERS
from ..images.encoders import EncoderOptions as ImageOptions
from ._options import TEXT, DataOptions, TextOptions, TrainOptions, ViewOptions
from .losses import LOSSES

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
    protocol: SeedOptions = SeedOptions()
    output: OutputOptions = OutputOptions()


def _check_together(config: Config) -> None:
    check_search(config.protocol)
    text, training = config.text, config.training
    check_bert(text.bert, TEXT)
    if not training.learn_temperature and training.least_temperature is not None:
        raise ValueError(
            "--least-temperature is for one that is learned, got --learn-temperature False."
        )


SCHEMA = Schema(
    "pairs",
    Config,
    choices=(("objective", "loss", LOSSES), ("encoding", "encoder", ENCODERS)),
    numbers=(*NUMBERS, "temperature"),
    check=_check_together,
)
FLAGS = flags_of(
    SCHEMA,
    renamed={
        "learning_rate": "lr", "source": "data", "size": "image_size", "n_heads": "text_heads",
    },
)  # fmt: skip
"""The flag by the name of the argument that it sets."""


def anchor(config: Config) -> Config:
    """The configuration with absolute paths, which hold in every working directory."""
    source, text = config.source, config.text
    if source.data != "digits":
        source = replace(source, data=str(Path(source.data).absolute()))
    if text.weights is not None:
        text = replace(text, weights=str(Path(text.weights).absolute()))
    return replace(config, source=source, text=text)
