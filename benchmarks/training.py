"""Training triplets per second on MovieLens 100K, sampling included, against PyTorch.

One epoch iterates once over the interactions in a new random order, draws exact negatives (and
extra positives), and takes Adam steps on a matrix factorisation of width 32. The data are
``$CRL_DATA/ml-100k/train.csv``; if CRL_DATA is unset, simulated data of the same shape.

Ours is :func:`crl_jax.train.run_steps` compiled with donated state, as in
:func:`crl_jax.train.fit`, in separate processes: one thread or all of them, which XLA fixes when
it starts. PyTorch's alternative implementations of the same epoch compete first, eager and
compiled, on one thread and on all; the best eager and the best compiled one are compared with the
better of ours. The contestants are then timed alternately, a few epochs each, so that a busy
moment of the machine affects all of them, and the threads of one have gone to sleep before most
epochs of the next.

    python -m benchmarks.training --out benchmarks/results/training.json
"""

import argparse
import dataclasses
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import _common as common
from ._worker import Worker

DIM, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY, TAU_PLUS = 32, 1024, 1e-3, 1e-5, 0.07
N_USERS, N_ITEMS, N_INTERACTIONS = 943, 1682, 80_000
CONTEST_EPOCHS = 3
TURN = 4
Entry = tuple[str, Callable[..., Any], str, str, int]
"""Configuration of a PyTorch epoch: eager or compiled, its loss, gather, Adam, threads."""


@dataclasses.dataclass(frozen=True)
class Task:
    """Loss, and the numbers of negatives and extra positives per interaction."""

    loss: str
    n_neg: int
    n_pos: int


TASKS = [Task("bpr", n_neg=1, n_pos=0), Task("dpl", n_neg=5, n_pos=5)]


@dataclasses.dataclass
class Contestant:
    """Implementation of an epoch; ``run`` returns the mean loss and keeps its state."""

    name: str
    run: Callable[[], float]
    first_call_seconds: float
    """Duration of the first epoch, including compilation, if any."""
    epochs: int = 1
    """Number of epochs run so far, including the first."""

    def epoch(self) -> float:
        """Runs an epoch."""
        self.epochs += 1
        return self.run()


def load_interactions() -> tuple[str, Any]:
    """Returns the name of the data and the training interactions."""
    from crl_jax import data

    if folder := os.environ.get("CRL_DATA"):
        return "ml-100k", data.read(Path(folder) / "ml-100k" / "train.csv")
    # Simulates more interactions than needed and keeps a random subset.
    made = data.simulate(n_users=N_USERS, n_items=N_ITEMS, n_exposed=700).interactions
    keep = np.zeros(len(made), bool)
    keep[np.random.default_rng(0).choice(len(made), N_INTERACTIONS, replace=False)] = True
    return "simulated", made.select(keep)


def run_jax(task: Task) -> tuple[Contestant, list[dict[str, Any]]]:
    """Returns the faster of our processes with one thread and with all, and the contest."""
    entries = []
    for threads in sorted({1, common.machine()["cores"]}):
        env = {**os.environ, "NPROC": str(threads)}
        worker = Worker("training", "--worker", task.loss, env=env)
        first = float(worker.answer())

        def epoch(ask: Callable[[], str] = worker.ask) -> float:
            return float(ask())

        contestant = Contestant(f"crl_jax, {threads} threads", epoch, first)
        best = min(timed(contestant.epoch)[0] for _ in range(CONTEST_EPOCHS))
        entries.append((best, worker, contestant))
    contest = [
        {
            "name": contestant.name,
            "epoch_seconds_min": best,
            "first_call_seconds": contestant.first_call_seconds,
        }
        for best, _, contestant in entries
    ]
    (_, _, chosen), *others = sorted(entries, key=lambda entry: entry[0])
    for _, worker, _ in others:
        worker.end()
    return chosen, contest


def work(task: Task) -> None:
    """Trains an epoch per input line; prints the seconds of the first epoch, then losses."""
    _, interactions = load_interactions()
    contestant = make_epoch(task, interactions)
    print(contestant.first_call_seconds, flush=True)
    for _ in sys.stdin:
        print(contestant.epoch(), flush=True)


