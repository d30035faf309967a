"""Train, evaluate and use a recommender: ``python -m experiments.recommend``.

Without arguments it trains BPR on simulated data, in under a minute. ``--data`` takes your own,
``--loss`` another objective, ``--recipe`` a tuned configuration. ``topk`` recommends.
"""

import sys

from ._signals import mind


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    from ._recommend import main  # with JAX, after signals are minded

    return main(arguments)


if __name__ == "__main__":
    sys.exit(mind(main))
