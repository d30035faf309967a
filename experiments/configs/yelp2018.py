"""Yelp2018, standard split: LightGCN of three layers and width 64 with BSL, or BPR and XSimGCL.

    python -m experiments.recommend --recipe yelp2018-lightgcn-bsl --data yelp2018 --out runs/bsl

``yelp2018-lightgcn-xsimgcl`` has the published weight, noise, temperature and layer of XSimGCL, and
five negatives per anchor where the published code has one.

Expected recall@20 and NDCG@20, mean ± standard deviation of 3 seeds, of XSimGCL one seed, and
minutes per seed on one CPU core (``benchmarks/results/standard/losses.csv``):

    lightgcn-bsl       0.0728 ± 0.0003   0.0603 ± 0.0002   32
    lightgcn-xsimgcl   0.0717            0.0591            86
"""

from dataclasses import replace

from ..recommend._config import ContrastOptions
from ..recommend._options import TrainOptions
from .gowalla import lightgcn_bsl, standard_split

_XSIMGCL = standard_split(
    "yelp2018",
    {"loss": "bpr", "n_neg": 5},
    {"sampler": "rns"},
    {"encoder": "lightgcn", "layers": 3, "similarity": "inner"},
    TrainOptions(lr=1e-3, weight_decay=1e-4, schedule="constant", epochs=20, batch_size=2048),
)
CONFIGS = {
    "yelp2018-lightgcn-bsl": lightgcn_bsl("yelp2018", 3, 1.12, 0.15, lr=2e-3, epochs=30),
    "yelp2018-lightgcn-xsimgcl": replace(_XSIMGCL, contrasting=ContrastOptions(contrast="xsimgcl")),
}
