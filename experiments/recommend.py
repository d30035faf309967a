"""Train, evaluate and use a recommender: ``python -m experiments.recommend``.

Without arguments it trains on simulated data, in under a minute. ``--data`` selects your own data,
``--loss`` an objective, ``--recipe`` a tuned configuration. ``topk`` recommends.
"""

import sys

from ._signals import mind


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from ._recommend import Recommend  # imports JAX, so after the signal handlers are set
    from ._study_command import main
    from ._topk import main as topk

    return main(Recommend(), arguments, {"topk": topk})


if __name__ == "__main__":
    sys.exit(mind(main))
