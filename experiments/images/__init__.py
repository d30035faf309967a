"""Learn representations of images and judge them: ``python -m experiments.images``.

Without arguments it trains SimCLR on scikit-learn's digits, in under two minutes. ``--data`` takes
your own images, ``--loss`` and ``--method`` another objective, ``--recipe`` a published
configuration. ``embed`` uses what was learned.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from .._study_command import main  # with JAX, after signals are minded
    from ._embed import main as embed
    from ._study import Images

    return main(Images(), arguments, {"embed": embed})