def make_epoch(task: Task, interactions: Any) -> Contestant:
    """Returns the epoch of ``crl_jax``."""
    import jax
    import jax.numpy as jnp

    from crl_jax import losses, models, tasks, train

    common.tune_compiler()

    loss, hyperparams = {
        "bpr": (losses.bpr, {}),
        "dpl": (losses.debiased_pairwise, {"tau_plus": TAU_PLUS}),
    }[task.loss]
    ranking = tasks.Ranking.from_interactions(
        interactions,
        encoder=models.MatrixFactorization(interactions.n_users, interactions.n_items, DIM),
        loss=loss,
        hyperparams={name: jnp.float32(value) for name, value in hyperparams.items()},
        n_neg=task.n_neg,
        n_pos=task.n_pos,
    )
    optimizer = train.Optimizer(jnp.float32(LEARNING_RATE), jnp.float32(WEIGHT_DECAY))
    batches, plan = train.ArrayBatches(ranking.seen), train.TrainConfig(BATCH_SIZE)

    @partial(train.jit, donate_argnums=0)
    def compiled(state: Any, epoch: Any, ranking: Any, optimizer: Any, batches: Any) -> Any:
        # The key is computed on the device, as in `fit`; outside it would be timed as well.
        steps = batches.epoch(jax.random.fold_in(state.key, epoch), plan)
        return train.run_steps(
            ranking, optimizer, state, steps, config=plan, data=batches.data, epoch=epoch
        )

    state = train.initial_state(ranking, optimizer, 0)
    epochs = itertools.count()

    def epoch() -> float:
        nonlocal state
        state, report = compiled(state, np.int32(next(epochs)), ranking, optimizer, batches)
        return float(jax.block_until_ready((state, report))[1]["loss"])

    start = time.perf_counter()
    epoch()
    return Contestant("crl_jax", epoch, time.perf_counter() - start)


def run_torch(task: Task, interactions: Any) -> tuple[list[Contestant], list[dict[str, Any]]]:
    """Returns the fastest eager and compiled epochs of PyTorch, and the whole contest.

    If ``torch.compile`` has no working compiler, the compiled half is missing and the contest
    records the error.
    """
    import torch

    from . import _torch_mf as mf

    problem = mf.Problem.of(
        interactions.users, interactions.items, interactions.n_users, interactions.n_items
    )
    loss = {"bpr": mf.bpr, "dpl": partial(mf.debiased_pairwise, tau_plus=TAU_PLUS)}[task.loss]
    contest = []

    def enter(kind: str, batch_loss: Any, gather: str, adam: str, threads: int) -> Contestant:
        trainer = mf.Trainer(
            problem, batch_loss, n_neg=task.n_neg, n_pos=task.n_pos, adam=adam, dim=DIM,
            learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, batch_size=BATCH_SIZE, seed=0,
        )  # fmt: skip

        def epoch() -> float:
            torch.set_num_threads(threads)
            return trainer.epoch()

        first_call_seconds, _ = timed(epoch)
        name = f"PyTorch {kind}, {gather}, {adam} Adam, {threads} threads"
        return Contestant(name, epoch, first_call_seconds)

    def fastest(entries: list[Entry]) -> tuple[Entry, float]:
        """Returns the entry with the fastest epoch, and the seconds of its first epoch."""
        results = []
        for entry in entries:
            entrant = enter(*entry)
            best = min(timed(entrant.epoch)[0] for _ in range(CONTEST_EPOCHS))
            results.append(
                {
                    "name": entrant.name,
                    "epoch_seconds_min": best,
                    "first_call_seconds": entrant.first_call_seconds,
                }
            )
        contest.extend(results)
        place = int(np.argmin([result["epoch_seconds_min"] for result in results]))
        return entries[place], results[place]["first_call_seconds"]

    thread_counts = sorted({1, common.machine()["cores"]})
    eager, first = fastest(
        [
            ("eager", mf.make_batch_loss(loss, gather, task.n_pos), gather, adam, threads)
            for gather, adam, threads in itertools.product(mf.GATHERS, mf.ADAMS, thread_counts)
        ]
    )
    winners = [(eager, first)]
    # Compilation is slow and does not affect Adam: its kernel and the threads are fixed already.
    torch.compiler.reset()
    compile_ = partial(torch.compile, dynamic=False)
    try:
        winners.append(
            fastest(
                [
                    ("compiled", compile_(mf.make_batch_loss(loss, gather, task.n_pos)), gather)
                    + eager[3:]
                    for gather in mf.GATHERS
                ]
            )
        )
    except RuntimeError as error:
        contest.append({"name": "PyTorch compiled", "error": str(error)[:500]})
    # Start from untrained models again: entries of the contest trained for different times.
    fresh = [
        dataclasses.replace(enter(*entry), first_call_seconds=first) for entry, first in winners
    ]
    return fresh, contest


