"""The configuration of a run on graphs: what flags and files may say."""

from dataclasses import dataclass, replace
from pathlib import Path

from .. import _study_options as shared
from .._flags import flags_of
from .._registry import with_flags
from .._schema import Schema
from .._study_options import NUMBERS, OutputOptions, check_search
from ..view_losses import LOSSES
from ._options import DataOptions, ProtocolOptions, TrainOptions, ViewOptions
from .encoders import ENCODERS

LossOptions = with_flags(shared.LossOptions, "loss", LOSSES, default="decoupled")
EncoderOptions = with_flags(shared.EncoderOptions, "encoder", ENCODERS, default="gin")


@dataclass(frozen=True)
class Config:
    """One run on graphs."""

    source: DataOptions = DataOptions()
    views: ViewOptions = ViewOptions()
    objective: shared.LossOptions = LossOptions()
    encoding: shared.EncoderOptions = EncoderOptions()
    training: TrainOptions = TrainOptions()
    protocol: ProtocolOptions = ProtocolOptions()
    output: OutputOptions = OutputOptions()


def _check_together(config: Config) -> None:
    check_search(config.protocol)
    if config.views.add and "perturb_edges" not in config.views.kinds:
        raise ValueError("--add is for --kinds with perturb_edges among them.")


SCHEMA = Schema(
    "graphs",
    Config,
    choices=(("objective", "loss", LOSSES), ("encoding", "encoder", ENCODERS)),
    numbers=(*NUMBERS, "temperature", "ratio"),
    check=_check_together,
)
FLAGS = flags_of(SCHEMA, renamed={"learning_rate": "lr", "source": "data", "k": "neighbours"})
"""The flag by the name of the argument that it sets."""


def anchor(config: Config) -> Config:
    """The configuration with an absolute path, which holds in every working directory."""
    source = config.source
    if source.data == "simulated":
        return config
    return replace(config, source=replace(source, data=str(Path(source.data).absolute())))
