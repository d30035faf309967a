"""The configuration of a run on images: what flags and files may say."""

from dataclasses import dataclass, replace
from pathlib import Path

from crl_jax.data import IMAGE_SETS

from .. import _study_options as shared
from .._flags import flags_of
from .._registry import with_flags
from .._schema import Schema
from .._study_options import NUMBERS, OutputOptions, check_search
from ..view_losses import LOSSES
from ._options import DataOptions, ProtocolOptions, TrainOptions, ViewOptions
from .encoders import ENCODERS
from .methods import METHODS

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
    output: OutputOptions = OutputOptions()


def _check_together(config: Config) -> None:
    check_search(config.protocol)
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
    choices=(
        ("method", "method", METHODS),
        ("objective", "loss", LOSSES),
        ("encoding", "encoder", ENCODERS),
    ),
    numbers=(*NUMBERS, "temperature"),
    check=_check_together,
)
FLAGS = flags_of(
    SCHEMA,
    renamed={"learning_rate": "lr", "source": "data", "size": "image_size", "k": "neighbours"},
)
"""The flag by the name of the argument that it sets."""


def anchor(config: Config) -> Config:
    """The configuration with an absolute path, which holds in every working directory."""
    source = config.source
    if source.data in ("digits", *IMAGE_SETS) or source.data.startswith("tfds:"):
        return config
    return replace(config, source=replace(source, data=str(Path(source.data).absolute())))
