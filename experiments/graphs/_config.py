"""Configuration of a run on graphs: command-line flags, with their docstrings as help texts.

Flags of a loss or an encoder are declared by the loss or encoder.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from crl_jax.augment import GraphKind
from crl_jax.data import NodeFeatures

from .. import _study_options as shared
from .._ranges import COUNT, MAX_COUNT, NOT_NEGATIVE, POSITIVE, Range, option_group
from .._registry import LEGACY_VALUE, with_flags
from .._schema import Schema
from ..backbones import GRAPH_ENCODERS
from ..view_losses import LOSSES

_DATA = (
    "simulated, or a folder or zip of graphs: in GIN's text format (MUTAG.txt), or in that of TU "
    "Dortmund (MUTAG_A.txt and others)."
)


@option_group
class DataOptions:
    """Source of the graphs."""

    data: Annotated[str, tyro.conf.arg(help=_DATA)] = "simulated"
    features: NodeFeatures = "auto"
    """Node features: the tag, the degree, a constant 1, or the given attributes. By default those
    that the dataset has, or a constant 1 if it has none."""
    valid_fraction: Annotated[float, Range(0, 1, low_open=True, high_open=True)] = 0.1
    """Fraction of the graphs held out to select the best --sweep point, and then excluded from the
    test."""
    split_seed: Annotated[int, Range(0, MAX_COUNT)] = 0
    """Seed of the validation split."""


@option_group
class ViewOptions:
    """Augmentation that produces two views of a graph."""

    kinds: tuple[GraphKind, ...] = ("drop_nodes", "subgraph")
    """Augmentations to draw from, one for each view."""
    ratio: Annotated[float, Range(0, 1, low_open=True, high_open=True)] = 0.2
    """Fraction of the nodes or edges that an augmentation changes."""
    add: bool = False
    """Whether perturb_edges adds as many random edges as it drops."""


@option_group
class TrainOptions(shared.ContrastOptions):
    """Projection head and optimiser."""

    lr: Annotated[float, POSITIVE] = 1e-2
    """Learning rate."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.0
    """L2 coefficient."""
    batch_size: Annotated[int, Range(2, MAX_COUNT)] = 128
    """Number of graphs per step (B); a view has 2B - 2 negatives."""
    batches: Literal["device", "host"] = field(default="device", metadata={LEGACY_VALUE: "device"})
    """Where the training graphs are held: in device memory, or in host memory, which leaves the
    device more room; batches are then copied while the device computes, and each graph takes the
    space of the largest."""
    epochs: Annotated[int, COUNT] = 20
    """Number of training epochs, which the schedule spans. There is no early stopping."""
    temperature: Annotated[float, POSITIVE] = 0.2
    """Temperature, which divides all cosine similarities."""
    head: Annotated[tuple[int, ...], COUNT] = (96, 96)
    """Widths of the projection head: hidden layers, then the embedding."""


@option_group
class ProtocolOptions(shared.SeedOptions):
    """Seeds, hyper-parameter search and evaluation."""

    kernel: Literal["rbf", "linear"] = "rbf"
    """Kernel of the support vector machine of the test."""
    folds: Annotated[int, Range(2, MAX_COUNT)] = 10
    """Number of cross-validation folds, redrawn for each seed."""
    given_folds: bool = False
    """Whether to use the folds provided with the graphs."""
    neighbours: Annotated[int, COUNT] = 20
    """Number of neighbours for the kNN accuracy, capped at a tenth of the graphs."""
    knn_temperature: Annotated[float, POSITIVE] = 0.1
    """Temperature of the kNN vote, which divides the cosine similarities."""


LossOptions = with_flags(shared.LossOptions, "loss", LOSSES, default="decoupled")
EncoderOptions = with_flags(shared.EncoderOptions, "encoder", GRAPH_ENCODERS, default="gin")


@dataclass(frozen=True)
class Config:
    """Configuration of a run on graphs."""

    source: DataOptions = DataOptions()
    views: ViewOptions = ViewOptions()
    objective: shared.LossOptions = LossOptions()
    encoding: shared.EncoderOptions = EncoderOptions()
    training: TrainOptions = TrainOptions()
    protocol: ProtocolOptions = ProtocolOptions()
    output: shared.OutputOptions = shared.OutputOptions()


def _check_together(config: Config) -> None:
    shared.check_search(config.protocol)
    if config.views.add and "perturb_edges" not in config.views.kinds:
        raise ValueError("--add is for --kinds with perturb_edges among them.")


SCHEMA = Schema(
    "graphs",
    Config,
    numbers=(*shared.NUMBERS, "temperature", "ratio"),
    check=_check_together,
    renamed={"k": "neighbours", "valid": "valid_fraction"},
)
