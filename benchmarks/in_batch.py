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

    python -m benchmarks.in_batch --out benchmarks/results/in_batch.json
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import _common as common
from ._worker import Worker
from .propagation import resident

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

    common.tune_compiler()

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


def names() -> list[str]:
    """Returns the names of the contestants; the first is the baseline of the comparison."""
    threads = sorted({1, common.machine()["cores"]})
    return [*MASKS, TILED, *(f"PyTorch, threads: {n}" for n in threads)]


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


def work(name: str, batch: int, folder: Path) -> None:
    """Saves an answer in the folder, prints the memory, then the seconds for each input line."""
    run = build(name, batch)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    answer = run()
    grown = resident("VmHWM") - before
    np.savez(folder / f"{name}.npz", *map(np.asarray, answer))
    del answer
    print(json.dumps({"grown_mb": grown / 1e6}), flush=True)
    for _ in sys.stdin:
        wall, cores = time.perf_counter(), time.process_time()
        run()
        print(time.perf_counter() - wall, time.process_time() - cores, flush=True)


class Contestant:
    """Process that runs steps on request."""

    def __init__(self, name: str, batch: int, folder: Path):
        self._worker = Worker("in_batch", "--worker", name, batch, folder)
        self.about: dict[str, Any] = {"name": name, **json.loads(self._worker.answer())}
        kept = folder / f"{name}.npz"
        with np.load(kept) as content:
            self.answer: Answer = tuple(content.values())
        kept.unlink()
        self.step, self.end = self._worker.times, self._worker.end


def measure(batch: int, repeats: int) -> dict[str, Any]:
    """Times all contestants alternately at one batch size.

    Raises:
      SystemExit: If an error exceeds floating-point tolerance; checked before any timing.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Started sequentially, so that none takes cores or memory from another's first step.
        contestants = [Contestant(name, batch, Path(folder)) for name in names()]
    judge(batch, contestants)
    times: list[list[list[float]]] = [[] for _ in contestants]
    for _ in range(repeats):
        for contestant, run in zip(contestants, times, strict=True):
            run += [contestant.step() for _ in range(TURN)]
    rows = []
    for contestant, run in zip(contestants, times, strict=True):
        contestant.end()
        wall, cores = zip(*run, strict=True)
        row = {
            "step_ms": 1e3 * statistics.median(wall),
            "step_ms_min": 1e3 * min(wall),
            "step_cpu_ms": 1e3 * statistics.median(cores),
        }
        rows.append({**contestant.about, **row})
    for row in rows:
        row["times_training"] = row["step_ms"] / rows[0]["step_ms"]
    return {"batch": batch, "rows": rows}


def judge(batch: int, contestants: list[Contestant]) -> None:
    """Checks every contestant against the reference and records its error.

    Raises:
      SystemExit: If an error exceeds floating-point tolerance.
    """
    wanted = reference(batch)
    for contestant in contestants:
        error = error_of(contestant.answer, wanted)
        contestant.about["error"] = error
        if not error <= MOST:
            raise SystemExit(f"{contestant.about['name']} of {batch} is wrong: off by {error:.2g}")


def main() -> None:
    """Parses the command line, measures, prints tables and writes the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=common.count, nargs="+", default=BATCHES)
    parser.add_argument("--repeats", type=common.count, default=5, help=f"turns of {TURN} steps")
    parser.add_argument("--out", type=Path, help="JSON of the figures")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, batch, folder = args.worker
        work(name, int(batch), Path(folder))
        return
    about = {
        "benchmark": "in_batch",
        "machine": common.machine(),
        "versions": common.versions("jax", "jaxlib", "torch", "numpy"),
        "setting": {"dim": DIM, "temperature": TEMPERATURE},
    }
    results = []
    for batch in args.batches:
        results.append(result := measure(batch, args.repeats))
        print(f"\nbatches of {batch}")
        common.print_table(result["rows"])
        if args.out:
            common.write_json(args.out, {**about, "batches": results})


if __name__ == "__main__":
    main()
