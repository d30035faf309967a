"""Named configurations of ``python -m experiments.pairs --recipe NAME``."""

from ..configs import flickr8k, pictograms
from ._config import Config

RECIPES: dict[str, Config] = {**flickr8k.CONFIGS, **pictograms.CONFIGS}
