"""Reproduce tables and figures of the dissertation: ``python -m experiments.reproduce TARGET``.

Each target is one command on a dataset folder: it trains the methods of the table or figure, prints
our results next to the published ones, and writes Markdown, CSV and PNG.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from .command import main  # imports JAX, after signal handling is set up

    return main(arguments)
