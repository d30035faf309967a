"""Contrastive pre-training and evaluation of text encoders: ``python -m experiments.text``.

Without arguments, pre-trains a small BERT on same-class pairs of sentences from docstrings and
fine-tunes it, in under two minutes. ``--data`` selects your own texts, ``--weights`` published
weights. ``embed`` computes features with a trained encoder.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from .._study_command import main  # imports JAX, so after the signal handlers are set
    from ._embed import main as embed
    from ._study import TextStudy

    return main(TextStudy(), arguments, {"embed": embed})
