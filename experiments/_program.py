"""How the commands are called, which depends on how they were installed."""

import sys
from pathlib import Path

SCRIPT = "crl-jax"
NAMES = ("recommend", "images", "graphs", "pairs", "text", "numerical", "reproduce")


def program(name: str) -> str:
    """What to type for a command: ``python -m experiments.NAME``, or ``crl-jax NAME``."""
    if Path(sys.argv[0]).stem == SCRIPT:
        return f"{SCRIPT} {name}"
    return f"python -m {__package__}.{name}"


def flag(name: str) -> str:
    """The flag of a field, such as ``--weight-decay`` of ``weight_decay``."""
    return f"--{name.replace('_', '-')}"
