"""Full LightGCN epochs against PyTorch: sampling, propagation, gradient and Adam.

Three layers of width 64, BPR with one uniform negative, batches of 2,048, L2 on the embeddings of
the batch before any layer. PyTorch multiplies by one CSR matrix with a symmetric backward
(:mod:`benchmarks._torch_lightgcn`), on one thread and on all. Every contestant runs in a separate
process, which reports its peak memory, and they run alternately, one epoch each.

    python -m benchmarks.lightgcn --data gowalla --out benchmarks/results/lightgcn.csv
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ._processes import Worker, memory_mb
from ._report import (
    THREADS,
    Report,
    Timing,
    add_ratio,
    alternate,
    count,
    one_line_errors,
    parser,
    summarize,
    timed,
)

DIM, LAYERS, BATCH_SIZE, LEARNING_RATE, L2, K = 64, 3, 2048, 1e-3, 1e-4, 20
Tables = tuple[np.ndarray, np.ndarray]


def make_ours(split: Any) -> tuple[Callable[[], float], Callable[[], Tables]]:
    """Returns an epoch, which returns its mean loss, and a function for the trained tables."""
    import jax
    import jax.numpy as jnp

    from crl_jax import losses, models, tasks, train
    from experiments._compiler import tune_compiler

    tune_compiler()

    task = tasks.Ranking.from_interactions(
        split.train,
        encoder=models.LightGCN.from_interactions(split.train, DIM, LAYERS),
        loss=losses.bpr,
        l2=L2,
        l2_target="rows",
    )
    optimizer = train.Optimizer(jnp.float32(LEARNING_RATE))
    batches, config = train.ArrayBatches(task.seen), train.TrainConfig(BATCH_SIZE)

    @jax.jit
    def start(task: Any, optimizer: Any) -> Any:
        return train.initial_state(task, optimizer, 0)

    def run(state: Any, epoch: Any, task: Any, optimizer: Any, batches: Any) -> Any:
        steps = batches.epoch(jax.random.fold_in(state.key, epoch), config)
        return train.run_steps(
            task, optimizer, state, steps, config=config, data=batches.data, epoch=epoch
        )

    compiled, state, epoch_index = train.jit(run, donate_argnums=0), start(task, optimizer), 0

    def epoch() -> float:
        nonlocal state, epoch_index
        state, report = compiled(state, np.int32(epoch_index), task, optimizer, batches)
        epoch_index += 1
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
    return trainer.epoch, trainer.tables


def score(split: Any, tables: Tables) -> float:
    """Computes NDCG@20 on the test part."""
    import jax.numpy as jnp

    from crl_jax import metrics, models

    layout = metrics.eval_layout(split.train, split.test)
    served = models.Tables(*map(jnp.asarray, tables))
    values = metrics.evaluate(models.inner_scores, served, layout, ks=(K,), auc=False)
    return metrics.summarize(values)[f"ndcg@{K}"]


def make(name: str, folder: Path) -> tuple[Timing, Callable[..., Any]]:
    """Returns the timing of a contestant's first epoch, and the function of an epoch.

    The function returns the peak memory and NDCG@20 instead, if ``last`` is true.
    """
    from crl_jax import data

    split = data.load(folder)
    if name == "crl_jax":
        epoch, tables = make_ours(split)
    else:
        epoch, tables = make_torch(split, int(name.rpartition(" ")[2]))

    def call(last: bool = False) -> Any:
        return (memory_mb(), score(split, tables())) if last else timed(epoch)

    return call(), call


@one_line_errors
def main() -> None:
    """Times epochs of all contestants alternately."""
    arguments = parser(__doc__)
    arguments.add_argument("--data", required=True, type=Path, help="folder of a dataset's split")
    arguments.add_argument("--epochs", type=count, default=3, help="timed epochs after the first")
    args = arguments.parse_args()
    report = Report(
        args.out, "jax", "jaxlib", "torch", "numpy", data=args.data.resolve().name, dim=DIM,
        layers=LAYERS, batch_size=BATCH_SIZE,
    )  # fmt: skip
    names = ["crl_jax", *(f"PyTorch, threads: {n}" for n in THREADS)]
    workers = {name: Worker(make, name, args.data) for name in names}
    rows = []
    for name, epochs in alternate(workers, args.epochs).items():
        peak, ndcg = workers[name](True)
        workers[name].end()
        rows.append(
            {
                "name": name,
                "first_epoch_seconds": workers[name].first.seconds,
                **summarize("epoch_seconds", [epoch.seconds for epoch in epochs]),
                "epoch_cpu_seconds": statistics.median(epoch.cpu_seconds for epoch in epochs),
                "last_loss": epochs[-1].value,
                "peak_mb": peak,
                f"ndcg@{K}": ndcg,
            }
        )
    add_ratio(
        rows, "times_best_pytorch", "epoch_seconds", min(r["epoch_seconds"] for r in rows[1:])
    )
    report.add(rows)


if __name__ == "__main__":
    main()
