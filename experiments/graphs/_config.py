"""The configuration of a run on graphs: its flags, whose docstrings are the help.

Flags of a loss or an encoder are declared by the loss or encoder.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import tyro

from crl_jax.augment import GraphKind
from crl_jax.data import NodeFeatures

from .. import _study_options as shared
from .._ranges import COUNT, MOST, NOT_NEGATIVE, POSITIVE, SHARE, Range
from .._registry import with_flags
from .._schema import Schema, absolute
from ..view_losses import LOSSES
from .encoders import ENCODERS

_DATA = (
    "simulated, or a folder or zip of graphs: in GIN's text format (MUTAG.txt), or in that of TU "
    "Dortmund (MUTAG_A.txt and others)."
)


@dataclass(frozen=True)
class DataOptions:
    """Where the graphs come from."""

    data: Annotated[str, tyro.conf.arg(help=_DATA)] = "simulated"
    features: NodeFeatures = "auto"
    """What a node is known by: its tag, its degree, 1 for all, or numbers of its own. By default
    what the graphs have, and 1 where they have nothing."""
    valid: Annotated[float, Range(0, 1, low_open=True, high_open=True)] = 0.1
    """Share of the graphs that a --sweep is decided on. They are then left out of the judgement."""
    split_seed: Annotated[int, Range(0, MOST)] = 0
    """Seed of this draw."""


@dataclass(frozen=True)
class ViewOptions:
    """How two views of a graph are made."""

    kinds: tuple[GraphKind, ...] = ("drop_nodes", "subgraph")
    """What is done to a view: one of these, drawn for each."""
    ratio: Annotated[float, SHARE] = 0.2
    """Share of the nodes or edges that is changed."""
    add: bool = False
    """Whether perturb_edges adds as many random edges as it leaves out."""


@dataclass(frozen=True)
class TrainOptions(shared.OptimizerOptions):
    """Projection head and optimiser."""

    lr: Annotated[float, POSITIVE] = 1e-2
    """Learning rate."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.0
    """L2 coefficient."""
    batch_size: Annotated[int, Range(2, MOST)] = 128
    """Graphs per step (B); a view has 2B - 2 negatives."""
    epochs: Annotated[int, COUNT] = 20
    """Length of the training, which the schedule spans. No run ends earlier."""
    temperature: Annotated[float, POSITIVE] = 0.2
    """Divides all cosines."""
    head: Annotated[tuple[int, ...], COUNT] = (96, 96)
    """Widths of the projection head: hidden layers, and the embedding."""


@dataclass(frozen=True)
class ProtocolOptions(shared.SeedOptions):
    """Seeds, search and judging."""

    kernel: Literal["rbf", "linear"] = "rbf"
    """Of the support vector machine that judges."""
    folds: Annotated[int, Range(2, MOST)] = 10
    """Folds of its cross-validation, drawn anew for each seed."""
    given_folds: bool = False
    """Take the folds that come with the graphs."""
    neighbours: Annotated[int, COUNT] = 20
    """Neighbours that vote in the kNN accuracy; no more than a tenth of the graphs do."""
    knn_temperature: Annotated[float, POSITIVE] = 0.1
    """Divides the neighbours' cosines."""


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
    renamed={"k": "neighbours"},
)


def anchor(config: Config) -> Config:
    """The configuration with an absolute path, which holds in every working directory."""
    return replace(config, source=absolute(config.source, "data", but=("simulated",)))
