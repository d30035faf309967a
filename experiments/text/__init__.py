"""Pre-train encoders of texts by contrast and judge them: ``python -m experiments.text``.

Without arguments it pre-trains a small BERT on pairs of one class, of sentences from docstrings,
and fine-tunes it, in under two minutes. ``--data`` takes your own texts, ``--weights`` published
ones. ``embed`` uses what was learned.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from .._study_command import main  # with JAX, after signals are minded
    from ._embed import main as embed
    from ._study import TextStudy

    return main(TextStudy(), arguments, {"embed": embed})
