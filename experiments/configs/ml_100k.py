"""MovieLens 100K, matrix factorisation of width 32: one search and one tuned setting per loss.

    python -m experiments.recommend --recipe ml-100k-LOSS --data ml-100k --out runs/LOSS
    python -m experiments.recommend --recipe ml-100k-LOSS-search --data ml-100k

``--data`` is a folder with a split, such as the published one; without it, the data are downloaded
and split randomly. The search has 8 points of 300 epochs for every loss, evaluated on a fifth of
the training interactions; ``ml-100k-LOSS`` is the selected point with five seeds.

Expected NDCG@20 on the published split, mean ± standard deviation of 5 seeds
(``benchmarks/results/quality/losses.csv``):

    bayesian   0.4399 ± 0.0012
    bce        0.4159 ± 0.0018
    bpr        0.4282 ± 0.0024
    debiased   0.4336 ± 0.0014
    dpl        0.4307 ± 0.0010
    hard       0.4388 ± 0.0011
    info_nce   0.4359 ± 0.0011

Minutes: not measured.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from ..recommend._config import Config, EncoderOptions, LossOptions
from ..recommend._options import DataOptions, ProtocolOptions, TrainOptions


class Entry(NamedTuple):
    """Configuration of a loss.

    Attributes:
      loss: Fixed hyper-parameters of the loss.
      grid: Sweep of the search.
      chosen: Point selected by the search.
    """

    loss: dict[str, Any]
    grid: tuple[str, ...]
    chosen: dict[str, Any]


_INIT = "init_scale=0.1,1"
_FEW_NEGATIVES_GRID = ("lr=1e-3,2e-3", "weight_decay=1e-5,3e-5", _INIT)
# With many negatives an epoch carries more gradient: smaller steps and stronger regularisation.
_MANY_NEGATIVES_GRID = ("weight_decay=6e-5,1e-4", _INIT)
_DEBIASED = {"n_neg": 10, "n_pos": 0, "min_score": -2.0}
ENTRIES = {
    "bayesian": Entry(
        {"n_neg": 10, "tau_plus": 0.05, "alpha": 0.9},
        ("beta=0.95,1", *_MANY_NEGATIVES_GRID),
        {"beta": 1.0, "weight_decay": 6e-5, "init_scale": 0.1},
    ),
    "bce": Entry(
        {"n_neg": 1}, _FEW_NEGATIVES_GRID, {"lr": 1e-3, "weight_decay": 3e-5, "init_scale": 0.1}
    ),
    "bpr": Entry(
        {"n_neg": 1}, _FEW_NEGATIVES_GRID, {"lr": 2e-3, "weight_decay": 3e-5, "init_scale": 1.0}
    ),
    "debiased": Entry(
        _DEBIASED,
        ("tau_plus=0.005,0.02", *_MANY_NEGATIVES_GRID),
        {"tau_plus": 0.02, "weight_decay": 1e-4, "init_scale": 1.0},
    ),
    "dpl": Entry(
        {"n_neg": 5, "n_pos": 10},
        ("tau_plus=0.07,0.15", "weight_decay=1e-5,2e-5", _INIT),
        {"tau_plus": 0.15, "weight_decay": 1e-5, "init_scale": 0.1},
    ),
    "hard": Entry(
        {**_DEBIASED, "tau_plus": 0.005},
        ("beta=0.3,1", *_MANY_NEGATIVES_GRID),
        {"beta": 0.3, "weight_decay": 6e-5, "init_scale": 0.1},
    ),
    "info_nce": Entry(
        {"n_neg": 10},
        ("temperature=0.7,1", *_MANY_NEGATIVES_GRID),
        {"temperature": 0.7, "weight_decay": 1e-4, "init_scale": 0.1},
    ),
}


def base(loss: Any, hyperparams: dict[str, Any], training: TrainOptions, **encoder: Any) -> Config:
    """Returns the configuration shared by the search and the tuned setting of a loss."""
    return Config(
        source=DataOptions(data="movielens:100k", valid_fraction=0.2),
        objective=LossOptions(loss=loss, **hyperparams),
        encoding=EncoderOptions(**encoder),
        training=training,
    )


def tuned(config: Config, chosen: dict[str, Any]) -> Config:
    """Returns the configuration with the values that a search selected, and five seeds."""
    training_values = {name: x for name, x in chosen.items() if hasattr(config.training, name)}
    loss_values = {name: x for name, x in chosen.items() if name not in training_values}
    return replace(
        config,
        objective=replace(config.objective, **loss_values),
        training=replace(config.training, **training_values),
        protocol=ProtocolOptions(seeds=5),
    )


def searched(config: Config, grid: tuple[str, ...]) -> Config:
    """Returns the search of a grid."""
    return replace(config, protocol=ProtocolOptions(sweep=grid))


def _base(loss: str, entry: Entry) -> Config:
    lr = 5e-4 if entry.loss["n_neg"] == 10 else 1e-3
    return base(loss, entry.loss, TrainOptions(eval_every=5, epochs=300, decay=0.3, lr=lr))


CONFIGS = {
    **{
        f"ml-100k-{loss}": tuned(_base(loss, entry), entry.chosen)
        for loss, entry in ENTRIES.items()
    },
    **{
        f"ml-100k-{loss}-search": searched(_base(loss, entry), entry.grid)
        for loss, entry in ENTRIES.items()
    },
}
