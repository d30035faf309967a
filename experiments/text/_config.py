"""The configuration of a run on texts: its flags, whose docstrings are the help.

Flags of a method or a loss are declared by the method or loss.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import tyro

from .. import _study_options as shared
from .._bert import BertOptions, check_bert
from .._program import flag
from .._ranges import COUNT, COUNT_OR_NONE, MOST, NOT_NEGATIVE, POSITIVE, Range
from .._registry import with_flags
from .._schema import Schema, absolute
from .losses import LOSSES
from .methods import METHODS

_DATA = (
    "docstrings, of packages that are installed; a folder with files train and test; folder/NAME, "
    "where there are several sets; or one file, such as a .txt with a text in each line."
)


@dataclass(frozen=True)
class DataOptions:
    """Where the texts come from, and how many are used."""

    data: Annotated[str, tyro.conf.arg(help=_DATA)] = "docstrings"
    text_col: str | None = None
    """Column of the texts, by its name or its position from 0; by default it is told by its name,
    or by what stands in it."""
    label_col: str | None = None
    """Column of the classes; the same. An empty name reads no labels."""
    encoding: Literal["utf-8", "latin-1"] | None = None
    """Of the files; by default UTF-8, and Latin-1 where it is not."""
    test: Annotated[float | None, Range(0, 1, low_open=True, high_open=True)] = None
    """Share of each class, or of texts without labels, that is the test part, where none is given;
    by default 0.2."""
    valid: Annotated[float | None, Range(0, 1, low_open=True, high_open=True)] = None
    """Share of the training texts that a --sweep is decided on, where no part for it is given; by
    default 0.1. The final training learns from them too."""
    n_train: Annotated[int | None, Range(2, MOST)] = None
    """Learn from so many texts of the training part, drawn at random with one of each class at
    least; by default all."""
    n_labels: Annotated[int | None, Range(2, MOST)] = None
    """So many of these have a label, drawn in the same way; by default all. Of the others only
    --method dropout learns."""
    pairs: str | None = None
    """File of sentence pairs with scores, such as STS-B: the cosines of the pre-trained encoder are
    judged by their rank correlation with the scores."""
    length: Annotated[int, Range(2, MOST)] = 32
    """Tokens of a text; a longer one loses its end."""
    split_seed: Annotated[int, Range(0, MOST)] = 0
    """Seed of these draws."""


@dataclass(frozen=True)
class TrainOptions(shared.OptimizerOptions):
    """Projection head and optimiser, of pre-training and of fine-tuning."""

    lr: Annotated[float | None, POSITIVE] = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Learning rate of pre-training: 1e-3, or 5e-5 with --weights."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.01
    """L2 coefficient."""
    optimizer: Literal["adam", "adamw", "lars", "sgd"] = "adamw"
    """adam and sgd add the L2 term to the gradient; adamw decays the weights apart; lars scales the
    steps of each layer, and spares biases and normalisation."""
    schedule: Literal["constant", "step", "linear", "cosine"] = "linear"
    """Course of the learning rate: step goes down halfway, linear and cosine bit by bit."""
    warm_up: Annotated[float, Range(0, 1, high_open=True)] = 0.1
    """Share of the training in which the learning rate rises."""
    batch_size: Annotated[int, Range(2, MOST)] = 64
    """Texts per step (B). A text has 2B - 2 negatives by dropout, and 2B - 1 in triplets."""
    epochs: Annotated[int, COUNT] = 6
    """Length of pre-training, which its schedule spans."""
    fine_tune_epochs: Annotated[int, COUNT_OR_NONE] = 5
    """Length of fine-tuning; with 0 the encoder is judged as pre-training leaves it, by a linear
    classifier."""
    fine_tune_lr: Annotated[float | None, POSITIVE] = None
    """Learning rate of fine-tuning: 1e-3, or 5e-5 with --weights."""
    head: Annotated[tuple[int, ...], COUNT] = (128, 128)
    """Widths of the projection head of pre-training: hidden layers, and the embedding."""


@dataclass(frozen=True)
class ProtocolOptions(shared.SeedOptions):
    """Seeds, search and judging."""

    neighbours: Annotated[int, COUNT] = 20
    """Neighbours that vote in the kNN accuracy; no more than a tenth of the texts do."""
    knn_temperature: Annotated[float, POSITIVE] = 0.1
    """Divides the neighbours' cosines."""


MethodOptions = with_flags(shared.MethodOptions, "method", METHODS, default="triplets")
LossOptions = with_flags(shared.LossOptions, "loss", LOSSES)


@dataclass(frozen=True)
class Config:
    """One run on texts."""

    source: DataOptions = DataOptions()
    encoding: BertOptions = BertOptions()
    method: shared.MethodOptions = MethodOptions()
    objective: shared.LossOptions = LossOptions()
    training: TrainOptions = TrainOptions()
    protocol: ProtocolOptions = ProtocolOptions()
    output: shared.OutputOptions = shared.OutputOptions()


def _check_together(config: Config) -> None:
    shared.check_search(config.protocol)
    check_bert(config.encoding)
    training, swept = config.training, {s.partition("=")[0] for s in config.protocol.sweep}
    pretrains = METHODS[config.method.method].make is not None
    if not pretrains and config.objective != LossOptions():
        raise ValueError("--method none has no loss: leave out --loss and its numbers.")
    if not pretrains and not training.fine_tune_epochs:
        raise ValueError("--method none with --fine-tune-epochs 0 trains nothing.")
    unused = {"lr": not pretrains, "fine_tune_lr": not training.fine_tune_epochs}
    for name, is_unused in unused.items():
        if is_unused and (getattr(training, name) is not None or name in swept):
            why = "--method none" if name == "lr" else "--fine-tune-epochs 0"
            raise ValueError(f"{why} has no {flag(name)}.")


SCHEMA = Schema(
    "text",
    Config,
    numbers=(*shared.NUMBERS, "fine_tune_lr"),
    check=_check_together,
    renamed={"k": "neighbours", "n_heads": "heads", "size": "vocab_size", "n_positions": "length"},
)


def anchor(config: Config) -> Config:
    """The configuration with absolute paths, which hold in every working directory."""
    source = absolute(config.source, "data", "pairs", but=("docstrings",))
    return replace(config, source=source, encoding=absolute(config.encoding, "weights"))
