"""Epochs of a training with exact ranks: by the sorting network of the library, and by XLA's sort.

:func:`crl_jax.tasks.fit_ranking` trains matrix factorisation by BCL on simulated interactions, with
the items of a batch as negatives: each step ranks a square matrix of scores. The contestants differ
in what :func:`crl_jax.stats.ranks` calls for long rows. Each trains in a separate process, in
turns; the first epoch, which compiles, does not count.

    python -m benchmarks.sorting_network --out benchmarks/results/sorting_network.csv
"""

import importlib
import itertools
import time
from functools import partial
from typing import Any

from ._processes import in_process
from ._report import Report, add_ratio, alternate, count, one_line_errors, parser, summarize

METHODS = ("sorting network", "XLA sort and search")


def train_epochs(method: str, batch_size: int, epochs: int) -> tuple[list[float], float]:
    """Returns the seconds of each epoch after the first, and the last loss."""
    from crl_jax import losses, models, samplers, tasks, train
    from crl_jax.data import simulate
    from experiments._compiler import tune_compiler

    tune_compiler()
    if method != METHODS[0]:
        ranks: Any = importlib.import_module("crl_jax.stats._ranks")
        ranks.bitonic_ranks = ranks._ranks_by_search
    end_times = []

    class Clock(train.Callback):
        def on_report(self, loop: Any) -> None:
            end_times.append(time.perf_counter())

    log = simulate(n_users=3000, n_items=4000, n_exposed=60, seed=1).interactions
    fitted = tasks.fit_ranking(
        log,
        loss=losses.bayesian_contrastive,
        hyperparams={"tau_plus": 0.05, "alpha": 0.9, "beta": 0.7},
        encoder=models.MatrixFactorization(log.n_users, log.n_items, 64),
        sampler=samplers.InBatch(),
        config=train.TrainConfig(batch_size),
        epochs=epochs + 1,
        hooks=[Clock()],
    )
    seconds = [after - before for before, after in itertools.pairwise(end_times)]
    return seconds, float(fitted.history[-1]["loss"][0])


@one_line_errors
def main() -> None:
    """Trains with both methods alternately."""
    arguments = parser(__doc__)
    arguments.add_argument("--batch-size", type=count, default=4096, help="interactions per step")
    arguments.add_argument("--epochs", type=count, default=2, help="timed epochs after the first")
    arguments.add_argument("--rounds", type=count, default=3, help="processes per method")
    args = arguments.parse_args()
    report = Report(args.out, "jax", "jaxlib", "numpy", batch_size=args.batch_size)
    calls = {
        method: partial(in_process, train_epochs, method, args.batch_size, args.epochs)
        for method in METHODS
    }
    rows = []
    for method, runs in alternate(calls, args.rounds).items():
        seconds = [s for times, _ in runs for s in times]
        rows.append({"method": method, **summarize("epoch_seconds", seconds), "loss": runs[-1][1]})
    add_ratio(rows, "times_sorting_network", "epoch_seconds")
    report.add(rows)


if __name__ == "__main__":
    main()
