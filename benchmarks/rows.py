"""Sparse row updates of large embedding tables, by table size, against PyTorch.

Matrix factorisation of width 64 with BPR: half of the rows are users and half items. A batch of
8,192 triplets reads 24,576 rows, drawn uniformly. Ours is :mod:`crl_jax.train.rows` in a scan of a
few steps, with donated tables. PyTorch has an ``EmbeddingBag(sparse=True)`` for each table and
``SparseAdam``, a lazy Adam (rows outside the batch do not move), on all cores. "Dense Adam" is
Optax's with gradients of whole tables.

The loss of the first step is checked against NumPy's float64, and rows after a few steps against
the dense optimiser. Each contestant has a separate process. Pairs of contestants run alternately:
more do not fit into the memory of a small machine. All of them use huge pages (on Linux with
glibc), without which the address translation of a row costs as much as reading it.

    python -m benchmarks.rows --out benchmarks/results/rows.json
"""

import argparse
import json
import os
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

DIM, BATCH, STEPS, LEARNING_RATE = 64, 8192, 8, 1e-3
SIZES = [100_000, 1_000_000, 10_000_000]
DENSE = "dense Adam"
ADAM, ADAGRAD, SPARSE = "rows.adam", "rows.rowwise_adagrad", "PyTorch SparseAdam"
ORDER = [ADAM, SPARSE, DENSE, ADAGRAD]
BLOCK = 1 << 16
"""Number of rows that the initial tables repeat."""
MOST = 1e-4
"""Largest permitted error of a loss, or of a row after some steps."""
SAMPLE = 200
"""Number of rows to compare."""
Step = Callable[[Any, Any], Any]
Start = Callable[[Any], Any]
Waken = Callable[[Any, Any], list[Any]]
"""Returns some rows of the carry's tables, with pending lazy updates applied."""
Turn = Callable[[Any], float]
"""Takes steps on ids and returns the loss of the first."""
Sample = Callable[[], list[np.ndarray]]
"""Returns some rows of both tables in their current state."""


def table_of(n: int, side: int) -> np.ndarray:
    """Returns the initial rows of users (0) or items (1)."""
    rng = np.random.default_rng(side)
    block = rng.normal(0, 0.1, (BLOCK, DIM)).astype(np.float32)
    return np.resize(block, (n, DIM))


