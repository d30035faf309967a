"""Entry point of ``python -m experiments.pairs``."""

import sys

from .._signals import run_with_signals
from . import main

if __name__ == "__main__":
    sys.exit(run_with_signals(main))
