"""Contrastive losses of a two-view batch, forward and backward, against PyTorch; ranks; memory.

Three tables. *Losses*: value and gradient with respect to both views' embeddings, normalisation
included, at B = 256 and D = 128: 512 anchors with 510 negatives each. PyTorch computes InfoNCE
by its cross-entropy, and the Bayesian loss with ranks from a sorted row and from all pairs, as
published code does; each eager and compiled, on one thread and on all, of which the fastest is
reported. Contestants are timed alternately. *Ranks*: the methods to rank rows of scores. *Memory*:
peak resident memory of a process that takes one gradient of the tiled Bayesian loss of a large
batch.

    python -m benchmarks.contrastive --out benchmarks/results/contrastive.json
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import _common as common

BATCH, DIM, TEMPERATURE = 256, 128, 0.5
TAU_PLUS, ALPHA, BETA = 0.1, 0.9, 0.9
LARGE = 16_384
RANKED = [(512, 510), (128, 2048), (64, 8192), (32, 32_766)]
TURN = 5
Call = Callable[[], Any]


def embeddings(batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns two correlated views."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(batch, DIM))
    z1, z2 = (shared + 0.5 * rng.normal(size=(batch, DIM)) for _ in range(2))
    return z1.astype(np.float32), z2.astype(np.float32)


def ours(batch: int) -> dict[str, Call]:
    """Returns the compiled value and gradient of each loss, direct and tiled."""
    import jax
    import jax.numpy as jnp

    from crl_jax import losses

    bayes = {"tau_plus": TAU_PLUS, "alpha": ALPHA, "beta": BETA}
    table: dict[str, tuple[Any, dict[str, Any]]] = {
        "info_nce": (losses.info_nce, {}),
        "debiased": (losses.debiased_contrastive, {"tau_plus": TAU_PLUS}),
        "hard": (losses.hard_contrastive, {"tau_plus": TAU_PLUS, "beta": 1.0}),
        "bayesian": (losses.bayesian_contrastive, bayes),
        "bayesian, 512 bins": (partial(losses.bayesian_contrastive, bins=512), bayes),
    }
    z = tuple(jnp.asarray(x) for x in embeddings(batch))

    def entry(loss: Any, hyperparams: dict[str, Any], *, tiled: bool) -> Call:
        @jax.jit
        def run(z: Any) -> Any:
            def value(z: Any) -> Any:
                z1, z2 = map(losses.normalize, z)
                if tiled:
                    return losses.tiled_view_loss(
                        loss, z1, z2, temperature=TEMPERATURE, **hyperparams
                    )
                pos, neg, where = losses.view_scores(z1, z2)
                return loss(pos, neg, where=where, temperature=TEMPERATURE, **hyperparams)

            return jax.value_and_grad(value)(z)

        return lambda: jax.block_until_ready(run(z))

    return {
        f"crl_jax {name}{', tiled' if tiled else ''}": entry(loss, hyperparams, tiled=tiled)
        for name, (loss, hyperparams) in table.items()
        for tiled in (False, True)
    }


def theirs(batch: int) -> dict[str, Call]:
    """Returns PyTorch's entries by name."""
    import torch
    from torch.nn import functional as F

    z1, z2 = (torch.from_numpy(x).requires_grad_() for x in embeddings(batch))
    n = 2 * batch
    partner = (torch.arange(n) + batch) % n
    itself = torch.eye(n, dtype=torch.bool)
    others = ~(itself | itself[partner])

    def logits() -> Any:
        z = torch.cat([F.normalize(z1), F.normalize(z2)])
        return z @ z.T / TEMPERATURE

    def info_nce() -> Any:
        return F.cross_entropy(logits().masked_fill(itself, -torch.inf), partner)

    def bayesian(rank: Any) -> Any:
        s = logits()
        pos, neg = s[torch.arange(n), partner], s[others].view(n, n - 2)
        with torch.no_grad():
            u = rank(neg)
            a = (1 - 2 * ALPHA) * (1 - 2 * TAU_PLUS)
            b = 2 * (ALPHA * (1 - TAU_PLUS) + (1 - ALPHA) * TAU_PLUS)
            phi = 2 * u / (b + torch.sqrt(b * b + 4 * a * u))
            z = (1 - BETA) * ALPHA + BETA * (1 - ALPHA)
            weight = ((1 - BETA) * ALPHA + (BETA - ALPHA) * phi) / z / (b / 2 + a * phi)
        return F.softplus(torch.logsumexp(neg + weight.log(), 1) - pos).mean()

    def by_sorting(neg: Any) -> Any:
        found = torch.searchsorted(neg.sort(1).values, neg.contiguous(), right=True)
        return found.float() / neg.shape[1]

    def by_pairs(neg: Any) -> Any:
        return (neg[:, None, :] <= neg[:, :, None]).float().mean(2)

    def entry(value: Call, threads: int) -> Call:
        def run() -> float:
            torch.set_num_threads(threads)
            z1.grad = z2.grad = None
            loss = value()
            loss.backward()
            return loss.item()

        return run

    forms = {
        "PyTorch InfoNCE, cross-entropy": info_nce,
        "PyTorch Bayesian, sorted rows": partial(bayesian, by_sorting),
        "PyTorch Bayesian, all pairs": partial(bayesian, by_pairs),
    }
    entries = {}
    for name, value in forms.items():
        for threads in sorted({1, common.machine()["cores"]}):
            entries[f"{name}, eager, {threads} threads"] = entry(value, threads)
        compiled = torch.compile(value, dynamic=False)
        entries[f"{name}, compiled"] = entry(compiled, common.machine()["cores"])
    return entries


