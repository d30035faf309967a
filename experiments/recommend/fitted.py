"""Registry of models that are fitted in closed form, by command-line name.

A new baseline requires an entry in :data:`MODELS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from crl_jax import baselines, hyperparams

from .._registry import Entry, declared, resolve_flags
from ._options import EncoderOptions

TRAINED, BEST = "trained", "best"
PREFIX = "model_"
"""Prefix of the flags, whose hyper-parameters have the names of those of losses."""


@dataclass(frozen=True, kw_only=True)
class ModelEntry(Entry):
    """A model on the command line. Without a source, it is an encoder that is trained."""

    source: type[baselines.Baseline] | None = None

    @property
    def has_seed(self) -> bool:
        """Whether the model depends on a random seed."""
        return self.source is not None and "seed" in hyperparams(self.source)

    def make(self, values: Mapping[str, Any], seed: int) -> baselines.Baseline:
        """Creates the baseline with values by flag; numbers of a sweep may be floats."""
        assert self.source is not None
        kwargs = {n.removeprefix(PREFIX): self.flags[n].kind(value) for n, value in values.items()}
        return self.source(**kwargs, **({"seed": seed} if self.has_seed else {}))


def make_entry(source: type[baselines.Baseline]) -> ModelEntry:
    """Returns the entry of a baseline, whose hyper-parameters become flags with a prefix."""
    names = [name for name in hyperparams(source) if name != "seed"]
    own = declared(source, *names, flags={name: f"{PREFIX}{name}" for name in names})
    # Points of a sweep are fitted one after the other, so that integers can be swept, too.
    return ModelEntry(
        source=source,
        hyperparams={name: replace(hyperparam, sweeps=True) for name, hyperparam in own.items()},
    )


MODELS: dict[str, ModelEntry] = {
    TRAINED: ModelEntry(help="an encoder that is trained with a loss"),
    BEST: ModelEntry(help="the best of trained encoders, item-kNN and EASE on validation data"),
    "popularity": make_entry(baselines.Popularity),
    "item-knn": make_entry(baselines.ItemKNN),
    "rp3beta": make_entry(baselines.RP3beta),
    "ease": make_entry(baselines.EASE),
    "sparse-ease": make_entry(baselines.SparseEASE),
    "ials": make_entry(baselines.IALS),
    "gf-cf": make_entry(baselines.GFCF),
    "bspm": make_entry(baselines.BSPM),
    "cheby-cf": make_entry(baselines.ChebyCF),
}


SWEEPS: Mapping[str, tuple[str, ...]] = {
    "item-knn": ("model_shrinkage=10,100",),
    "ease": ("model_l2=30,100,300",),
    "ials": ("model_l2=0.003,0.01,0.03,0.1",),
}
"""Sweeps of the models that are fitted alongside a search of trainings."""
COMPETITORS = "item-knn", "ease"
"""Models among which ``--model best`` chooses, where they take seconds."""


def resolve_model_flags(options: EncoderOptions, swept: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the hyper-parameters of the chosen model, by flag; none of a trained one.

    Raises:
      ValueError: If a flag is passed, or swept, that the model does not have.
    """
    return resolve_flags("model", options, MODELS, swept)
