"""The commands by name: ``python -m experiments NAME …``, and ``crl-jax NAME …`` once installed."""

import importlib
import sys

from ._program import NAMES, SCRIPT
from ._signals import run_with_signals


def main() -> int:
    """Runs the command that the first argument names, with the others, and returns its status."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name not in NAMES:
        help_requested = name in ("-h", "--help")
        usage = (
            f"usage: {SCRIPT} {{{','.join(NAMES)}}} …  ({SCRIPT} NAME --help for the flags of each)"
        )
        print(usage, file=sys.stdout if help_requested else sys.stderr)
        return 0 if help_requested else 2
    module = importlib.import_module(f".{name}", __package__)

    def command() -> int:
        try:
            return module.main(arguments)
        except ModuleNotFoundError as error:
            print(
                f"error: {error}; pip install 'crl_jax[experiments]' brings what commands need.",
                file=sys.stderr,
            )
            return 2

    return run_with_signals(command)


if __name__ == "__main__":
    sys.exit(main())
