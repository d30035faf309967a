"""Calibration of false-negative posteriors on known truths: ``python -m experiments.calibration``.

Each method predicts which unlabelled samples are positives, and labels measure the accuracy
of its probabilities.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from ._run import main  # imports JAX, after the signal handlers are installed

    return main(arguments)
