"""Learn representations of graphs and judge them: ``python -m experiments.graphs``.

Without arguments it trains GraphCL on simulated graphs, in under a minute. ``--data`` takes your
own graphs, ``--loss`` another objective. ``embed`` uses what was learned.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from .._study_command import main  # with JAX, after signals are minded
    from ._embed import main as embed
    from ._study import GraphStudy

    return main(GraphStudy(), arguments, {"embed": embed})
