"""Configuration of ``python -m experiments.recommend``."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from crl_jax.data import DATASETS

from .._registry import with_flags
from .._schema import Schema, absolute
from .._study_options import check_search
from . import _options as options
from .contrasts import CONTRASTS
from .contrasts import LOSSES as CONTRAST_LOSSES
from .encoders import ENCODERS
from .fitted import MODELS
from .objectives import OBJECTIVES
from .sampling import SAMPLERS

LossOptions = with_flags(options.LossOptions, "loss", OBJECTIVES)
SamplerOptions = with_flags(options.SamplerOptions, "sampler", SAMPLERS)
EncoderOptions = with_flags(
    with_flags(options.EncoderOptions, "encoder", ENCODERS), "model", MODELS
)
ContrastOptions = with_flags(
    with_flags(options.ContrastOptions, "contrast", CONTRASTS), "contrast_loss", CONTRAST_LOSSES
)


@dataclass(frozen=True)
class Config:
    """Configuration of a recommendation run."""

    source: options.DataOptions = options.DataOptions()
    objective: options.LossOptions = LossOptions()
    sampling: options.SamplerOptions = SamplerOptions()
    encoding: options.EncoderOptions = EncoderOptions()
    contrasting: options.ContrastOptions = ContrastOptions()
    training: options.TrainOptions = options.TrainOptions()
    protocol: options.ProtocolOptions = options.ProtocolOptions()
    output: options.OutputOptions = options.OutputOptions()


TRAINING = "objective", "sampling", "encoding", "contrasting", "training"
"""Sections whose flags belong to a training, and not to a baseline."""


def _check(config: Config) -> None:
    is_searched = bool(config.protocol.tune) or config.objective.loss == "auto"
    check_search(config.protocol, is_searched)
    encoding: Any = config.encoding
    uses_features = (encoding.model, encoding.encoder) == ("trained", "features")
    if config.source.cold_items is not None and not (uses_features and encoding.item_features):
        raise ValueError(
            f"--cold-items {config.source.cold_items:g} needs vectors of items that are not in "
            "training: use --encoder features with --item-features."
        )


SCHEMA = Schema(
    "recommend",
    Config,
    numbers=("lr", "weight_decay", "decay", "init_scale", "epochs"),
    check=_check,
    renamed={
        "scale": "rank_scale", "memory": "candidates", "ks": "k", "layer": "contrast_layer",
        "test": "test_fraction", "valid": "valid_fraction", "rule": "confidence_rule",
        "every": "confidence_every", "distribution": "score_distribution",
    },
)  # fmt: skip


def anchor(config: Config) -> Config:
    """Returns the configuration with absolute paths."""
    source = absolute(config.source, "data", "test_data", but=(*DATASETS, "simulated"))
    files = "item_features", "user_features"
    encoding = absolute(config.encoding, *files, but=("simulated",))
    return dataclasses.replace(config, source=source, encoding=encoding)
