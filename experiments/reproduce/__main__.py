"""``python -m experiments.reproduce``, with signal handling set up before JAX is imported."""

import sys

from .._signals import run_with_signals
from . import main

sys.exit(run_with_signals(main))
