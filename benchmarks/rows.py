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

    python -m benchmarks.rows --out benchmarks/results/rows.csv
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from ._processes import Worker
from ._report import CORES, Report, Row, alternate, count, one_line_errors, parser, summarize, timed

DIM, BATCH, STEPS, LEARNING_RATE = 64, 8192, 8, 1e-3
SIZES = [100_000, 1_000_000, 10_000_000]
DENSE = "dense Adam"
ADAM, ADAGRAD, SPARSE = "rows.adam", "rows.rowwise_adagrad", "PyTorch SparseAdam"
ORDER = [ADAM, SPARSE, DENSE, ADAGRAD]
BLOCK = 1 << 16
"""Number of rows that the initial tables repeat."""
MAX_ERROR = 1e-4
"""Largest permitted error of a loss, or of a row after some steps."""
SAMPLE = 200
"""Number of rows to compare."""
Step = Callable[[Any, Any], Any]
Start = Callable[[Any], Any]
ReadRows = Callable[[Any, Any], list[Any]]
"""Returns some rows of the carry's tables, with pending lazy updates applied."""
Turn = Callable[[Any], float]
"""Takes steps on ids and returns the loss of the first."""
Sample = Callable[[], list[np.ndarray]]
"""Returns some rows of both tables in their current state."""


def initial_table(n: int, side: int) -> np.ndarray:
    """Returns the initial rows of users (0) or items (1)."""
    rng = np.random.default_rng(side)
    block = rng.normal(0, 0.1, (BLOCK, DIM)).astype(np.float32)
    return np.resize(block, (n, DIM))