def timed(call: Callable[[], float]) -> tuple[float, float]:
    """Returns the seconds of a call and its return value."""
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


def measure(task: Task, interactions: Any, repeats: int) -> dict[str, Any]:
    """Times a few epochs of each contestant alternately, after equal numbers of training epochs."""
    n = len(interactions)
    references, contest = run_torch(task, interactions)
    ours, our_contest = run_jax(task)
    contestants = [ours, *references]
    most = max(contestant.epochs for contestant in contestants)
    for contestant in contestants:
        while contestant.epochs < most:
            contestant.epoch()
    runs: list[list[tuple[float, float]]] = [[] for _ in contestants]
    for _ in range(repeats):
        for contestant, run in zip(contestants, runs, strict=True):
            run += [timed(contestant.epoch) for _ in range(TURN)]
    rows = []
    for contestant, run in zip(contestants, runs, strict=True):
        seconds, losses = zip(*run, strict=True)
        rows.append(
            {
                "name": contestant.name,
                "epoch_seconds_median": statistics.median(seconds),
                "epoch_seconds_min": min(seconds),
                "interactions_per_second": n / statistics.median(seconds),
                "triplets_per_second": n * task.n_neg / statistics.median(seconds),
                "first_call_seconds": contestant.first_call_seconds,
                "loss_after": losses[-1],
                "epochs": contestant.epochs,
                "epoch_seconds": seconds,
                "losses": losses,
            }
        )
    for row in rows:
        row["times_ours"] = row["epoch_seconds_median"] / rows[0]["epoch_seconds_median"]
    contest = our_contest + contest
    return {**dataclasses.asdict(task), "interactions": n, "rows": rows, "contest": contest}


def judge(results: list[dict[str, Any]]) -> None:
    """Checks the references' loss against ours after the same number of epochs.

    The training is the same with other random numbers: seeds differ by 6 % at this stage, while a
    wrong loss, rate or gradient would exceed that.

    Raises:
      SystemExit: If a loss differs by more than 10 %.
    """
    for result in results:
        ours, *references = result["rows"]
        for row in references:
            if not abs(row["loss_after"] / ours["loss_after"] - 1) <= 0.1:
                raise SystemExit(
                    f"{result['loss']} after {row['epochs']} epochs: the loss of {row['name']} is "
                    f"{row['loss_after']:.4f}, ours {ours['loss_after']:.4f}: not the same training"
                )


def main() -> None:
    """Parses the command line, measures, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description="Training on MovieLens 100K, triplets per second.")
    default = Path(__file__).parent / "results" / "training.json"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--repeats", type=common.count, default=8, help=f"turns of {TURN} epochs")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(next(task for task in TASKS if task.loss == args.worker))
        return
    machine, versions = (
        common.machine(),
        common.versions("jax", "jaxlib", "optax", "torch", "numpy"),
    )
    name, interactions = load_interactions()
    about = {
        "benchmark": "training",
        "data": name,
        "shape": {"users": interactions.n_users, "items": interactions.n_items, "dim": DIM},
        "batch_size": BATCH_SIZE,
        "machine": machine,
        "versions": versions,
    }
    results = []
    with tempfile.TemporaryDirectory() as cache:
        # Compiled code of an earlier run would make the first call appear fast.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        for task in TASKS:
            results.append(result := measure(task, interactions, args.repeats))
            print(f"\n{result['loss']}: N = {result['n_neg']}, M = {result['n_pos']}")
            common.print_table(
                [{k: v for k, v in row.items() if np.ndim(v) == 0} for row in result["rows"]]
            )
            common.write_json(args.out, {**about, "tasks": results})
    judge(results)


if __name__ == "__main__":
    main()
