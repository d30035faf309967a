"""In-batch softmax over the items of a large batch, forward and backward, against PyTorch.

Each user of a batch has one item, and the other items of the batch are its negatives: InfoNCE of
cosines, width 64, value and gradient with respect to the embeddings of users and items. "Training"
is the loss of :class:`crl_jax.tasks.Ranking`, which materialises all scores and its sampler's mask;
the tiled version is :func:`crl_jax.losses.tiled_tower_loss`. PyTorch normalises, multiplies and
computes the cross-entropy, on one thread and on all. No user has interacted with another item of
the batch, so every mask keeps the same negatives. Value and gradient are checked against NumPy's
float64 before any timing.

Each contestant is a separate process, and the processes run alternately, so that a busy moment of
the machine affects all of them. Wall time and CPU time of all cores are reported. Memory is the
growth of the process during its first step, after compilation (``VmHWM`` of Linux, reset before
it).

    python -m benchmarks.in_batch --out benchmarks/results/in_batch.csv
"""

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from ._processes import Worker, growth_mb
from ._report import (
    THREADS,
    Report,
    Row,
    Timing,
    add_ratio,
    alternate,
    count,
    one_line_errors,
    parser,
    spread,
    timed,
)

DIM, TEMPERATURE = 64, 0.12
BATCHES = [2048, 4096, 8192, 16_384]
MASKS = {"crl_jax, training": "seen", "crl_jax, training, mask self": "self"}
TILED = "crl_jax, tiled"
TURN = 3
MOST = 1e-4
"""Largest permitted error of a value or gradient, relative to the largest entry."""
ROWS = 1024
"""Number of anchors whose scores the reference holds at a time."""
Answer = tuple[Any, Any, Any]
"""Value, and the gradients with respect to users and items."""


