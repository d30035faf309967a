"""Named configurations of ``python -m experiments.recommend --recipe NAME``."""

from ..configs import gowalla, ml_100k, ml_100k_lightgcn, new_data, yelp2018
from ._config import Config

RECIPES: dict[str, Config] = {
    **new_data.CONFIGS,
    **ml_100k.CONFIGS,
    **ml_100k_lightgcn.CONFIGS,
    **gowalla.CONFIGS,
    **yelp2018.CONFIGS,
}
