"""New data: the defaults of a run without a recipe, and those of one loss.

    python -m experiments.recommend --recipe start --data ratings.csv
    python -m experiments.recommend --recipe start-info_nce --data ratings.csv

Both search on validation data. Expected regret over eight datasets, relative to the best of all
searches: ``benchmarks/results/defaults/methods.csv``.
"""

from ..recommend.start import start

CONFIGS = {"start": start({}), "start-info_nce": start({"loss": "info_nce"})}
