"""Contrastive losses of a two-view batch, forward and backward, against PyTorch; ranks; memory.

Three tables. *Losses*: value and gradient with respect to both views' embeddings, normalisation
included, at B = 256 and D = 128: 512 anchors with 510 negatives each. PyTorch computes InfoNCE
by its cross-entropy, and the Bayesian loss with ranks from a sorted row and from all pairs, as
published code does; each eager and compiled, on one thread and on all, of which the fastest is
reported. Contestants are timed alternately. *Ranks*: the methods to rank rows of scores. *Memory*:
peak resident memory of a process that takes one gradient of the tiled Bayesian loss of a large
batch.

    python -m benchmarks.contrastive --out benchmarks/results/contrastive.csv
"""

import itertools
import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ._processes import in_process, memory_mb
from ._report import (
    CORES,
    THREADS,
    Report,
    Row,
    alternate,
    count,
    one_line_errors,
    parser,
    summarize,
    timed,
)

BATCH, DIM, TEMPERATURE = 256, 128, 0.5
TAU_PLUS, ALPHA, BETA = 0.1, 0.9, 0.9
RANK_SHAPES = [(512, 510), (128, 2048), (64, 8192), (32, 32_766)]
CALLS_PER_TURN = 5
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
    is_self = torch.eye(n, dtype=torch.bool)
    is_negative = ~(is_self | is_self[partner])

    def logits() -> Any:
        z = torch.cat([F.normalize(z1), F.normalize(z2)])
        return z @ z.T / TEMPERATURE

    def info_nce() -> Any:
        return F.cross_entropy(logits().masked_fill(is_self, -torch.inf), partner)

    def bayesian(rank: Any) -> Any:
        s = logits()
        pos, neg = s[torch.arange(n), partner], s[is_negative].view(n, n - 2)
        with torch.no_grad():
            u = rank(neg)
            a = (1 - 2 * ALPHA) * (1 - 2 * TAU_PLUS)
            b = 2 * (ALPHA * (1 - TAU_PLUS) + (1 - ALPHA) * TAU_PLUS)
            phi = 2 * u / (b + torch.sqrt(b * b + 4 * a * u))
            z = (1 - BETA) * ALPHA + BETA * (1 - ALPHA)
            weight = ((1 - BETA) * ALPHA + (BETA - ALPHA) * phi) / z / (b / 2 + a * phi)
        return F.softplus(torch.logsumexp(neg + weight.log(), 1) - pos).mean()

    def rank_by_sorting(neg: Any) -> Any:
        counts = torch.searchsorted(neg.sort(1).values, neg.contiguous(), right=True)
        return counts.float() / neg.shape[1]

    def rank_by_pairs(neg: Any) -> Any:
        return (neg[:, None, :] <= neg[:, :, None]).float().mean(2)

    def entry(value: Call, threads: int) -> Call:
        def run() -> float:
            torch.set_num_threads(threads)
            z1.grad = z2.grad = None
            loss = value()
            loss.backward()
            return loss.item()

        return run

    loss_fns = {
        "PyTorch InfoNCE, cross-entropy": info_nce,
        "PyTorch Bayesian, sorted rows": partial(bayesian, rank_by_sorting),
        "PyTorch Bayesian, all pairs": partial(bayesian, rank_by_pairs),
    }
    entries = {}
    for name, value in loss_fns.items():
        for threads in THREADS:
            entries[f"{name}, eager, {threads} threads"] = entry(value, threads)
        compiled = torch.compile(value, dynamic=False)
        entries[f"{name}, compiled"] = entry(compiled, CORES)
    return entries


def time_entries(entries: dict[str, Call], rounds: int) -> list[Row]:
    """Times the entries alternately, a few calls each, after one call that compiles."""
    first = {name: timed(call).seconds for name, call in entries.items()}

    def turn(call: Call) -> list[float]:
        call()  # wakes this library's threads
        return [1e3 * timed(call).seconds for _ in range(CALLS_PER_TURN)]

    turns = alternate({name: partial(turn, call) for name, call in entries.items()}, rounds)
    return [
        {
            "name": name,
            **summarize("ms", list(itertools.chain(*times))),
            "first_call_seconds": first[name],
        }
        for name, times in turns.items()
    ]


def measure_ranking(rounds: int) -> list[Row]:
    """Measures nanoseconds per score of each method to rank rows, for several row lengths."""
    import jax
    import jax.numpy as jnp

    from crl_jax import stats

    def compiled(method: Callable[[Any], Any], scores: Any) -> Call:
        run = jax.jit(method)
        return lambda: jax.block_until_ready(run(scores))

    def search(x: Any) -> Any:
        return jax.vmap(partial(jnp.searchsorted, side="right"))(jnp.sort(x), x)

    methods = {
        "stats.ranks": stats.ranks,
        "sorted, searched": search,
        "argsort of argsort": lambda x: jnp.argsort(jnp.argsort(x)),
        "binned_ecdf, 512 bins": partial(stats.binned_ecdf, bins=512),
    }
    rows = []
    for n_rows, n in RANK_SHAPES:
        scores = jax.random.normal(jax.random.key(0), (n_rows, n))
        calls = {name: compiled(method, scores) for name, method in methods.items()}
        for row in time_entries(calls, rounds):
            per_score = 1e6 * row["ms"] / scores.size
            rows.append({"name": row["name"], "row": n, "nanoseconds_per_score": per_score})
    return rows


def measure_memory(batch: int, bins: int | None) -> Row:
    """Computes one gradient of the tiled Bayesian loss; returns its time and the peak memory."""
    import jax
    import jax.numpy as jnp

    from crl_jax import losses

    loss = partial(losses.bayesian_contrastive, bins=bins)

    @jax.jit
    def run(z1: Any, z2: Any) -> Any:
        def value(z1: Any, z2: Any) -> Any:
            z1, z2 = losses.normalize(z1), losses.normalize(z2)
            return losses.tiled_view_loss(
                loss, z1, z2, temperature=TEMPERATURE, tau_plus=TAU_PLUS, alpha=ALPHA, beta=BETA
            )

        return jax.value_and_grad(value, (0, 1))(z1, z2)

    z1, z2 = (jnp.asarray(x) for x in embeddings(batch))
    before = memory_mb()
    timing = timed(lambda: jax.block_until_ready(run(z1, z2)))
    return {
        "batch": batch,
        "negatives": 2 * batch - 2,
        "ranks": f"{bins} bins" if bins else "exact",
        "seconds": timing.seconds,
        "loss": float(timing.value[0]),
        "before_mb": before,
        "peak_mb": memory_mb(),
    }


@one_line_errors
def main() -> None:
    """Measures losses, ranks and memory."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--rounds", type=count, default=6, help=f"turns of {CALLS_PER_TURN} calls each"
    )
    arguments.add_argument(
        "--large", type=count, nargs="*", default=[1024, 4096, 16_384],
        help="batch sizes of the memory table",
    )  # fmt: skip
    arguments.add_argument(
        "--exact-up-to", type=int, default=4096, help="largest batch size with exact ranks"
    )
    args = arguments.parse_args()
    report = Report(args.out, "jax", "jaxlib", "torch", "numpy")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        report.add(time_entries({**ours(BATCH), **theirs(BATCH)}, args.rounds))
    report.add(measure_ranking(args.rounds), "ranks")
    cases = [(batch, 512) for batch in args.large]
    cases += [(batch, None) for batch in args.large if batch <= args.exact_up_to]
    if cases:
        report.add([in_process(measure_memory, *case) for case in cases], "memory")


if __name__ == "__main__":
    main()
