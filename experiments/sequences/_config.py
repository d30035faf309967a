"""Configuration of a run on sequences: command-line flags, with their docstrings as help texts.

Flags of a loss or an encoder are declared by the loss or encoder.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from .. import _study_options as shared
from .._ranges import COUNT, MAX_COUNT, NOT_NEGATIVE, POSITIVE, Range, option_group
from .._read_options import ReadOptions
from .._registry import with_flags
from .._schema import Schema
from ..backbones import SEQUENCE_ENCODERS
from .losses import LOSSES

_DATA = (
    "simulated, or a file or folder of interactions with timestamps (MovieLens, CSV, Parquet, "
    "RecBole), or a dataset by name."
)


@option_group
class DataOptions(ReadOptions):
    """Source of the interactions, of which the timestamps order the items of a user."""

    data: Annotated[str, tyro.conf.arg(help=_DATA)] = "simulated"
    core: Annotated[int, COUNT] = 1
    """Minimum number of interactions of a user and of an item; users and items with fewer are
    removed until all have enough. 1 keeps all, 5 is usual."""
    order_seed: Annotated[int, Range(0, MAX_COUNT)] = 0
    """Seed of the random order of interactions of a user with equal timestamps."""


@option_group
class TrainOptions(shared.OptimizerOptions):
    """Sequences and optimiser."""

    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.0
    """L2 coefficient."""
    batch_size: Annotated[int, Range(1, MAX_COUNT)] = 128
    """Number of users per step. Each position of their windows is an anchor."""
    batches: Literal["device", "host"] = "device"
    """Where the training sequences are held: in device memory, or in host memory; batches are then
    copied while the device computes."""
    epochs: Annotated[int, COUNT] = 100
    """Maximum number of training epochs, which the schedule spans. An epoch uses each user once."""
    patience: Annotated[int | None, COUNT] = None
    """Number of epochs without a better NDCG@10 on the validation part after which a run stops, and
    returns its best parameters. By default a run trains for all epochs and returns the last."""
    window: Annotated[int, Range(1, 2**16)] = 50
    """Maximum number of items of a user that the encoder reads: the last ones."""
    temperature: Annotated[float, POSITIVE] = 1.0
    """Temperature, which divides all scores."""
    tile: Annotated[int | None, COUNT] = None
    """Number of positions per tile of the scores of all items; by default about 2 million scores
    per tile, on GPUs 8 million."""


@option_group
class ProtocolOptions(shared.SeedOptions):
    """Seeds, hyper-parameter search and evaluation."""

    exclude_seen: bool = True
    """Whether items of the history are excluded from the ranking. False ranks all items."""


LossOptions = with_flags(shared.LossOptions, "loss", LOSSES, default="bce")
EncoderOptions = with_flags(shared.EncoderOptions, "encoder", SEQUENCE_ENCODERS, default="sasrec")


@dataclass(frozen=True)
class Config:
    """Configuration of a run on sequences."""

    source: DataOptions = DataOptions()
    objective: shared.LossOptions = LossOptions()
    encoding: shared.EncoderOptions = EncoderOptions()
    training: TrainOptions = TrainOptions()
    protocol: ProtocolOptions = ProtocolOptions()
    output: shared.OutputOptions = shared.OutputOptions()


def _check_together(config: Config) -> None:
    shared.check_search(config.protocol)


SCHEMA = Schema(
    "sequences",
    Config,
    numbers=(*shared.NUMBERS, "temperature"),
    check=_check_together,
    renamed={"n_positions": "window"},
)
