"""Cost of negative samplers: an epoch of BPR with each, relative to uniform negatives.

MovieLens 100K, matrix factorisation of width 32, in two settings. *minibatch*: Adam on batches of
1,024, whose epoch is the fastest available baseline. *triplets*: SGD with one triplet per step,
negatives drawn for 1,024 triplets at a time, which is the published setting. The samplers are timed
alternately, so that other work on the machine affects all of them; medians are reported. The
compiled epochs are searched for transfers to the host.

    python -m benchmarks.samplers --data ml-100k --out benchmarks/results/samplers/cost.csv
"""

import itertools
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, losses, models, samplers, tasks, train
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

DIM = 32
SETTINGS = {
    "minibatch": (
        train.TrainConfig(1024), train.Optimizer(jnp.float32(1e-3), jnp.float32(1e-5)), {},
    ),
    "triplets": (
        train.TrainConfig(1, draw_batches=1024),
        train.RowOptimizer(jnp.float32(1e-2), rule=train.rows.sgd),
        {"l2": jnp.float32(1e-2), "l2_target": "rows"},
    ),
}  # fmt: skip
# Names that identify host callbacks and transfers to the host in a compiled program.
_HOST_TRANSFER = re.compile(
    r"outfeed|infeed|\bsend\(|\brecv\(|xla_python|xla_ffi_python", re.IGNORECASE
)


def contestants(log: data.Interactions) -> dict[str, samplers.Sampler]:
    """Returns the samplers by name; uniform first."""
    prior = samplers.popularity_prior(log)
    return {
        "RNS": samplers.RNS(),
        "PNS": samplers.PNS.from_interactions(log),
        "DNS, m = 2": samplers.DNS(2),
        "DNS, m = 5": samplers.DNS(5),
        "SRNS": samplers.SRNS(memory=8, fresh=8),
        "BNS, m = 5, eCDF of 64": samplers.BNS(prior, ecdf_samples=64),
        "BNS, m = 5, eCDF of 128": samplers.BNS(prior, ecdf_samples=128),
        "BNS, m = 5, exact eCDF": samplers.BNS(prior),
        "AOBPR": samplers.AOBPR(),
    }


def compile_epoch(
    sampler: samplers.Sampler, log: data.Interactions, setting: str
) -> tuple[Any, Any, bool]:
    """Returns an epoch with donated state, its state, and whether it has no host transfers."""
    config, optimizer, l2 = SETTINGS[setting]
    encoder = models.MatrixFactorization(log.n_users, log.n_items, DIM)
    task = tasks.Ranking.from_interactions(
        log, encoder=encoder, loss=losses.bpr, sampler=sampler, **l2
    )
    batches = train.ArrayBatches(task.seen)

    @partial(train.jit, donate_argnums=0)
    def epoch(state: Any, task: Any, number: Any, optimizer: Any, batches: Any) -> Any:
        steps = batches.epoch(jax.random.fold_in(state.key, number), config)
        return train.run_steps(
            task, optimizer, state, steps, config=config, data=batches.data, epoch=number
        )

    state = train.initial_state(task, optimizer, 0)
    state = jax.tree.map(jnp.copy, state)  # own buffers, to be donated
    compiled = epoch.lower(state, task, np.int32(0), optimizer, batches).compile()
    on_device = not _HOST_TRANSFER.search(compiled.as_text() or "")

    def run(state: Any, number: Any) -> Any:
        return compiled(state, task, number, optimizer, batches)

    return run, state, on_device


def measure(log: data.Interactions, setting: str, rounds: int) -> list[Row]:
    """Returns one row per sampler."""
    calls, on_device = {}, {}
    for name, sampler in contestants(log).items():
        run, state, on_device[name] = compile_epoch(sampler, log, setting)
        calls[name] = partial(timed_epoch, run, [state], itertools.count())
    alternate(calls, 1)  # warms up
    rows = [
        {
            "setting": setting,
            "sampler": name,
            **summarize("epoch_ms", times),
            "no_host_transfer": on_device[name],
        }
        for name, times in alternate(calls, rounds).items()
    ]
    add_ratio(rows, "times_rns", "epoch_ms")
    add_ratio(rows, "times_rns_min", "epoch_ms_min")
    return rows


def timed_epoch(run: Any, state: list[Any], numbers: Iterator[int]) -> float:
    """Runs an epoch, replaces the state, and returns the milliseconds."""

    def epoch() -> Any:
        return jax.block_until_ready(run(state[0], np.int32(next(numbers))))

    timing = timed(epoch)
    state[0], _ = timing.value
    return 1e3 * timing.seconds


@one_line_errors
def main() -> None:
    """Measures both settings."""
    tune_compiler()
    arguments = parser(__doc__)
    arguments.add_argument("--data", required=True, help="folder of MovieLens 100K with its split")
    arguments.add_argument("--rounds", type=count, default=15, help="timed epochs per sampler")
    args = arguments.parse_args()
    loaded = data.load(args.data)
    log = loaded.train if isinstance(loaded, data.Split) else loaded
    report = Report(args.out, "jax", "jaxlib", "numpy", interactions=len(log))
    for setting in SETTINGS:
        report.add(measure(log, setting, args.rounds))


if __name__ == "__main__":
    main()
