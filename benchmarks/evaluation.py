"""Users evaluated per second over a full catalogue, against a PyTorch loop.

The problem has Gowalla's shape: 29,858 users, 40,981 items, width 64, top 20, the training
items masked. If the environment variable CRL_DATA is set, the pairs are those of
``$CRL_DATA/gowalla/{train,test}.txt``; otherwise they are drawn at random with about the same
counts. The embeddings are random, which does not affect the timing.

The reference computes recall and NDCG, vectorised, in preallocated memory; `crl_jax` computes
its seven metrics and the coverage. Both build their masks before the clock starts. Every
configuration runs in a separate process, which makes peak memory attributable; the processes
run alternately for several rounds, so that a busy moment of the machine affects all of them.

Wall time is unreliable on a busy machine, and unfair to PyTorch there: its OpenMP threads spin
while they wait for one another, at several times the cost if they must share their cores. So
PyTorch runs with both wait policies, of which the better one is compared, and each process reports
its CPU time and the load average. Trust a comparison only if the load stays near the number of
cores.

    python -m benchmarks.evaluation --out benchmarks/results/evaluation.csv
"""

import dataclasses
import itertools
import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ._processes import in_process, memory_mb
from ._report import Report, Row, alternate, count, one_line_errors, parser, timed

N_USERS, N_ITEMS, WIDTH, K = 29_858, 40_981, 64, 20
CHECKED = (f"recall@{K}", f"ndcg@{K}")
# Library, block size in users, whether to compute the AUC, OpenMP's wait policy.
CONFIGURATIONS = [
    *(("crl_jax", block_size, False, "") for block_size in (64, 256, 1024)),
    ("crl_jax", 256, True, ""),
    *(
        ("torch", block_size, False, policy)
        for policy in ("active", "passive")
        for block_size in (64, 256, 1024)
    ),
]


@dataclasses.dataclass(frozen=True)
class Csr:
    """Interactions in the format that :func:`crl_jax.metrics.eval_layout` reads."""

    indptr: np.ndarray
    items: np.ndarray
    n_users: int
    n_items: int


def from_pairs(users: np.ndarray, items: np.ndarray) -> Csr:
    """Sorts distinct pairs into rows."""
    pairs = np.unique(users.astype(np.int64) * N_ITEMS + items)
    indptr = np.searchsorted(pairs, np.arange(N_USERS + 1) * N_ITEMS)
    return Csr(indptr, (pairs % N_ITEMS).astype(np.int32), N_USERS, N_ITEMS)


def read(path: Path) -> Csr:
    """Reads lines ``user item item ...``."""
    rows = [np.array(line.split(), np.int64) for line in path.read_text().splitlines()]
    users = np.concatenate([np.full(row.size - 1, row[0]) for row in rows if row.size])
    return from_pairs(users, np.concatenate([row[1:] for row in rows if row.size]))


def simulate() -> tuple[Csr, Csr]:
    """Simulates pairs with long-tailed activity and popularity, about as many as Gowalla's."""
    rng = np.random.default_rng(0)
    activity, popularity = rng.lognormal(sigma=0.9, size=N_USERS), rng.pareto(1.2, N_ITEMS) + 0.1
    users = rng.choice(N_USERS, 1_150_000, p=activity / activity.sum())
    items = rng.choice(N_ITEMS, 1_150_000, p=popularity / popularity.sum())
    pairs = np.unique(users.astype(np.int64) * N_ITEMS + items)
    in_test = rng.random(pairs.size) < 0.21
    train, test = pairs[~in_test], pairs[in_test]
    return from_pairs(train // N_ITEMS, train % N_ITEMS), from_pairs(
        test // N_ITEMS, test % N_ITEMS
    )


def embeddings() -> tuple[np.ndarray, np.ndarray]:
    """Returns the random embeddings of users and items."""
    rng = np.random.default_rng(0)
    user, item = (rng.normal(0, 0.1, (n, WIDTH)).astype(np.float32) for n in (N_USERS, N_ITEMS))
    return user, item


def run_jax(train: Csr, test: Csr, block_size: int, auc: bool) -> Callable[[], Row]:
    """Returns the evaluation of ``crl_jax``."""
    import jax
    import jax.numpy as jnp

    from crl_jax import metrics

    def score_fn(params: Any, users: Any) -> Any:
        return jnp.matmul(params[0][users], params[1].T, precision="highest")

    layout = jax.block_until_ready(metrics.eval_layout(train, test, block_size=block_size))
    params = tuple(map(jnp.asarray, embeddings()))

    def run() -> Row:
        values = metrics.evaluate(score_fn, params, layout, ks=(K,), auc=auc)
        return metrics.summarize(jax.block_until_ready(values))

    return run


