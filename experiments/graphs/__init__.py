"""Graph representation learning and evaluation: ``python -m experiments.graphs``.

Without arguments, trains GraphCL on simulated graphs in under a minute. ``--data`` selects your
own graphs, ``--loss`` another objective. ``embed`` computes features with a trained encoder.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from .._study_command import main  # imports JAX, so after the signal handlers are set
    from ._embed import main as embed
    from ._study import GraphStudy

    return main(GraphStudy(), arguments, {"embed": embed})
