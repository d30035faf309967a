"""Contrastive image-text learning and cross-modal retrieval: ``python -m experiments.pairs``.

Without arguments, trains CLIP on scikit-learn's digits, captioned with their names, in under a
minute. ``--data`` selects your own captioned images, ``--loss`` another objective. ``embed``
computes embeddings with trained encoders.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from .._study_command import main  # imports JAX, so after the signal handlers are set
    from ._embed import main as embed
    from ._study import Pairs

    return main(Pairs(), arguments, {"embed": embed})
