"""Named configurations of ``python -m experiments.text --recipe NAME``."""

from ..configs import conbert, simcse
from ._config import Config

RECIPES: dict[str, Config] = {**conbert.CONFIGS, **simcse.CONFIGS}
"""All require ``--weights``, such as those of ``bert-base-chinese``."""
