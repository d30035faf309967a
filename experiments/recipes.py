"""Named configurations of ``python -m experiments.recommend --recipe NAME``."""

from ._config import Config
from .configs import gowalla, ml_100k, ml_100k_lightgcn, yelp2018

RECIPES: dict[str, Config] = {
    **ml_100k.CONFIGS,
    **ml_100k_lightgcn.CONFIGS,
    **gowalla.CONFIGS,
    **yelp2018.CONFIGS,
}
