"""How well the estimators of the denominator do their work: ``python -m experiments.numerical``.

Scores are drawn from populations whose labels are known, and the estimates compared with the mean
over the true negatives.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from ._run import main  # with JAX, after signals are minded

    return main(arguments)
