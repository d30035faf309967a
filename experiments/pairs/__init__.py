"""Learn to find images by texts and texts by images: ``python -m experiments.pairs``.

Without arguments it trains CLIP on scikit-learn's digits with texts made of their names, in under a
minute. ``--data`` takes your own images with texts, ``--loss`` another objective. ``embed`` uses
what was learned.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from .._study_command import main  # with JAX, after signals are minded
    from ._embed import main as embed
    from ._study import Pairs

    return main(Pairs(), arguments, {"embed": embed})
