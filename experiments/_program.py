"""Names of the commands, which depend on the installation, and of their flags."""

import sys
from pathlib import Path

SCRIPT = "crl-jax"
NAMES = ("recommend", "images", "graphs", "pairs", "text", "numerical", "reproduce")


def program(name: str) -> str:
    """Returns the shell command: ``python -m experiments.NAME``, or ``crl-jax NAME``."""
    if Path(sys.argv[0]).stem == SCRIPT:
        return f"{SCRIPT} {name}"
    return f"python -m {__package__}.{name}"


def flag(name: str) -> str:
    """Returns the flag of a field, such as ``--weight-decay`` for ``weight_decay``."""
    return f"--{name.replace('_', '-')}"
