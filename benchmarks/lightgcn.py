"""Full LightGCN epochs against PyTorch: sampling, propagation, gradient and Adam.

Three layers of width 64, BPR with one uniform negative, batches of 2,048, L2 on the embeddings of
the batch before any layer. PyTorch multiplies by one CSR matrix with a symmetric backward
(:mod:`benchmarks._torch_lightgcn`), on one thread and on all. Every contestant runs in a separate
process, which reports its peak memory, and they run alternately, one epoch each.

    python -m benchmarks.lightgcn --data gowalla --out benchmarks/results/lightgcn.json
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import _common as common
from ._worker import Worker

DIM, LAYERS, BATCH_SIZE, LEARNING_RATE, L2, K = 64, 3, 2048, 1e-3, 1e-4, 20
Tables = tuple[np.ndarray, np.ndarray]


def make_ours(split: Any) -> tuple[Callable[[], float], Callable[[], Tables]]:
    """Returns an epoch, which returns its mean loss, and a function for the trained tables."""
    import jax
    import jax.numpy as jnp

    from crl_jax import losses, models, tasks, train

    common.tune_compiler()

    task = tasks.Ranking.from_interactions(
        split.train,
        encoder=models.LightGCN.from_interactions(split.train, DIM, LAYERS),
        loss=losses.bpr,
        l2=L2,
        l2_target="rows",
    )
    optimizer = train.Optimizer(jnp.float32(LEARNING_RATE))
    batches, plan = train.ArrayBatches(task.seen), train.TrainConfig(BATCH_SIZE)

    @jax.jit
    def start(task: Any, optimizer: Any) -> Any:
        return train.initial_state(task, optimizer, 0)

    def run(state: Any, epoch: Any, task: Any, optimizer: Any, batches: Any) -> Any:
        steps = batches.epoch(jax.random.fold_in(state.key, epoch), plan)
        return train.run_steps(
            task, optimizer, state, steps, config=plan, data=batches.data, epoch=epoch
        )

    compiled, state, number = train.jit(run, donate_argnums=0), start(task, optimizer), 0

    def epoch() -> float:
        nonlocal state, number
        state, report = compiled(state, np.int32(number), task, optimizer, batches)
        number += 1
        return float(report["loss"])

    def tables() -> Tables:
        served = jax.jit(lambda task, params: task.serving.serving_tables(params))(
            task, state.params
        )
        return np.asarray(served.users), np.asarray(served.items)

    return epoch, tables


def make_torch(split: Any, threads: int) -> tuple[Callable[[], float], Callable[[], Tables]]:
    """Returns the same functions in PyTorch."""
    import torch

    from ._torch_lightgcn import Trainer

    torch.set_num_threads(threads)
    log = split.train
    trainer = Trainer(
        log.users, log.items, log.n_users, log.n_items, dim=DIM, n_layers=LAYERS,
        batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, l2=L2,
    )  # fmt: skip
    return lambda: trainer.epoch().loss, trainer.tables


def score(split: Any, tables: Tables) -> float:
    """Computes NDCG@20 on the test part."""
    import jax.numpy as jnp

    from crl_jax import metrics, models

    plan = metrics.eval_layout(split.train, split.test)
    served = models.Tables(*map(jnp.asarray, tables))
    values = metrics.evaluate(models.inner_scores, served, plan, ks=(K,), auc=False)
    return metrics.summarize(values)[f"ndcg@{K}"]


def work(name: str, folder: Path) -> None:
    """Runs one epoch per input line; finally reports peak memory and NDCG@20."""
    from crl_jax import data

    split = data.load(folder)
    if name == "crl_jax":
        epoch, tables = make_ours(split)
    else:
        epoch, tables = make_torch(split, int(name.rpartition(" ")[2]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for line in sys.stdin:
        if line.strip() == "end":
            break
        wall, cpu = time.perf_counter(), time.process_time()
        loss = epoch()
        told = {
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "loss": loss,
        }
        print(json.dumps(told), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = {"peak_mb": peak / 1024, "grown_mb": (peak - before) / 1024}
    print(json.dumps({**memory, "ndcg@20": score(split, tables())}), flush=True)


class Contestant:
    """Process that runs epochs on request."""

    def __init__(self, name: str, folder: Path):
        self.name = name
        self._worker = Worker("lightgcn", "--worker", name, "--data", folder)
        self.epochs: list[dict[str, float]] = []

    def run(self) -> None:
        """Runs one epoch."""
        self.epochs.append(json.loads(self._worker.ask("epoch")))

    def row(self) -> dict[str, Any]:
        """Returns the figures; the first epoch, which compiles, is reported separately."""
        first, *others = self.epochs
        return {
            "name": self.name,
            "first_epoch_seconds": first["seconds"],
            "epoch_seconds": statistics.median(e["seconds"] for e in others),
            "epoch_seconds_min": min(e["seconds"] for e in others),
            "epoch_cpu_seconds": statistics.median(e["cpu_seconds"] for e in others),
            "last_loss": others[-1]["loss"],
            **json.loads(self._worker.ask("end")),
        }


def main() -> None:
    """Measures, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, type=Path, help="folder with a split")
    parser.add_argument("--epochs", type=common.count, default=3, help="epochs after the first")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.data)
        return
    result: dict[str, Any] = {
        "benchmark": "lightgcn",
        "machine": common.machine(),
        "versions": common.versions("jax", "jaxlib", "torch", "numpy"),
        "data": options.data.resolve().name,
        "setting": {"dim": DIM, "layers": LAYERS, "batch_size": BATCH_SIZE},
    }
    threads = sorted({1, len(os.sched_getaffinity(0))})
    names = ["crl_jax", *(f"PyTorch, threads: {n}" for n in threads)]
    contestants = [Contestant(name, options.data) for name in names]
    for _ in range(options.epochs + 1):
        for contestant in contestants:
            contestant.run()
    rows = [contestant.row() for contestant in contestants]
    best = min(row["epoch_seconds"] for row in rows[1:])
    for row in rows:
        row["times_best_pytorch"] = row["epoch_seconds"] / best
    common.print_table(rows)
    if options.out:
        common.write_json(options.out, {**result, "rows": rows})


if __name__ == "__main__":
    main()