def ids_of(n: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns one turn's users ``[steps, batch]`` and items ``[steps, 2, batch]`` below n."""
    rng = np.random.default_rng(number)
    users = rng.integers(0, n, (STEPS, BATCH), dtype=np.int32)
    return users, rng.integers(0, n, (STEPS, 2, BATCH), dtype=np.int32)


def loss_of(users: Any, items: Any) -> Any:
    """Computes BPR of rows of users ``[batch, dim]`` and of items ``[2, batch, dim]``."""
    import jax.numpy as jnp

    from crl_jax import losses

    scores = jnp.einsum("bd,kbd->kb", users, items)
    return losses.bpr(scores[0], scores[1, :, None])


def dense() -> tuple[Step, Start, Waken]:
    """Returns a dense optimizer with gradients of whole tables."""
    import jax
    import optax

    tx = optax.adam(LEARNING_RATE)

    def step(carry: Any, ids: Any) -> Any:
        tables, state, number = carry

        def of_tables(tables: Any) -> Any:
            return loss_of(*(table[at] for table, at in zip(tables, ids)))

        value, grads = jax.value_and_grad(of_tables)(tables)
        updates, state = tx.update(grads, state, tables)
        return (optax.apply_updates(tables, updates), state, number + 1), value

    return step, tx.init, lambda carry, some: [table[some] for table in carry[0]]


def by_rows(name: str) -> tuple[Step, Start, Waken]:
    """Returns a row optimizer that updates only the rows of the batch."""
    import jax

    from crl_jax.train import rows

    rule = getattr(rows, name)(LEARNING_RATE)

    def step(carry: Any, ids: Any) -> Any:
        tables, states, number = carry
        read = [
            rows.gather(rule, table, state, at.ravel(), number)
            for table, state, at in zip(tables, states, ids)
        ]

        def of_rows(values: Any) -> Any:
            taken = (
                value[opened.inverse].reshape(*at.shape, DIM)
                for value, (opened, _), at in zip(values, read, ids)
            )
            return loss_of(*taken)

        value, grads = jax.value_and_grad(of_rows)([opened.rows for opened, _ in read])
        written = [
            rows.scatter(rule, table, state, opened, grad, number)
            for table, (opened, state), grad in zip(tables, read, grads)
        ]
        tables, states = zip(*written)
        return (tables, states, number + 1), value

    def waken(carry: Any, some: Any) -> list[Any]:
        tables, states, number = carry
        few = [jax.tree.map(lambda x: x[some], state) for state in states]
        return [
            rows.flush_lazy_updates(rule, table[some], state, number)[0]
            for table, state in zip(tables, few)
        ]

    return step, lambda tables: tuple(rows.init(rule, table) for table in tables), waken


def ours(name: str, n: int) -> tuple[Turn, Sample]:
    """Returns our contestant: a scan of steps with donated tables."""
    import jax
    import jax.numpy as jnp

    from crl_jax import train

    common.tune_compiler()

    step, start, waken = dense() if name == DENSE else by_rows(name.removeprefix("rows."))

    def turn(carry: Any, ids: Any) -> Any:
        return jax.lax.scan(step, carry, ids)

    compiled = train.jit(turn, donate_argnums=0)
    tables = tuple(jnp.array(table_of(n, side)) for side in (0, 1))
    kept = [(tables, start(tables), jnp.int32(0))]
    del tables

    def run(ids: Any) -> float:
        kept[0], values = compiled(kept[0], jax.tree.map(jnp.asarray, ids))
        return float(values[0])

    return run, lambda: [np.asarray(table) for table in waken(kept[0], jnp.arange(SAMPLE))]


def theirs(n: int) -> tuple[Turn, Sample]:
    """Returns the same in PyTorch with sparse gradients."""
    import torch
    from torch import nn

    torch.set_num_threads(common.machine()["cores"])
    bags = [
        nn.EmbeddingBag.from_pretrained(
            torch.from_numpy(table_of(n, side)), freeze=False, sparse=True, mode="sum"
        )
        for side in (0, 1)
    ]
    optimizer = torch.optim.SparseAdam([bag.weight for bag in bags], lr=LEARNING_RATE)

    def run(ids: Any) -> float:
        ids = [torch.from_numpy(x).long() for x in ids]
        first = 0.0
        for i in range(STEPS):
            users, items = (
                bag(at[i].reshape(-1, 1)).reshape(*at[i].shape, DIM) for bag, at in zip(bags, ids)
            )
            scores = (users * items).sum(-1)
            loss = nn.functional.softplus(scores[1] - scores[0]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            first = loss.item() if i == 0 else first
        return first

    return run, lambda: [bag.weight.detach()[:SAMPLE].numpy() for bag in bags]


def work(name: str, n: int, folder: Path) -> None:
    """Prints the first loss, saves some rows after two turns, then times a turn per input line."""
    run, sample = theirs(n) if name == SPARSE else ours(name, n)
    first = run(ids_of(n, 0))
    run(ids_of(n, 1))
    np.savez(folder / "rows.npz", *sample())
    print(json.dumps({"loss": first}), flush=True)
    for number, _ in enumerate(sys.stdin, 2):
        ids = ids_of(n, number)
        started = time.perf_counter()
        run(ids)
        print(time.perf_counter() - started, flush=True)


class Contestant:
    """Process that takes steps on request."""

    def __init__(self, name: str, n: int, folder: Path):
        self.name = name
        pages = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        env = {**os.environ, **pages}
        self._worker = Worker("rows", "--worker", name, n, folder, env=env)
        self.loss = json.loads(self._worker.answer())["loss"]
        with np.load(folder / "rows.npz") as content:
            self.rows = list(content.values())
        self.times: list[float] = []
        self.end = self._worker.end

    def turn(self) -> None:
        """Takes steps and records the seconds per step."""
        self.times.append(self._worker.times()[0] / STEPS)


def measure(n: int, repeats: int) -> list[dict[str, Any]]:
    """Times all contestants with ``n`` rows.

    Raises:
      SystemExit: If a contestant computes other values; checked before it is timed.
    """
    done: list[Contestant] = []
    with tempfile.TemporaryDirectory() as folder:
        for together in ((DENSE, ADAGRAD), (ADAM, SPARSE)):
            now = [Contestant(name, n // 2, Path(folder)) for name in together]
            judge(n // 2, done + now)
            for _ in range(repeats):
                for contestant in now:
                    contestant.turn()
            for contestant in now:
                contestant.end()
            done += now
    return [
        {
            "rows": n,
            "name": contestant.name,
            "step_ms": 1e3 * statistics.median(contestant.times),
            "step_ms_min": 1e3 * min(contestant.times),
        }
        for contestant in sorted(done, key=lambda each: ORDER.index(each.name))
    ]


def judge(n: int, contestants: list[Contestant]) -> None:
    """Checks first losses against NumPy, and Adam's rows against the dense optimizer's.

    Raises:
      SystemExit: If an error exceeds floating-point tolerance.
    """
    tables = [table_of(n, side).astype(np.float64)[:BLOCK] for side in (0, 1)]
    users, items = (table[ids[0] % BLOCK] for table, ids in zip(tables, ids_of(n, 0)))
    scores = np.sum(users * items, axis=-1)
    wanted = float(np.mean(np.logaddexp(0, scores[1] - scores[0])))
    dense = next(each for each in contestants if each.name == DENSE)
    for each in contestants:
        off = abs(each.loss - wanted)
        if each.name == ADAM:
            off = max(off, *(np.abs(a - b).max() for a, b in zip(each.rows, dense.rows)))
        if not off <= MOST:
            raise SystemExit(f"{each.name} with {2 * n} rows is wrong: off by {off:.2g}")


def main() -> None:
    """Parses the command line, measures, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=common.count, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=common.count, default=9, help=f"turns of {STEPS} steps")
    parser.add_argument("--out", type=Path, help="JSON of the figures")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, n, folder = args.worker
        work(name, int(n), Path(folder))
        return
    about = {
        "benchmark": "rows",
        "machine": common.machine(),
        "versions": common.versions("jax", "jaxlib", "optax", "torch", "numpy"),
        "setting": {"dim": DIM, "batch": BATCH, "steps": STEPS},
    }
    rows: list[dict[str, Any]] = []
    for n in args.sizes:
        rows += measure(n, args.repeats)
        common.print_table(rows)
        if args.out:
            common.write_json(args.out, {**about, "rows": rows})


if __name__ == "__main__":
    main()
