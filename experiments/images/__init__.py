"""Image representation learning and evaluation: ``python -m experiments.images``.

Without arguments, trains SimCLR on scikit-learn's digits in under two minutes. ``--data`` selects
your own images, ``--loss`` and ``--method`` another objective, ``--recipe`` a published
configuration. ``embed`` computes features with a trained encoder.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from .._study_command import main  # imports JAX, so after the signal handlers are set
    from ._embed import main as embed
    from ._study import Images

    return main(Images(), arguments, {"embed": embed})
