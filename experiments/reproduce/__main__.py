"""``python -m experiments.reproduce``, with signal handling set up before JAX is imported."""

import sys

from .._signals import mind
from . import main

sys.exit(mind(main))
