"""MovieLens 100K, LightGCN of two layers and width 32: one search and one tuned setting per loss.

    python -m experiments.recommend --recipe ml-100k-lightgcn-LOSS --data ml-100k
    python -m experiments.recommend --recipe ml-100k-lightgcn-LOSS-search --data ml-100k

See :mod:`experiments.configs.ml_100k`; the search has 8 points of 150 epochs for every loss.

Expected NDCG@20 on the published split, mean ± standard deviation of 5 seeds
(``benchmarks/results/quality/losses.csv``):

    bayesian   0.4523 ± 0.0009
    bpr        0.4368 ± 0.0003
    debiased   0.4491 ± 0.0018
    dpl        0.4423 ± 0.0015
    hard       0.4535 ± 0.0008
    info_nce   0.4485 ± 0.0018

Minutes: not measured.
"""

from ..recommend._config import Config
from ..recommend._options import TrainOptions
from . import ml_100k
from .ml_100k import Entry, base, searched, tuned

_RATES = "lr=3e-3,6e-3"
# L2 is a mean over the rows of a batch, and larger than on whole tables.
_STRONG = ("weight_decay=1e-2,3e-2", _RATES)
ENTRIES = {
    loss: Entry(ml_100k.ENTRIES[loss].loss, grid, chosen)
    for loss, grid, chosen in (
        (
            "bayesian",
            ("beta=0.95,1", *_STRONG),
            {"beta": 0.95, "weight_decay": 1e-2, "lr": 3e-3},
        ),
        (
            "bpr",
            ("weight_decay=1e-3,2e-3,3e-3,5e-3", _RATES),
            {"weight_decay": 3e-3, "lr": 6e-3},
        ),
        (
            "debiased",
            ("tau_plus=0.005,0.02", *_STRONG),
            {"tau_plus": 0.005, "weight_decay": 1e-2, "lr": 6e-3},
        ),
        (
            "dpl",
            ("tau_plus=0.07,0.15", "weight_decay=3e-4,1e-3", _RATES),
            {"tau_plus": 0.15, "weight_decay": 3e-4, "lr": 6e-3},
        ),
        (
            "hard",
            ("beta=0.3,1", *_STRONG),
            {"beta": 1.0, "weight_decay": 1e-2, "lr": 3e-3},
        ),
        (
            "info_nce",
            ("temperature=0.7,1", *_STRONG),
            {"temperature": 1.0, "weight_decay": 1e-2, "lr": 6e-3},
        ),
    )
}


def _base(loss: str) -> Config:
    training = TrainOptions(l2_target="rows", eval_every=10, epochs=150, decay=0.3)
    return base(loss, ENTRIES[loss].loss, training, encoder="lightgcn", layers=2)


CONFIGS = {
    **{f"ml-100k-lightgcn-{loss}": tuned(_base(loss), ENTRIES[loss].chosen) for loss in ENTRIES},
    **{
        f"ml-100k-lightgcn-{loss}-search": searched(_base(loss), ENTRIES[loss].grid)
        for loss in ENTRIES
    },
}
