"""The configuration of a run on texts: what flags and files may say."""

from dataclasses import dataclass, replace
from pathlib import Path

from .. import _study_options as shared
from .._bert import BertOptions, check_bert
from .._flags import flags_of
from .._program import flag
from .._registry import with_flags
from .._schema import Schema
from .._study_options import NUMBERS, OutputOptions, check_search
from ._options import DataOptions, ProtocolOptions, TrainOptions
from .losses import LOSSES
from .methods import METHODS

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
    output: OutputOptions = OutputOptions()


def _check_together(config: Config) -> None:
    check_search(config.protocol)
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
    choices=(("method", "method", METHODS), ("objective", "loss", LOSSES)),
    numbers=(*NUMBERS, "fine_tune_lr"),
    check=_check_together,
)
FLAGS = flags_of(
    SCHEMA,
    renamed={
        "learning_rate": "lr", "source": "data", "k": "neighbours", "n_heads": "heads",
        "size": "vocab_size", "n_positions": "length",
    },
)  # fmt: skip
"""The flag by the name of the argument that it sets."""


def anchor(config: Config) -> Config:
    """The configuration with absolute paths, which hold in every working directory."""
    source, encoding = config.source, config.encoding
    if source.data != "docstrings":
        source = replace(source, data=str(Path(source.data).absolute()))
    if source.pairs is not None:
        source = replace(source, pairs=str(Path(source.pairs).absolute()))
    if encoding.weights is not None:
        encoding = replace(encoding, weights=str(Path(encoding.weights).absolute()))
    return replace(config, source=source, encoding=encoding)
