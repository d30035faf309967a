"""Accuracy of the estimators of the contrastive denominator: ``python -m experiments.numerical``.

Scores are drawn from populations with known labels, and the estimates are compared with the mean
over the true negatives.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from ._run import main  # imports JAX, after the signal handlers are installed

    return main(arguments)
