"""Yelp2018, standard split: LightGCN of three layers and width 64 with BSL.

    python -m experiments.recommend --recipe yelp2018-lightgcn-bsl --data yelp2018 --out runs/bsl

Expected recall@20 and NDCG@20, mean ± standard deviation of 3 seeds, and minutes per seed on one
CPU core (``benchmarks/results/standard/losses.csv``):

    lightgcn-bsl   0.0728 ± 0.0003   0.0603 ± 0.0002   32
"""

from .gowalla import lightgcn_bsl

CONFIGS = {
    "yelp2018-lightgcn-bsl": lightgcn_bsl("yelp2018", 3, 1.12, 0.15, lr=2e-3, epochs=30),
}