def draw_ids(n: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns one turn's users ``[steps, batch]`` and items ``[steps, 2, batch]`` below n."""
    rng = np.random.default_rng(number)
    users = rng.integers(0, n, (STEPS, BATCH), dtype=np.int32)
    return users, rng.integers(0, n, (STEPS, 2, BATCH), dtype=np.int32)


def bpr_loss(users: Any, items: Any) -> Any:
    """Computes BPR of rows of users ``[batch, dim]`` and of items ``[2, batch, dim]``."""
    import jax.numpy as jnp

    from crl_jax import losses

    scores = jnp.einsum("bd,kbd->kb", users, items)
    return losses.bpr(scores[0], scores[1, :, None])


def dense() -> tuple[Step, Start, ReadRows]:
    """Returns a dense optimizer with gradients of whole tables."""
    import jax
    import optax

    tx = optax.adam(LEARNING_RATE)

    def step(carry: Any, ids: Any) -> Any:
        tables, state, number = carry

        def table_loss(tables: Any) -> Any:
            return bpr_loss(*(table[index] for table, index in zip(tables, ids)))

        value, grads = jax.value_and_grad(table_loss)(tables)
        updates, state = tx.update(grads, state, tables)
        return (optax.apply_updates(tables, updates), state, number + 1), value

    return step, tx.init, lambda carry, indices: [table[indices] for table in carry[0]]


def by_rows(name: str) -> tuple[Step, Start, ReadRows]:
    """Returns a row optimizer that updates only the rows of the batch."""
    import jax

    from crl_jax.train import rows

    rule = getattr(rows, name)(LEARNING_RATE)

    def step(carry: Any, ids: Any) -> Any:
        tables, states, number = carry
        gathers = [
            rows.gather(rule, table, state, index.ravel(), number)
            for table, state, index in zip(tables, states, ids)
        ]

        def row_loss(values: Any) -> Any:
            batch_rows = (
                value[gathered.inverse].reshape(*index.shape, DIM)
                for value, (gathered, _), index in zip(values, gathers, ids)
            )
            return bpr_loss(*batch_rows)

        value, grads = jax.value_and_grad(row_loss)([gathered.rows for gathered, _ in gathers])
        updates = [
            rows.scatter(rule, table, state, gathered, grad, number)
            for table, (gathered, state), grad in zip(tables, gathers, grads)
        ]
        tables, states = zip(*updates)
        return (tables, states, number + 1), value

    def read_rows(carry: Any, indices: Any) -> list[Any]:
        tables, states, number = carry
        selected_states = [jax.tree.map(lambda x: x[indices], state) for state in states]
        return [
            rows.flush_lazy_updates(rule, table[indices], state, number)[0]
            for table, state in zip(tables, selected_states)
        ]

    return step, lambda tables: tuple(rows.init(rule, table) for table in tables), read_rows


def ours(name: str, n: int) -> tuple[Turn, Sample]:
    """Returns our contestant: a scan of steps with donated tables."""
    import jax
    import jax.numpy as jnp

    from crl_jax import train
    from experiments._compiler import tune_compiler

    tune_compiler()

    step, start, read_rows = dense() if name == DENSE else by_rows(name.removeprefix("rows."))

    def turn(carry: Any, ids: Any) -> Any:
        return jax.lax.scan(step, carry, ids)

    compiled = train.jit(turn, donate_argnums=0)
    tables = tuple(jnp.array(initial_table(n, side)) for side in (0, 1))
    carry_cell = [(tables, start(tables), jnp.int32(0))]
    del tables

    def run(ids: Any) -> float:
        carry_cell[0], values = compiled(carry_cell[0], jax.tree.map(jnp.asarray, ids))
        return float(values[0])

    return run, lambda: [
        np.asarray(table) for table in read_rows(carry_cell[0], jnp.arange(SAMPLE))
    ]


def theirs(n: int) -> tuple[Turn, Sample]:
    """Returns the same in PyTorch with sparse gradients."""
    import torch
    from torch import nn

    torch.set_num_threads(CORES)
    bags = [
        nn.EmbeddingBag.from_pretrained(
            torch.from_numpy(initial_table(n, side)), freeze=False, sparse=True, mode="sum"
        )
        for side in (0, 1)
    ]
    optimizer = torch.optim.SparseAdam([bag.weight for bag in bags], lr=LEARNING_RATE)

    def run(ids: Any) -> float:
        ids = [torch.from_numpy(x).long() for x in ids]
        first = 0.0
        for i in range(STEPS):
            users, items = (
                bag(index[i].reshape(-1, 1)).reshape(*index[i].shape, DIM)
                for bag, index in zip(bags, ids)
            )
            scores = (users * items).sum(-1)
            loss = nn.functional.softplus(scores[1] - scores[0]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            first = loss.item() if i == 0 else first
        return first

    return run, lambda: [bag.weight.detach()[:SAMPLE].numpy() for bag in bags]


def make(name: str, n: int) -> tuple[tuple[float, list[np.ndarray]], Callable[[int], float]]:
    """Returns the first loss and some rows after two turns, and a function of a timed turn."""
    run, sample = theirs(n) if name == SPARSE else ours(name, n)
    first = run(draw_ids(n, 0))
    run(draw_ids(n, 1))

    def turn(number: int) -> float:
        return timed(run, draw_ids(n, number)).seconds / STEPS

    return (first, sample()), turn


def measure(n: int, repeats: int) -> list[Row]:
    """Times all contestants with ``n`` rows.

    Raises:
      SystemExit: If a contestant computes other values; checked before it is timed.
    """
    pages = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    firsts, times = {}, {}
    for pair in ((DENSE, ADAGRAD), (ADAM, SPARSE)):
        workers = {name: Worker(make, name, n // 2, env=pages) for name in pair}
        firsts |= {name: worker.first for name, worker in workers.items()}
        check(n // 2, firsts)
        numbers = {name: itertools.count(2) for name in pair}
        calls = {
            name: lambda worker=worker, number=numbers[name]: worker(next(number))
            for name, worker in workers.items()
        }
        times |= alternate(calls, repeats)
        for worker in workers.values():
            worker.end()
    return [
        {
            "rows": n,
            "name": name,
            **summarize("step_ms", [1e3 * seconds for seconds in times[name]]),
        }
        for name in ORDER
    ]


def check(n: int, firsts: dict[str, tuple[float, list[np.ndarray]]]) -> None:
    """Checks first losses against NumPy, and Adam's rows against the dense optimizer's.

    Raises:
      SystemExit: If an error exceeds floating-point tolerance.
    """
    tables = [initial_table(n, side).astype(np.float64)[:BLOCK] for side in (0, 1)]
    users, items = (table[ids[0] % BLOCK] for table, ids in zip(tables, draw_ids(n, 0)))
    scores = np.sum(users * items, axis=-1)
    expected = float(np.mean(np.logaddexp(0, scores[1] - scores[0])))
    for name, (loss, rows) in firsts.items():
        error = abs(loss - expected)
        if name == ADAM:
            error = max(error, *(np.abs(a - b).max() for a, b in zip(rows, firsts[DENSE][1])))
        if not error <= MAX_ERROR:
            raise SystemExit(f"{name} with {2 * n} rows is wrong: off by {error:.2g}")


@one_line_errors
def main() -> None:
    """Measures all table sizes."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--sizes", type=count, nargs="+", default=SIZES, help="numbers of embedding rows"
    )
    arguments.add_argument("--repeats", type=count, default=9, help=f"turns of {STEPS} steps each")
    args = arguments.parse_args()
    packages = "jax", "jaxlib", "optax", "torch", "numpy"
    report = Report(args.out, *packages, dim=DIM, batch=BATCH, steps=STEPS)
    for n in args.sizes:
        report.add(measure(n, args.repeats))


if __name__ == "__main__":
    main()
