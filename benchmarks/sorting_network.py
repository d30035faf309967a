"""Epochs of a training with exact ranks: by the sorting network of the library, and by XLA's sort.

:func:`crl_jax.tasks.fit_ranking` trains matrix factorisation by BCL on simulated interactions, with
the items of a batch as negatives: each step ranks a square matrix of scores. The contestants differ
in what :func:`crl_jax.stats.ranks` calls for long rows. Each trains in a separate process, in
turns; the first epoch, which compiles, does not count.

    python -m benchmarks.sorting_network --out benchmarks/results/sorting_network.json
"""

import argparse
import importlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import _common as common

METHODS = ("sorting network", "XLA sort and search")


def work(method: str, batch_size: int, epochs: int) -> None:
    """Prints the seconds of each epoch after the first, and the last loss."""
    from crl_jax import losses, models, samplers, tasks, train
    from crl_jax.data import simulate

    common.tune_compiler()
    if method != METHODS[0]:
        ranks: Any = importlib.import_module("crl_jax.stats._ranks")
        ranks.bitonic_ranks = ranks._ranks_by_search
    ends = []

    class Clock(train.Callback):
        def on_report(self, loop: Any) -> None:
            ends.append(time.perf_counter())

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
    seconds = [after - before for before, after in itertools.pairwise(ends)]
    print(json.dumps({"seconds": seconds, "loss": fitted.history[-1]["loss"][0]}))


def measure(method: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures that one process of a method prints."""
    command = [sys.executable, "-m", "benchmarks.sorting_network", "--worker", method]
    command += [f"--batch-size={options.batch_size}", f"--epochs={options.epochs}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measures, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    default = Path(__file__).parent / "results" / "sorting_network.json"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--batch-size", type=common.count, default=4096)
    parser.add_argument("--epochs", type=common.count, default=2, help="epochs after the first")
    parser.add_argument("--rounds", type=common.count, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.batch_size, options.epochs)
        return
    result: dict[str, Any] = {
        "benchmark": "sorting_network",
        "machine": common.machine(),
        "versions": common.versions("jax", "jaxlib", "numpy"),
        "batch_size": options.batch_size,
    }
    turns = [[measure(method, options) for method in METHODS] for _ in range(options.rounds)]
    rows = []
    for method, outcomes in zip(METHODS, zip(*turns)):
        seconds = [s for outcome in outcomes for s in outcome["seconds"]]
        epoch = statistics.median(seconds)
        rows.append({"method": method, "epoch_seconds": epoch, "loss": outcomes[-1]["loss"]})
    for row in rows:
        row["times_sorting_network"] = row["epoch_seconds"] / rows[0]["epoch_seconds"]
    common.print_table(rows)
    common.write_json(options.out, {**result, "rows": rows})


if __name__ == "__main__":
    main()
