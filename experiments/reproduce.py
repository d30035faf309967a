"""Tables and figures of the dissertation, made anew: ``python -m experiments.reproduce TARGET``.

Each target is one command on a dataset folder: it trains what the table or figure compares, prints
our numbers beside the published ones, and writes Markdown, CSV and PNG.
"""

import sys

from ._signals import mind


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from ._reproduce import main  # with JAX, after signals are minded

    return main(arguments)


if __name__ == "__main__":
    sys.exit(mind(main))
