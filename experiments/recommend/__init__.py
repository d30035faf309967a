"""Train, evaluate and use a recommender: ``python -m experiments.recommend``.

Without arguments it trains on simulated data, in under a minute. ``--data`` selects your own data,
``--loss`` an objective, ``--recipe`` a tuned configuration. ``topk`` recommends.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from .._study_command import main  # imports JAX, so after the signal handlers are set
    from ._study import Recommend
    from ._topk import main as topk

    return main(Recommend(), arguments, {"topk": topk})