def take_turns(entries: dict[str, Call], rounds: int) -> list[dict[str, Any]]:
    """Times the entries alternately, a few calls each, after one call that compiles."""
    seconds: dict[str, list[float]] = {name: [] for name in entries}
    first = {name: timed(call) for name, call in entries.items()}
    for _ in range(rounds):
        for name, call in entries.items():
            call()  # wakes this library's threads
            seconds[name] += [timed(call) for _ in range(TURN)]
    return [
        {
            "name": name,
            "milliseconds_median": 1e3 * statistics.median(times),
            "milliseconds_min": 1e3 * min(times),
            "first_call_seconds": first[name],
        }
        for name, times in seconds.items()
    ]


def timed(call: Call) -> float:
    """Returns the duration of a call in seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def rank_rows(rounds: int) -> list[dict[str, Any]]:
    """Measures nanoseconds per score of each method to rank rows, for several row lengths."""
    import jax
    import jax.numpy as jnp

    from crl_jax import stats

    def compiled(way: Callable[[Any], Any], scores: Any) -> Call:
        run = jax.jit(way)
        return lambda: jax.block_until_ready(run(scores))

    rows = []
    for n_rows, n in RANKED:
        scores = jax.random.normal(jax.random.key(0), (n_rows, n))

        def search(x: Any) -> Any:
            return jax.vmap(partial(jnp.searchsorted, side="right"))(jnp.sort(x), x)

        ways = {
            "stats.ranks": stats.ranks,
            "sorted, searched": search,
            "argsort of argsort": lambda x: jnp.argsort(jnp.argsort(x)),
            "binned_ecdf, 512 bins": partial(stats.binned_ecdf, bins=512),
        }
        calls = {name: compiled(way, scores) for name, way in ways.items()}
        for row in take_turns(calls, rounds):
            per_score = 1e6 * row["milliseconds_median"] / scores.size
            rows.append({"way": row["name"], "row": n, "nanoseconds_per_score": per_score})
    return rows


def work(batch: int, bins: int) -> None:
    """Computes one gradient of the tiled Bayesian loss; prints time and peak memory as JSON."""
    import jax
    import jax.numpy as jnp

    from crl_jax import losses

    loss = partial(losses.bayesian_contrastive, bins=bins or None)

    @jax.jit
    def run(z1: Any, z2: Any) -> Any:
        def value(z1: Any, z2: Any) -> Any:
            z1, z2 = losses.normalize(z1), losses.normalize(z2)
            return losses.tiled_view_loss(
                loss, z1, z2, temperature=TEMPERATURE, tau_plus=TAU_PLUS, alpha=ALPHA, beta=BETA
            )

        return jax.value_and_grad(value, (0, 1))(z1, z2)

    z1, z2 = (jnp.asarray(x) for x in embeddings(batch))
    before = peak_memory_mb()
    start = time.perf_counter()
    value, _ = jax.block_until_ready(run(z1, z2))
    print(
        json.dumps(
            {
                "batch": batch,
                "negatives": 2 * batch - 2,
                "bins": bins or None,
                "seconds": time.perf_counter() - start,
                "loss": float(value),
                "rss_before_mb": before,
                "peak_rss_mb": peak_memory_mb(),
            }
        )
    )


def peak_memory_mb() -> float:
    """Peak memory of this process alone: ``getrusage`` would include its parent's at the fork."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def measure_memory(batches: list[int], bins: list[int]) -> list[dict[str, Any]]:
    """Measures each batch size in a separate process."""
    rows = []
    for batch in batches:
        for n_bins in bins:
            command = [sys.executable, "-m", "benchmarks.contrastive", "--worker", str(batch)]
            done = subprocess.run(
                [*command, "--bins", str(n_bins)], check=True, stdout=subprocess.PIPE, text=True
            )
            rows.append(json.loads(done.stdout.splitlines()[-1]))
    return rows


def main() -> None:
    """Parses the command line, measures, prints the tables and writes the JSON."""
    parser = argparse.ArgumentParser(description="Contrastive losses, forward and backward.")
    default = Path(__file__).parent / "results" / "contrastive.json"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument(
        "--rounds", type=common.count, default=6, help=f"turns of {TURN} calls each"
    )
    parser.add_argument(
        "--large",
        type=common.count,
        nargs="*",
        default=[1024, 4096, LARGE],
        help="batches for memory",
    )
    parser.add_argument("--exact-up-to", type=int, default=4096, help="exact ranks up to here")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bins", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.bins)
        return
    result: dict[str, Any] = {
        "benchmark": "contrastive",
        "shape": {"batch": BATCH, "dim": DIM, "negatives": 2 * BATCH - 2},
        "machine": common.machine(),
        "versions": common.versions("jax", "jaxlib", "torch", "numpy"),
    }

    def keep(name: str, rows: list[dict[str, Any]]) -> None:
        result[name] = rows
        common.print_table(rows)
        common.write_json(args.out, result)

    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        keep("losses", take_turns({**ours(BATCH), **theirs(BATCH)}, args.rounds))
    keep("ranks", rank_rows(args.rounds))
    if args.large:
        exact = [batch for batch in args.large if batch <= args.exact_up_to]
        keep("memory", measure_memory(args.large, [512]) + measure_memory(exact, [0]))


if __name__ == "__main__":
    main()
