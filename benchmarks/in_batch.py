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
    summarize,
    timed,
)

DIM, TEMPERATURE = 64, 0.12
BATCHES = [2048, 4096, 8192, 16_384]
MASKS = {"crl_jax, training": "seen", "crl_jax, training, mask self": "self"}
TILED = "crl_jax, tiled"
STEPS_PER_TURN = 3
MAX_ERROR = 1e-4
"""Largest permitted error of a value or gradient, relative to the largest entry."""
ROWS = 1024
"""Number of anchors whose scores the reference holds at a time."""
ValueAndGradients = tuple[Any, Any, Any]
"""Value, and the gradients with respect to users and items."""


def make_embeddings(batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns correlated embeddings of users and of their items."""
    rng = np.random.default_rng(0)
    users = rng.normal(size=(batch, DIM))
    items = 0.5 * users + rng.normal(size=(batch, DIM))
    return users.astype(np.float32), items.astype(np.float32)


def training(batch: int, mask: Any) -> Callable[[], ValueAndGradients]:
    """Returns the compiled loss and gradient of a training step, with the embeddings as tables."""
    import jax
    import jax.numpy as jnp

    from crl_jax import data, losses, models, samplers, tasks, train
    from experiments._compiler import tune_compiler

    tune_compiler()

    ids = np.arange(batch)
    task = tasks.Ranking.from_interactions(
        data.Interactions.from_arrays(ids, ids),
        encoder=models.MatrixFactorization(batch, batch, DIM, similarity="cosine"),
        loss=losses.info_nce,
        hyperparams={"temperature": jnp.float32(TEMPERATURE)},
        sampler=samplers.InBatch(mask),
    )
    key, zero = jax.random.key(0), jnp.float32(0)
    _, model_state = task.init(key)
    draw = task.batch(key, train.Batch(jnp.asarray(ids), task.seen))
    ctx = train.StepContext(key, jnp.int32(0), zero, jnp.ones(batch, bool), jnp.float32(batch))

    def value(users: Any, items: Any, task: Any, *inputs: Any) -> Any:
        return task.loss({"users": users, "items": items}, *inputs)[0]

    return compile_step(value, batch, task, model_state, draw, ctx)


def tiled(batch: int) -> Callable[[], ValueAndGradients]:
    """Returns the tiled version of the same step."""
    from crl_jax import losses

    def value(users: Any, items: Any) -> Any:
        rows = losses.normalize(users), losses.normalize(items)
        return losses.tiled_tower_loss(losses.info_nce, *rows, temperature=TEMPERATURE)

    return compile_step(value, batch)


def compile_step(
    value: Callable[..., Any], batch: int, *inputs: Any
) -> Callable[[], ValueAndGradients]:
    """Compiles value and gradient of a function of the embeddings and further arguments."""
    import jax
    import jax.numpy as jnp

    rows = tuple(map(jnp.asarray, make_embeddings(batch)))
    leaves, tree = jax.tree.flatten(inputs)

    @jax.value_and_grad
    def value_and_grad(rows: Any, leaves: Any) -> Any:
        return value(*rows, *jax.tree.unflatten(tree, leaves))

    # Passes leaves: `lower` would build the library's classes from objects that are not arrays.
    step = jax.jit(value_and_grad).lower(rows, leaves).compile()

    def run() -> ValueAndGradients:
        loss, gradients = jax.block_until_ready(step(rows, leaves))
        return loss, *gradients

    return run


def torch_step(batch: int, threads: int) -> Callable[[], ValueAndGradients]:
    """Returns the same step in PyTorch."""
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    rows = [torch.from_numpy(x).requires_grad_() for x in make_embeddings(batch)]
    targets = torch.arange(batch)

    def run() -> ValueAndGradients:
        users, items = map(F.normalize, rows)
        # Dividing the embeddings by the temperature costs less than dividing the scores.
        loss = F.cross_entropy((users / TEMPERATURE) @ items.T, targets)
        return loss.detach(), *torch.autograd.grad(loss, rows)

    return run


def build(name: str, batch: int) -> Callable[[], ValueAndGradients]:
    """Returns the step of a contestant."""
    if name in MASKS:
        return training(batch, MASKS[name])
    if name == TILED:
        return tiled(batch)
    return torch_step(batch, int(name.rpartition(" ")[2]))


def reference(batch: int) -> ValueAndGradients:
    """Computes value and gradients in float64, in blocks of anchors."""
    raw = [x.astype(np.float64) for x in make_embeddings(batch)]
    norms = [np.linalg.norm(x, axis=1, keepdims=True) for x in raw]
    users, items = (x / norm for x, norm in zip(raw, norms, strict=True))
    total, unit_gradients = 0.0, [np.zeros_like(users), np.zeros_like(items)]
    for first in range(0, batch, ROWS):
        block = slice(first, first + ROWS)
        scores = users[block] @ items.T / TEMPERATURE
        positives = np.arange(len(scores)), np.arange(batch)[block]
        exp_scores = np.exp(scores)
        normalizer = exp_scores.sum(axis=1, keepdims=True)
        total += np.sum(np.log(normalizer[:, 0]) - scores[positives])
        probabilities = exp_scores / normalizer
        probabilities[positives] -= 1
        unit_gradients[0][block] = probabilities @ items
        unit_gradients[1] += probabilities.T @ users[block]
    user_gradients, item_gradients = (
        (gradient - unit * np.sum(gradient * unit, axis=1, keepdims=True))
        / norm
        / TEMPERATURE
        / batch
        for gradient, unit, norm in zip(unit_gradients, (users, items), norms, strict=True)
    )
    return total / batch, user_gradients, item_gradients


def largest_error(result: ValueAndGradients, expected: ValueAndGradients) -> float:
    """Returns the largest error of value and gradients, each relative to its largest entry."""
    errors = [
        np.abs(np.asarray(value) - reference_value).max() / np.abs(reference_value).max()
        for value, reference_value in zip(result, expected, strict=True)
    ]
    return float(np.max(errors))  # propagates nan


def make(name: str, batch: int) -> tuple[tuple[float, list[Any]], Callable[[], Timing]]:
    """Returns memory and answer of a contestant's first step, and a timed step."""
    run = build(name, batch)
    growth, result = growth_mb(run)
    return (growth, list(map(np.asarray, result))), lambda: timed(run)._replace(value=None)


def measure(batch: int, repeats: int) -> list[Row]:
    """Times all contestants alternately at one batch size.

    Raises:
      SystemExit: If an error exceeds floating-point tolerance; checked before any timing.
    """
    names = [*MASKS, TILED, *(f"PyTorch, threads: {n}" for n in THREADS)]
    workers = {name: Worker(make, name, batch) for name in names}
    expected = reference(batch)
    errors = {name: largest_error(worker.first[1], expected) for name, worker in workers.items()}
    for name, error in errors.items():
        if not error <= MAX_ERROR:
            raise SystemExit(f"{name} of {batch} is wrong: off by {error:.2g}")
    turns = alternate(workers, repeats, STEPS_PER_TURN)
    rows = []
    for name, worker in workers.items():
        worker.end()
        rows.append(
            {
                "batch": batch,
                "name": name,
                **summarize("step_ms", [1e3 * timing.seconds for timing in turns[name]]),
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
    arguments.add_argument(
        "--repeats", type=count, default=5, help=f"turns of {STEPS_PER_TURN} steps each"
    )
    args = arguments.parse_args()
    report = Report(args.out, "jax", "jaxlib", "torch", "numpy", dim=DIM, temperature=TEMPERATURE)
    for batch in args.batches:
        report.add(measure(batch, args.repeats))


if __name__ == "__main__":
    main()
