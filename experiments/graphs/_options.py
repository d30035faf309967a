"""The flags of a run on graphs: frozen dataclasses, whose docstrings are the help.

Flags of a loss or an encoder are not here: they stand with its entry.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from crl_jax.augment import GraphKind
from crl_jax.data import NodeFeatures

from .. import _study_options
from .._ranges import COUNT, MOST, POSITIVE, SHARE, Range
from .._study_options import OptimizerOptions, SeedOptions

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
    valid: float = 0.1
    """Share of the graphs that a --sweep is decided on. They are then left out of the judgement."""
    split_seed: int = 0
    """Seed of this draw."""


@dataclass(frozen=True)
class ViewOptions:
    """How two views of a graph are made."""

    kinds: tuple[GraphKind, ...] = ("drop_nodes", "subgraph")
    """What is done to a view: one of these, drawn for each."""
    ratio: float = 0.2
    """Share of the nodes or edges that is changed."""
    add: bool = False
    """Whether perturb_edges adds as many random edges as it leaves out."""


@dataclass(frozen=True)
class TrainOptions(OptimizerOptions):
    """Projection head and optimiser."""

    lr: float = 1e-2
    """Learning rate."""
    weight_decay: float = 0.0
    """L2 coefficient."""
    batch_size: int = 128
    """Graphs per step (B); a view has 2B - 2 negatives."""
    epochs: int = 20
    """Length of the training, which the schedule spans. No run ends earlier."""
    temperature: float = 0.2
    """Divides all cosines."""
    head: tuple[int, ...] = (96, 96)
    """Widths of the projection head: hidden layers, and the embedding."""


@dataclass(frozen=True)
class ProtocolOptions(SeedOptions):
    """Seeds, search and judging."""

    kernel: Literal["rbf", "linear"] = "rbf"
    """Of the support vector machine that judges."""
    folds: int = 10
    """Folds of its cross-validation, drawn anew for each seed."""
    given_folds: bool = False
    """Take the folds that come with the graphs."""
    neighbours: int = 20
    """Neighbours that vote in the kNN accuracy; no more than a tenth of the graphs do."""
    knn_temperature: float = 0.1
    """Divides the neighbours' cosines."""


RANGES: dict[str, Range] = {
    **_study_options.RANGES,
    # DataOptions
    "valid": Range(0, 1, low_open=True, high_open=True),
    "split_seed": Range(0, MOST),
    # ViewOptions
    "ratio": SHARE,
    # TrainOptions
    "temperature": POSITIVE,
    "head": COUNT,
    # ProtocolOptions
    "folds": Range(2, MOST),
    "neighbours": COUNT,
    "knn_temperature": POSITIVE,
}
"""Where the numbers of these fields lie. They are checked before anything is trained."""
