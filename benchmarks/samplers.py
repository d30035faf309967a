"""Cost of negative samplers: an epoch of BPR with each, relative to uniform negatives.

MovieLens 100K, matrix factorisation of width 32, in two settings. *minibatch*: Adam on batches of
1,024, whose epoch is the fastest available baseline. *triplets*: SGD with one triplet per step,
negatives drawn for 1,024 triplets at a time, which is the published setting. The samplers are timed
alternately, so that other work on the machine affects all of them; medians are reported. The
compiled epochs are searched for transfers to the host.

    python -m benchmarks.samplers --data ml-100k --out benchmarks/results/samplers/cost.json
"""

import argparse
import re
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, losses, models, samplers, stats, tasks, train

from . import _common as common

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
_TO_HOST = re.compile(r"outfeed|infeed|\bsend\(|\brecv\(|xla_python|xla_ffi_python", re.IGNORECASE)


def contestants(log: data.Interactions) -> dict[str, samplers.Sampler]:
    """Returns the samplers by name; uniform first."""
    prior = samplers.popularity_prior(log)
    return {
        "RNS": samplers.RNS(),
        "PNS": samplers.PNS.from_interactions(log),
        "DNS, m = 2": samplers.DNS(2),
        "DNS, m = 5": samplers.DNS(5),
        "SRNS": samplers.SRNS(),
        "BNS, m = 5, eCDF of 64": samplers.BNS(prior, ecdf_samples=64),
        "BNS, m = 5, eCDF of 128": samplers.BNS(prior, ecdf_samples=128),
        "BNS, m = 5, exact eCDF": samplers.BNS(prior),
        "AOBPR": samplers.AOBPR(),
    }


def compile_epoch(
    sampler: samplers.Sampler, log: data.Interactions, setting: str
) -> tuple[Any, Any, bool]:
    """Returns an epoch with donated state, its state, and whether it has no host transfers."""
    plan, optimizer, l2 = SETTINGS[setting]
    encoder = models.MatrixFactorization(log.n_users, log.n_items, DIM)
    task = tasks.Ranking.from_interactions(
        log, encoder=encoder, loss=losses.bpr, sampler=sampler, **l2
    )
    batches = train.ArrayBatches(task.seen)

    @partial(train.jit, donate_argnums=0)
    def epoch(state: Any, task: Any, number: Any, optimizer: Any, batches: Any) -> Any:
        steps = batches.epoch(jax.random.fold_in(state.key, number), plan)
        return train.run_steps(
            task, optimizer, state, steps, config=plan, data=batches.data, epoch=number
        )

    state = train.initial_state(task, optimizer, 0)
    state = jax.tree.map(jnp.copy, state)  # own buffers, to be donated
    compiled = epoch.lower(state, task, np.int32(0), optimizer, batches).compile()
    on_device = not _TO_HOST.search(compiled.as_text() or "")

    def run(state: Any, number: Any) -> Any:
        return compiled(state, task, number, optimizer, batches)

    return run, state, on_device


def measure(log: data.Interactions, setting: str, rounds: int) -> list[dict[str, Any]]:
    """Returns one row per sampler."""
    entries = {}
    for name, sampler in contestants(log).items():
        run, state, on_device = compile_epoch(sampler, log, setting)
        entries[name] = {"run": run, "state": state, "on_device": on_device}
    times: dict[str, list[float]] = {name: [] for name in entries}
    for number in range(rounds + 1):
        for name, entry in entries.items():
            started = time.perf_counter()
            out = entry["run"](entry["state"], np.int32(number))
            entry["state"], _ = jax.block_until_ready(out)
            if number:  # the first turn warms up
                times[name].append(time.perf_counter() - started)
    base = times["RNS"]
    return [
        {
            "setting": setting,
            "sampler": name,
            "epoch_ms": 1e3 * statistics.median(t),
            "fastest_ms": 1e3 * min(t),
            "relative": statistics.median(t) / statistics.median(base),
            "relative_fastest": min(t) / min(base),
            "no_host_transfer": entries[name]["on_device"],
        }
        for name, t in times.items()
    ]


def main() -> None:
    """Measures, prints the table and writes the JSON."""
    common.tune_compiler()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, help="folder of MovieLens 100K with its split")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument(
        "--rounds", type=common.count, default=15, help="epochs that count, per sampler"
    )
    options = parser.parse_args()
    loaded = data.load(options.data)
    log = loaded.train if isinstance(loaded, data.Split) else loaded
    result = {
        "machine": common.machine(),
        "versions": common.versions("jax", "jaxlib", "numpy"),
        "device": str(jax.devices()[0]),
        "interactions": len(log),
        "dkw_error_95": {str(n): round(stats.dkw_error(n), 3) for n in (64, 128)},
        "rows": [],
    }
    for setting in SETTINGS:
        rows = measure(log, setting, options.rounds)
        common.print_table(rows)
        result["rows"] += rows
        if options.out:
            common.write_json(options.out, result)


if __name__ == "__main__":
    main()
