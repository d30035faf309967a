"""Time of negative samplers against the size of the catalogue.

One call draws a negative for each of 128 anchors from the current scores of matrix factorisation of
width 32, with 10^3 to 10^6 items. Every user has 20 positives. The samplers are timed alternately;
medians are reported, in wall-clock and in processor time, which other processes do not prolong.

    python -m benchmarks.catalogue --out benchmarks/results/samplers/catalogue.csv
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import models, samplers
from crl_jax.data import Interactions
from experiments._compiler import tune_compiler

from ._report import (
    Report,
    Row,
    add_ratio,
    alternate,
    count,
    one_line_errors,
    parser,
    summarize,
    timed,
)

DIM, USERS, ANCHORS, POSITIVES = 32, 1024, 128, 20
SIZES = 1_000, 10_000, 100_000, 1_000_000


def contestants(log: Interactions) -> dict[str, samplers.Sampler]:
    """Returns the samplers by name; uniform first."""
    prior = samplers.popularity_prior(log)
    return {
        "RNS": samplers.RNS(),
        "DNS, m = 5": samplers.DNS(5),
        "BNS, m = 5, eCDF of the batch": samplers.BNS(prior, ecdf="batch"),
        "BNS, m = 5, eCDF of 64": samplers.BNS(prior, ecdf_samples=64),
        "BNS, m = 5, exact eCDF": samplers.BNS(prior),
        "AOBPR": samplers.AOBPR(),
    }


def simulate(n_items: int) -> tuple[Interactions, models.Tables]:
    """Returns interactions with distinct uniform items per user, and normal embeddings."""
    rng = np.random.default_rng(n_items)
    items = np.concatenate([rng.choice(n_items, POSITIVES, replace=False) for _ in range(USERS)])
    log = Interactions.from_arrays(
        np.repeat(np.arange(USERS), POSITIVES), items, user_ids=np.arange(USERS),
        item_ids=np.arange(n_items),
    )  # fmt: skip
    tables = (rng.normal(size=(n, DIM)).astype(np.float32) for n in (USERS, n_items))
    return log, models.Tables(*map(jnp.asarray, tables))


def compile_call(sampler: samplers.Sampler, log: Interactions, tables: models.Tables) -> Any:
    """Returns a function that draws the negatives of the anchors and waits for them."""
    positives = samplers.Positives.from_interactions(log, bitmap=sampler.uses_bitmap)
    state = sampler.init(jax.random.key(0), positives, tables)
    users = jnp.arange(ANCHORS, dtype=jnp.int32)
    items = jnp.asarray(log.items[: ANCHORS * POSITIVES : POSITIVES], jnp.int32)
    encoder = models.MatrixFactorization(log.n_users, log.n_items, DIM)

    @jax.jit
    def call(sampler: Any, key: Any, positives: Any, tables: Any, state: Any) -> Any:
        batch = samplers.SamplingContext(users, items, positives, tables, jnp.int32(0), encoder)
        return sampler(key, batch, state)

    arguments = sampler, jax.random.key(1), positives, tables, state
    return partial(timed, lambda: jax.block_until_ready(call(*arguments)))


def measure(n_items: int, rounds: int) -> list[Row]:
    """Returns one row per sampler."""
    log, tables = simulate(n_items)
    calls = {name: compile_call(sampler, log, tables) for name, sampler in contestants(log).items()}
    alternate(calls, 1)  # compiles
    rows = []
    for name, times in alternate(calls, rounds).items():
        wall = summarize("call_ms", [1e3 * each.seconds for each in times])
        cpu = summarize("cpu_ms", [1e3 * each.cpu_seconds for each in times])
        rows.append({"items": n_items, "sampler": name, **wall, **cpu})
    add_ratio(rows, "times_rns", "cpu_ms_min")
    return rows


@one_line_errors
def main() -> None:
    """Measures all sizes."""
    tune_compiler()
    arguments = parser(__doc__)
    arguments.add_argument("--sizes", type=count, nargs="+", default=SIZES, help="catalogue sizes")
    arguments.add_argument("--rounds", type=count, default=15, help="timed calls per sampler")
    args = arguments.parse_args()
    report = Report(args.out, "jax", "jaxlib", "numpy", anchors=ANCHORS, width=DIM)
    for n_items in args.sizes:
        report.add(measure(n_items, args.rounds))


if __name__ == "__main__":
    main()
