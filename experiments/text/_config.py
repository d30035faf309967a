"""Configuration of a run on texts: command-line flags, with their docstrings as help texts.

Flags of a method or a loss are declared by the method or loss.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from .. import _study_options as shared
from .._bert import BertOptions, check_bert
from .._program import flag
from .._ranges import COUNT, COUNT_OR_NONE, MAX_COUNT, NOT_NEGATIVE, POSITIVE, Range, option_group
from .._registry import LEGACY_VALUE, with_flags
from .._schema import Schema
from ..view_losses import TEXT_LOSSES
from .methods import METHODS

_DATA = (
    "docstrings, of packages that are installed; a folder with files train and test; folder/NAME, "
    "where there are several sets; or one file, such as a .txt with a text in each line."
)


@option_group
class DataOptions:
    """Source and number of texts."""

    data: Annotated[str, tyro.conf.arg(help=_DATA)] = "docstrings"
    text_col: str | None = None
    """Column of the texts, by name or 0-based position; by default inferred from the column names
    or contents."""
    label_col: str | None = None
    """Column of the class labels, likewise. An empty name reads no labels."""
    encoding: Literal["utf-8", "latin-1"] | None = None
    """Encoding of the files; by default UTF-8, or Latin-1 for files that are not valid UTF-8."""
    test_fraction: Annotated[float | None, Range(0, 1, low_open=True, high_open=True)] = None
    """Fraction of each class, or of unlabelled texts, for the test part if the data have none; by
    default 0.2."""
    valid_fraction: Annotated[float | None, Range(0, 1, low_open=True, high_open=True)] = None
    """Fraction of the training texts held out to select the best point of a --sweep, if the data
    have no validation part; by default 0.1. The final training uses them too."""
    n_train: Annotated[int | None, Range(2, MAX_COUNT)] = None
    """Number of training texts to use, sampled at random with at least one of each class; by
    default all."""
    n_labels: Annotated[int | None, Range(2, MAX_COUNT)] = None
    """Number of these that keep their label, sampled in the same way; by default all. Only --method
    dropout trains on the others."""
    pairs: str | None = None
    """File of scored sentence pairs, such as STS-B: the cosine similarities of the pre-trained
    encoder are evaluated by their rank correlation with the scores."""
    length: Annotated[int, Range(3, MAX_COUNT)] = 32
    """Maximum number of tokens of a text; longer texts are truncated."""
    split_seed: Annotated[int, Range(0, MAX_COUNT)] = 0
    """Seed of the sampling and of the splits."""


@option_group
class TrainOptions(shared.ContrastOptions):
    """Projection head and optimiser for pre-training and fine-tuning."""

    lr: Annotated[float | None, POSITIVE] = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Learning rate of pre-training; by default 1e-3, or 5e-5 with --weights."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.01
    """L2 coefficient."""
    optimizer: Literal["adam", "adamw", "lars", "sgd"] = "adamw"
    """Optimiser: adam and sgd add the L2 term to the gradient; adamw uses decoupled weight decay;
    lars rescales the updates of each layer, except for biases and normalisation."""
    schedule: Literal["constant", "step", "linear", "cosine"] = "linear"
    """Learning-rate schedule: step decays once, halfway; linear and cosine decay gradually."""
    warm_up: Annotated[float, Range(0, 1, high_open=True)] = 0.1
    """Fraction of the training for learning-rate warm-up."""
    batch_size: Annotated[int, Range(2, MAX_COUNT)] = 64
    """Texts per step (B). A text has 2B - 2 negatives with dropout and 2B - 1 with triplets."""
    batches: Literal["device", "host"] = field(default="device", metadata={LEGACY_VALUE: "device"})
    """Where the tokens of the texts are held: in device memory, or in host memory, which leaves the
    device more room; batches are then copied while the device computes."""
    epochs: Annotated[int | None, COUNT] = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Number of epochs of pre-training, which its schedule spans; by default 6."""
    fine_tune_epochs: Annotated[int, COUNT_OR_NONE] = 5
    """Number of epochs of fine-tuning; with 0, the pre-trained encoder is evaluated by a linear
    classifier."""
    fine_tune_lr: Annotated[float | None, POSITIVE] = None
    """Learning rate of fine-tuning; by default 1e-3, or 5e-5 with --weights."""
    fine_tune_hidden: Annotated[int | None, COUNT] = field(
        default=None, metadata={LEGACY_VALUE: None}
    )
    """Width of a hidden layer of the classifier of fine-tuning; by default none: a linear one."""
    head: Annotated[tuple[int, ...], COUNT] = (128, 128)
    """Widths of the projection head of pre-training: hidden layers, then the embedding."""


@option_group
class ProtocolOptions(shared.SeedOptions):
    """Seeds, hyper-parameter search and evaluation."""

    neighbours: Annotated[int, COUNT] = 20
    """Number of neighbours for the kNN accuracy, capped at a tenth of the texts."""
    knn_temperature: Annotated[float, POSITIVE] = 0.1
    """Temperature of the kNN vote, which divides the cosine similarities."""


MethodOptions = with_flags(shared.MethodOptions, "method", METHODS, default="triplets")
LossOptions = with_flags(shared.LossOptions, "loss", TEXT_LOSSES)


@dataclass(frozen=True)
class Config:
    """Configuration of a run on texts."""

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
        raise ValueError("--method none has no loss: omit --loss and its numbers.")
    if not pretrains and not training.fine_tune_epochs:
        raise ValueError("--method none with --fine-tune-epochs 0 trains nothing.")
    unused: dict[str, str] = {}
    if not pretrains:
        unused |= {"lr": "--method none", "epochs": "--method none"}
    if not training.fine_tune_epochs:
        unused |= dict.fromkeys(("fine_tune_lr", "fine_tune_hidden"), "--fine-tune-epochs 0")
    for name, why in unused.items():
        if getattr(training, name) is not None or name in swept:
            raise ValueError(f"{why} has no {flag(name)}.")


SCHEMA = Schema(
    "text",
    Config,
    numbers=(*shared.NUMBERS, "fine_tune_lr"),
    check=_check_together,
    renamed={
        "k": "neighbours",
        "n_heads": "heads",
        "size": "vocab_size",
        "n_positions": "length",
        "valid": "valid_fraction",
        "test": "test_fraction",
    },
)
