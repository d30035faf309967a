"""Named configurations, one file per family: ``python -m experiments.COMMAND --recipe NAME``.

The docstring of each file has its command, and the expected results and minutes as far as they are
committed in ``benchmarks/results``.
"""
