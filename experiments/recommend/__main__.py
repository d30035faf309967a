"""Entry point of ``python -m experiments.recommend``."""

import sys

from .._signals import mind
from . import main

if __name__ == "__main__":
    sys.exit(mind(main))
