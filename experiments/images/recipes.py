"""Named configurations of ``python -m experiments.images --recipe NAME``."""

from ..configs import cifar10_small, resnet50
from ._config import Config

RECIPES: dict[str, Config] = {**resnet50.CONFIGS, **cifar10_small.CONFIGS}
