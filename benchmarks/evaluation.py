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

    python -m benchmarks.evaluation --out benchmarks/results/evaluation.json
"""

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import _common as common

N_USERS, N_ITEMS, WIDTH, K = 29_858, 40_981, 64, 20
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


def run_jax(problem: Any, block_size: int, auc: bool) -> tuple[Callable[[], dict], dict]:
    """Returns the evaluation of ``crl_jax``, and figures to report next to its times."""
    import jax
    import jax.numpy as jnp

    from crl_jax import metrics

    def score_fn(params: dict, users: Any) -> Any:
        return jnp.matmul(params["user"][users], params["item"].T, precision="highest")

    start = time.perf_counter()
    plan = metrics.eval_layout(problem["train"], problem["test"], block_size=block_size)
    jax.block_until_ready(plan)
    plan_seconds = time.perf_counter() - start
    params = {name: jnp.asarray(problem[name]) for name in ("user", "item")}

    def run() -> dict:
        values = metrics.evaluate(score_fn, params, plan, ks=(K,), auc=auc)
        return metrics.summarize(jax.block_until_ready(values))

    return run, {"plan_seconds": plan_seconds, "device": jax.devices()[0].device_kind}


def run_torch(problem: Any, block_size: int, auc: bool) -> tuple[Callable[[], dict], dict]:
    """Returns a loop over blocks: product, mask by index, top-k, membership by binary search."""
    import torch

    assert not auc
    start = time.perf_counter()
    train, test = problem["train"], problem["test"]
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
    plan_seconds = time.perf_counter() - start
    user, item = (torch.from_numpy(problem[name]) for name in ("user", "item"))
    discounts = 1 / torch.log2(torch.arange(2, K + 2, dtype=torch.float32))
    ideal = torch.cumsum(discounts, 0)
    buffer = torch.empty(block_size, N_ITEMS)

    @torch.inference_mode()
    def run() -> dict:
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

    return run, {"plan_seconds": plan_seconds, "threads": torch.get_num_threads()}


def work(args: argparse.Namespace) -> None:
    """Measures one configuration in this process and prints the figures as JSON."""
    with np.load(args.problem) as file:
        problem: dict[str, Any] = {name: file[name] for name in ("user", "item")}
        for part in ("train", "test"):
            arrays = file[f"{part}_indptr"], file[f"{part}_items"]
            problem[part] = Csr(*arrays, N_USERS, N_ITEMS)
    make = {"crl_jax": run_jax, "torch": run_torch}[args.worker]
    run, report = make(problem, args.block_size, args.auc)
    load = os.getloadavg()[0]
    seconds, cpu_seconds, values = [], [], {}
    for _ in range(args.repeats + 1):
        start, cpu_start = time.perf_counter(), time.process_time()
        values = run()
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    n_evaluated = int(np.count_nonzero(np.diff(problem["test"].indptr)))
    # The first call compiles or warms up; its excess over a usual call is reported separately.
    report |= {
        "first_call_extra_seconds": seconds[0] - statistics.median(seconds[1:]),
        "users_per_second": [n_evaluated / s for s in seconds[1:]],
        "users_per_cpu_second": [n_evaluated / s for s in cpu_seconds[1:]],
        "load_average": load,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "values": values,
    }
    print(json.dumps(report))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Runs all configurations alternately for ``args.rounds`` rounds."""
    machine, versions = common.machine(), common.versions("jax", "jaxlib", "torch", "numpy")
    folder = os.environ.get("CRL_DATA")
    if folder:
        train, test = (read(Path(folder) / "gowalla" / f"{part}.txt") for part in ("train", "test"))
    else:
        train, test = simulate()
    rng = np.random.default_rng(0)
    user, item = (rng.normal(0, 0.1, (n, WIDTH)).astype(np.float32) for n in (N_USERS, N_ITEMS))
    reports: dict[tuple, list[dict]] = {c: [] for c in CONFIGURATIONS}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "problem.npz"
        np.savez(
            path,
            user=user,
            item=item,
            train_indptr=train.indptr,
            train_items=train.items,
            test_indptr=test.indptr,
            test_items=test.items,
        )
        for _ in range(args.rounds):
            for configuration in CONFIGURATIONS:
                library, block_size, auc, policy = configuration
                command = [sys.executable, "-m", "benchmarks.evaluation", "--worker", library]
                command += ["--problem", str(path)]
                command += ["--block-size", str(block_size), "--repeats", str(args.repeats)]
                command += ["--auc"] * auc
                env = os.environ | ({"OMP_WAIT_POLICY": policy} if policy else {})
                done = subprocess.run(
                    command, check=True, stdout=subprocess.PIPE, text=True, env=env
                )
                reports[configuration].append(json.loads(done.stdout.splitlines()[-1]))

    rows = []
    for (library, block_size, auc, policy), runs in reports.items():
        speeds = [speed for run in runs for speed in run["users_per_second"]]
        rows.append(
            {
                "library": library,
                "block_size": block_size,
                "auc": auc,
                "wait_policy": policy or None,
                "users_per_second_median": statistics.median(speeds),
                "users_per_second_best": max(speeds),
                "users_per_cpu_second_median": statistics.median(
                    speed for run in runs for speed in run["users_per_cpu_second"]
                ),
                "load_average": [run["load_average"] for run in runs],
                "peak_rss_mb": max(run["peak_rss_mb"] for run in runs),
                "plan_seconds": statistics.median(run["plan_seconds"] for run in runs),
                "first_call_extra_seconds": statistics.median(
                    run["first_call_extra_seconds"] for run in runs
                ),
                "values": runs[-1]["values"],
                "device": runs[-1].get("device"),
            }
        )
    return {
        "benchmark": "evaluation",
        "data": "gowalla" if folder else "simulated",
        "shape": {"users": N_USERS, "items": N_ITEMS, "width": WIDTH, "k": K},
        "pairs": {"train": int(train.items.size), "test": int(test.items.size)},
        "machine": machine,
        "versions": versions,
        "rounds": args.rounds,
        "repeats": args.repeats,
        "rows": rows,
    }


