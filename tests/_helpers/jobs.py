"""Two-process jobs, and the script that each process runs."""

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(commands) -> list[subprocess.Popen]:
    """Starts a process with four devices per list of Python arguments."""
    environment = os.environ | {
        "JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for command in commands
    ]  # fmt: skip


def free_port() -> int:
    """Returns a free port."""
    with closing(socket.socket()) as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def batches_of(process, n_processes, pairs):
    """Returns batches of 64 pairs, or one process's halves; the second process lacks the last."""
    import jax
    import numpy as np

    rows = np.arange(len(pairs.users) // 64 * 64 + 10)
    whole, last = rows[:-10].reshape(-1, 2, 32), rows[-10:]
    halves = [[*whole[:, 0], last], [*whole[:, 1], last[:0]]]

    def take(rows):
        return jax.tree.map(lambda x: np.asarray(x)[rows], pairs)

    if n_processes == 2:
        return [take(rows) for rows in halves[process] if len(rows)]
    return [take(np.concatenate(both)) for both in zip(*halves, strict=True)]


def train_from_host(process, n_processes) -> dict[str, float]:
    """Trains on these batches on eight devices in total; returns parameter sums and the loss."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh

    from crl_jax import losses, models, tasks, train
    from crl_jax.data import simulate

    log = simulate(n_users=60, n_items=80, n_exposed=50, seed=1).interactions
    task = tasks.Ranking.from_interactions(
        log, encoder=models.MatrixFactorization(60, 80, 4), loss=losses.bpr
    )
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "table"))
    plan = train.TrainConfig(64, mesh=mesh)
    assert train.local_batch_size(plan) == 64 // n_processes
    batches = batches_of(process, n_processes, task.seen)
    host = train.HostBatches(lambda epoch: batches, n=sum(len(b.users) for b in batches), chunk=3)
    fitted = train.fit(task, train.Optimizer(0.5, rule=train.sgd_l2), host, plan, epochs=3)
    total = jax.jit(lambda x: jnp.sum(jnp.abs(x)))
    sums = {name: float(total(table)) for name, table in fitted.params.items()}
    return {**sums, "loss": fitted.history[-1]["loss"][0]}


if __name__ == "__main__":
    import json

    import jax

    process, port = int(sys.argv[1]), sys.argv[2]
    jax.distributed.initialize(f"localhost:{port}", 2, process)
    sys.stdout.write(json.dumps(train_from_host(process, 2)))