def rows_of(batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns correlated embeddings of users and of their items."""
    rng = np.random.default_rng(0)
    users = rng.normal(size=(batch, DIM))
    items = 0.5 * users + rng.normal(size=(batch, DIM))
    return users.astype(np.float32), items.astype(np.float32)


def training(batch: int, mask: Any) -> Callable[[], Answer]:
    """Returns the compiled loss and gradient of a training step, with the embeddings as tables."""
    import jax
    import jax.numpy as jnp

    from crl_jax import data, losses, models, samplers, tasks, train
    from experiments._compiler import tune_compiler

    tune_compiler()

    everyone = np.arange(batch)
    task = tasks.Ranking.from_interactions(
        data.Interactions.from_arrays(everyone, everyone),
        encoder=models.MatrixFactorization(batch, batch, DIM, similarity="cosine"),
        loss=losses.info_nce,
        hyperparams={"temperature": jnp.float32(TEMPERATURE)},
        sampler=samplers.InBatch(mask),
    )
    key, zero = jax.random.key(0), jnp.float32(0)
    _, model_state = task.init(key)
    draw = task.batch(key, train.Batch(jnp.asarray(everyone), task.seen))
    ctx = train.StepContext(key, jnp.int32(0), zero, jnp.ones(batch, bool), jnp.float32(batch))

    def value(users: Any, items: Any, task: Any, *about: Any) -> Any:
        return task.loss({"users": users, "items": items}, *about)[0]

    return compiled(value, batch, task, model_state, draw, ctx)


def tiled(batch: int) -> Callable[[], Answer]:
    """Returns the tiled version of the same step."""
    from crl_jax import losses

    def value(users: Any, items: Any) -> Any:
        rows = losses.normalize(users), losses.normalize(items)
        return losses.tiled_tower_loss(losses.info_nce, *rows, temperature=TEMPERATURE)

    return compiled(value, batch)


def compiled(value: Callable[..., Any], batch: int, *about: Any) -> Callable[[], Answer]:
    """Compiles value and gradient of a function of the embeddings and further arguments."""
    import jax
    import jax.numpy as jnp

    rows = tuple(map(jnp.asarray, rows_of(batch)))
    leaves, tree = jax.tree.flatten(about)

    @jax.value_and_grad
    def both(rows: Any, leaves: Any) -> Any:
        return value(*rows, *jax.tree.unflatten(tree, leaves))

    # Passes leaves: `lower` would build the library's classes from objects that are not arrays.
    step = jax.jit(both).lower(rows, leaves).compile()

    def run() -> Answer:
        loss, gradients = jax.block_until_ready(step(rows, leaves))
        return loss, *gradients

    return run


def torch_step(batch: int, threads: int) -> Callable[[], Answer]:
    """Returns the same step in PyTorch."""
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    rows = [torch.from_numpy(x).requires_grad_() for x in rows_of(batch)]
    own = torch.arange(batch)

    def run() -> Answer:
        users, items = map(F.normalize, rows)
        # Dividing the embeddings by the temperature costs less than dividing the scores.
        loss = F.cross_entropy((users / TEMPERATURE) @ items.T, own)
        return loss.detach(), *torch.autograd.grad(loss, rows)

    return run


def build(name: str, batch: int) -> Callable[[], Answer]:
    """Returns the step of a contestant."""
    if name in MASKS:
        return training(batch, MASKS[name])
    if name == TILED:
        return tiled(batch)
    return torch_step(batch, int(name.rpartition(" ")[2]))


def reference(batch: int) -> Answer:
    """Computes value and gradients in float64, in blocks of anchors."""
    raw = [x.astype(np.float64) for x in rows_of(batch)]
    lengths = [np.linalg.norm(x, axis=1, keepdims=True) for x in raw]
    users, items = (x / length for x, length in zip(raw, lengths, strict=True))
    total, slopes = 0.0, [np.zeros_like(users), np.zeros_like(items)]
    for first in range(0, batch, ROWS):
        some = slice(first, first + ROWS)
        scores = users[some] @ items.T / TEMPERATURE
        own = np.arange(len(scores)), np.arange(batch)[some]
        power = np.exp(scores)
        whole = power.sum(axis=1, keepdims=True)
        total += np.sum(np.log(whole[:, 0]) - scores[own])
        share = power / whole
        share[own] -= 1
        slopes[0][some] = share @ items
        slopes[1] += share.T @ users[some]
    of_users, of_items = (
        (slope - unit * np.sum(slope * unit, axis=1, keepdims=True)) / length / TEMPERATURE / batch
        for slope, unit, length in zip(slopes, (users, items), lengths, strict=True)
    )
    return total / batch, of_users, of_items


def error_of(answer: Answer, wanted: Answer) -> float:
    """Returns the largest error of value and gradients, each relative to its largest entry."""
    errors = [
        np.abs(np.asarray(got) - want).max() / np.abs(want).max()
        for got, want in zip(answer, wanted, strict=True)
    ]
    return float(np.max(errors))  # propagates nan


def make(name: str, batch: int) -> tuple[tuple[float, list[Any]], Callable[[], Timing]]:
    """Returns memory and answer of a contestant's first step, and a timed step."""
    run = build(name, batch)
    grown, answer = growth_mb(run)
    return (grown, list(map(np.asarray, answer))), lambda: timed(run)._replace(value=None)


def measure(batch: int, repeats: int) -> list[Row]:
    """Times all contestants alternately at one batch size.

    Raises:
      SystemExit: If an error exceeds floating-point tolerance; checked before any timing.
    """
    names = [*MASKS, TILED, *(f"PyTorch, threads: {n}" for n in THREADS)]
    workers = {name: Worker(make, name, batch) for name in names}
    wanted = reference(batch)
    errors = {name: error_of(worker.first[1], wanted) for name, worker in workers.items()}
    for name, error in errors.items():
        if not error <= MOST:
            raise SystemExit(f"{name} of {batch} is wrong: off by {error:.2g}")
    turns = alternate(workers, repeats, TURN)
    rows = []
    for name, worker in workers.items():
        worker.end()
        rows.append(
            {
                "batch": batch,
                "name": name,
                **spread("step_ms", [1e3 * timing.seconds for timing in turns[name]]),
                "step_cpu_ms": 1e3 * statistics.median(t.cpu_seconds for t in turns[name]),
                "grown_mb": worker.first[0],
                "error": errors[name],
            }
        )
    add_ratio(rows, "times_training", "step_ms")
    return rows


@one_line_errors
def main() -> None:
    """Measures all batch sizes."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--batches", type=count, nargs="+", default=BATCHES, help="numbers of users per batch"
    )
    arguments.add_argument("--repeats", type=count, default=5, help=f"turns of {TURN} steps each")
    args = arguments.parse_args()
    report = Report(args.out, "jax", "jaxlib", "torch", "numpy", dim=DIM, temperature=TEMPERATURE)
    for batch in args.batches:
        report.add(measure(batch, args.repeats))


if __name__ == "__main__":
    main()
