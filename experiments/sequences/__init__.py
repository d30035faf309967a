"""Sequential recommendation with a causal Transformer: ``python -m experiments.sequences``.

Without arguments, trains SASRec on simulated sequences in under a minute. ``--data`` selects your
own interactions with timestamps, ``--loss`` another objective. ``recommend`` ranks the next items
of new histories with a trained model.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from .._study_command import main  # imports JAX, so after the signal handlers are set
    from ._recommend import main as recommend
    from ._study import Sequences

    return main(Sequences(), arguments, {"recommend": recommend})