def judge(rows: list[dict[str, Any]]) -> None:
    """Checks that all rankings agree, except that nearly equal scores may swap by rounding.

    Raises:
      SystemExit: If recall or NDCG differ by more than 0.1 %.
    """
    for row in rows:
        for name in (f"recall@{K}", f"ndcg@{K}"):
            got, wanted = row["values"][name], rows[0]["values"][name]
            if not abs(got - wanted) <= 1e-3 * wanted:
                raise SystemExit(
                    f"{row['library']}, blocks of {row['block_size']}: {name} is {got:.6f}, not "
                    f"{wanted:.6f}: not the same ranking"
                )


def main() -> None:
    """Parses the command line, measures, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description="Full-catalogue evaluation, users per second.")
    default = Path(__file__).parent / "results" / "evaluation.json"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--rounds", type=common.count, default=3)
    parser.add_argument(
        "--repeats", type=common.count, default=3, help="timed calls in each process"
    )
    for name, kind in [("--worker", str), ("--problem", Path), ("--block-size", int)]:
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--auc", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    result = measure(args)
    print(
        f"{'':8} {'block':>5} {'AUC':>3} {'waits':>7} {'users/s':>8} {'best':>7}"
        f" {'per CPU s':>9} {'MB':>5} {'1st +s':>6} {'load':>5}"
    )
    for row in result["rows"]:
        print(
            f"{row['library']:8} {row['block_size']:5} {'yes' if row['auc'] else 'no':>3}"
            f" {row['wait_policy'] or '':>7} {row['users_per_second_median']:8.0f}"
            f" {row['users_per_second_best']:7.0f} {row['users_per_cpu_second_median']:9.0f}"
            f" {row['peak_rss_mb']:5.0f} {row['first_call_extra_seconds']:6.1f}"
            f" {max(row['load_average']):5.1f}"
        )
    common.write_json(args.out, result)
    judge(result["rows"])


if __name__ == "__main__":
    main()