def run_torch(train: Csr, test: Csr, block_size: int, auc: bool) -> Callable[[], Row]:
    """Returns a loop over blocks: product, mask by index, top-k, membership by binary search."""
    import torch

    assert not auc
    counts = np.diff(test.indptr)
    users = np.nonzero(counts)[0]
    blocks = []
    for first in range(0, users.size, block_size):
        block = users[first : first + block_size]
        lengths = np.diff(train.indptr)[block]
        rows = np.repeat(np.arange(block.size), lengths)
        items = [train.items[train.indptr[u] : train.indptr[u + 1]] for u in block]
        blocks.append(
            (
                torch.from_numpy(block),
                torch.from_numpy(rows),
                torch.from_numpy(np.concatenate(items).astype(np.int64)),
                torch.from_numpy(counts[block]),
            )
        )
    pairs = np.repeat(np.arange(N_USERS), counts) * N_ITEMS + test.items
    pairs = torch.from_numpy(np.append(pairs, np.iinfo(np.int64).max))
    user, item = map(torch.from_numpy, embeddings())
    discounts = 1 / torch.log2(torch.arange(2, K + 2, dtype=torch.float32))
    ideal = torch.cumsum(discounts, 0)
    buffer = torch.empty(block_size, N_ITEMS)

    @torch.inference_mode()
    def run() -> Row:
        recall, ndcg = [], []
        for block, rows, masked, n_relevant in blocks:
            scores = torch.matmul(user[block], item.T, out=buffer[: block.numel()])
            scores[rows, masked] = -torch.inf
            top = torch.topk(scores, K).indices + block[:, None] * N_ITEMS
            hits = (pairs[torch.searchsorted(pairs, top)] == top).float()
            recall.append(hits.sum(1) / n_relevant)
            ndcg.append((hits * discounts).sum(1) / ideal[n_relevant.clamp(max=K) - 1])
        return {
            f"recall@{K}": torch.cat(recall).double().mean().item(),
            f"ndcg@{K}": torch.cat(ndcg).double().mean().item(),
        }

    return run


RUNS = {"crl_jax": run_jax, "torch": run_torch}


def measure(
    train: Csr, test: Csr, library: str, block_size: int, auc: bool, repeats: int
) -> Row:  # fmt: skip
    """Measures one configuration in this process."""
    load = os.getloadavg()[0]
    preparation = timed(RUNS[library], train, test, block_size, auc)
    first, *timings = (timed(preparation.value) for _ in range(repeats + 1))
    n_evaluated = int(np.count_nonzero(np.diff(test.indptr)))
    return {
        "speeds": [n_evaluated / timing.seconds for timing in timings],
        "cpu_speeds": [n_evaluated / timing.cpu_seconds for timing in timings],
        "preparation_seconds": preparation.seconds,
        # The first call compiles or warms up; its excess over a usual call is reported separately.
        "first_call_extra_seconds": first.seconds - statistics.median(t.seconds for t in timings),
        "load": load,
        "peak_mb": memory_mb(),
        "values": timings[-1].value,
    }


def summarise(configuration: tuple[str, int, bool, str], runs: list[Row]) -> Row:
    """Returns the row of a configuration, given the measurements of its processes."""
    library, block_size, auc, policy = configuration
    speeds, cpu_speeds = (
        list(itertools.chain.from_iterable(run[name] for run in runs))
        for name in ("speeds", "cpu_speeds")
    )
    return {
        "library": library,
        "block_size": block_size,
        "auc": auc,
        "wait_policy": policy or None,
        "users_per_second": statistics.median(speeds),
        "users_per_second_max": max(speeds),
        "users_per_cpu_second": statistics.median(cpu_speeds),
        "peak_mb": max(run["peak_mb"] for run in runs),
        **{
            name: statistics.median(run[name] for run in runs)
            for name in ("preparation_seconds", "first_call_extra_seconds")
        },
        "load_max": max(run["load"] for run in runs),
        **{name: runs[-1]["values"][name] for name in CHECKED},
    }


def check(rows: list[Row]) -> None:
    """Checks that all rankings agree, except that nearly equal scores may swap by rounding.

    Raises:
      SystemExit: If recall or NDCG differ by more than 0.1 %.
    """
    for row, name in itertools.product(rows, CHECKED):
        value, expected = row[name], rows[0][name]
        if not abs(value - expected) <= 1e-3 * expected:
            raise SystemExit(
                f"{row['library']}, blocks of {row['block_size']}: {name} is {value:.6f}, not "
                f"{expected:.6f}: not the same ranking"
            )


@one_line_errors
def main() -> None:
    """Measures all configurations alternately, and checks that they agree."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=count, default=3, help="processes per configuration")
    arguments.add_argument("--repeats", type=count, default=3, help="timed calls in each process")
    args = arguments.parse_args()
    folder = os.environ.get("CRL_DATA")
    report = Report(
        args.out, "jax", "jaxlib", "torch", "numpy", data="gowalla" if folder else "simulated"
    )
    if folder:
        train, test = (read(Path(folder) / "gowalla" / f"{part}.txt") for part in ("train", "test"))
    else:
        train, test = simulate()
    calls = {}
    for configuration in CONFIGURATIONS:
        *case, policy = configuration
        env = {"OMP_WAIT_POLICY": policy} if policy else {}
        calls[configuration] = partial(
            in_process, measure, train, test, *case, args.repeats, env=env
        )
    rows = list(itertools.starmap(summarise, alternate(calls, args.rounds).items()))
    report.add(rows)
    check(rows)


if __name__ == "__main__":
    main()
