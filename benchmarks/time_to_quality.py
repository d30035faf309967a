"""Wall time from the start of a process to an evaluated model of given quality.

Each library trains matrix factorisation of width 32 by BPR on the split of MovieLens 100K in
``$CRL_DATA/ml-100k/{train,test}.csv``, in a separate process with the steps of a user's script:
import, load, train, evaluate. The quality is NDCG@20 on the test set. The number of epochs that a
library needs is determined beforehand, by evaluating on the test set every 5 epochs; that is not
timed, and is no valid way to select the number of epochs in practice.

PyTorch trains as ours does, with the same batches, learning rates and kinds of sampling. It runs
eagerly, since compilation takes longer than this training. ``implicit`` has its own optimiser: a
grid of its learning rates is searched and the best one is timed.

JAX runs twice: compiling everything, and with its persistent compilation cache filled by an
earlier process.

    python -m benchmarks.time_to_quality --out benchmarks/results/time_to_quality.json
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
from pathlib import Path
from typing import Any

from . import _common as common

DIM, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY, K, SEED = 32, 1024, 1e-3, 1e-5, 20, 0
STRIDE = 5
IMPLICIT_GRID = [(rate, l2) for rate in (0.003, 0.01, 0.03) for l2 in (1e-4, 1e-3, 1e-2)]
Mark = Callable[[str], None]


def run_jax(folder: Path, epochs: int, mark: Mark) -> float:
    """Runs the script that a user of ``crl_jax`` writes."""
    from crl_jax import data, losses, metrics, models, tasks, train

    common.tune_compiler()

    mark("import")
    split = data.read_split(folder / "train.csv", folder / "test.csv")
    mark("load")
    fitted = tasks.fit_ranking(
        split.train, loss=losses.bpr, optimizer=train.Optimizer(LEARNING_RATE, WEIGHT_DECAY),
        config=train.TrainConfig(BATCH_SIZE), epochs=epochs,
        stopping=tasks.Stopping(eval_every=epochs), seeds=SEED,
    )  # fmt: skip
    tables = fitted.tables()
    mark("train")
    assert split.test is not None
    plan = metrics.eval_layout(split.train, split.test)
    values = metrics.evaluate(models.inner_scores, tables, plan, ks=(K,), auc=False)
    ndcg = metrics.summarize(values)[f"ndcg@{K}"]
    mark("evaluate")
    return ndcg


def run_torch(folder: Path, epochs: int, mark: Mark) -> float:
    """Runs the same script in PyTorch."""
    from . import _torch_mf as mf

    mark("import")
    train, test, shape = read_pairs(folder)
    problem = mf.Problem.of(train[:, 0], train[:, 1], *shape)
    mark("load")
    trainer = make_torch_trainer(problem)
    for _ in range(epochs):
        trainer.epoch()
    mark("train")
    value = ndcg(trainer.scores(), train, test)
    mark("evaluate")
    return value


def run_implicit(folder: Path, epochs: int, mark: Mark, rate: float, l2: float) -> float:
    """Runs the same script in ``implicit``."""
    import implicit.bpr  # noqa: F401
    import scipy.sparse

    mark("import")
    train, test, shape = read_pairs(folder)
    matrix = scipy.sparse.csr_matrix(([1.0] * len(train), tuple(train.T)), shape, "float32")
    mark("load")
    model = make_implicit_model(epochs, rate, l2)
    model.fit(matrix, show_progress=False)
    mark("train")
    value = ndcg(model.user_factors @ model.item_factors.T, train, test)
    mark("evaluate")
    return value


def make_torch_trainer(problem: Any) -> Any:
    """Returns an untrained trainer with the gather and Adam that win the training benchmark."""
    from . import _torch_mf as mf

    return mf.Trainer(
        problem, mf.make_batch_loss(mf.bpr, "index_select", 0), n_neg=1, n_pos=0, adam="fused",
        dim=DIM, learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, batch_size=BATCH_SIZE,
        seed=SEED,
    )  # fmt: skip


def make_implicit_model(epochs: int, rate: float, l2: float) -> Any:
    """Returns an untrained model that uses all threads."""
    from implicit.bpr import BayesianPersonalizedRanking

    return BayesianPersonalizedRanking(
        factors=DIM, learning_rate=rate, regularization=l2, iterations=epochs, random_state=SEED
    )


def read_pairs(folder: Path) -> tuple[Any, Any, tuple[int, int]]:
    """Returns the pairs of training and test file, ``[n, 2]`` each, and the matrix shape."""
    import numpy as np

    train, test = (
        np.loadtxt(folder / name, np.int64, delimiter=",", skiprows=1, usecols=(0, 1))
        for name in ("train.csv", "test.csv")
    )
    n_users, n_items = np.maximum(train.max(0), test.max(0)) + 1
    return train, test, (int(n_users), int(n_items))


def ndcg(scores: Any, train: Any, test: Any) -> float:
    """Computes NDCG@K over all items, training items masked; overwrites the dense scores."""
    import numpy as np

    scores[tuple(train.T)] = -np.inf
    relevant = np.zeros(scores.shape, bool)
    relevant[tuple(test.T)] = True
    counts = relevant.sum(1)
    top = np.argpartition(-scores, K, axis=1)[:, :K]
    top = np.take_along_axis(top, np.argsort(-np.take_along_axis(scores, top, 1), axis=1), 1)
    discounts = 1 / np.log2(np.arange(2, K + 2))
    gains = np.take_along_axis(relevant, top, 1) @ discounts
    tested = counts > 0
    return float(np.mean(gains[tested] / np.cumsum(discounts)[np.minimum(counts[tested], K) - 1]))


def probe_jax(folder: Path, max_epochs: int) -> list[float]:
    """Returns NDCG of ``crl_jax`` every STRIDE epochs."""
    from crl_jax import data, losses, tasks, train

    common.tune_compiler()

    split = data.read_split(folder / "train.csv", folder / "test.csv")
    fitted = tasks.fit_ranking(
        split.train, split.test, loss=losses.bpr,
        optimizer=train.Optimizer(LEARNING_RATE, WEIGHT_DECAY),
        config=train.TrainConfig(BATCH_SIZE), epochs=max_epochs, seeds=SEED,
        stopping=tasks.Stopping(patience=max_epochs, eval_every=STRIDE, k=K),
    )  # fmt: skip
    return [entry[f"valid_ndcg@{K}"][0] for entry in fitted.history]


def probe_torch(folder: Path, max_epochs: int) -> list[float]:
    """Returns NDCG of PyTorch every STRIDE epochs."""
    from . import _torch_mf as mf

    train, test, shape = read_pairs(folder)
    trainer = make_torch_trainer(mf.Problem.of(train[:, 0], train[:, 1], *shape))
    curve = []
    for epoch in range(1, max_epochs + 1):
        trainer.epoch()
        if epoch % STRIDE == 0:
            curve.append(ndcg(trainer.scores(), train, test))
    return curve


def probe_implicit(folder: Path, max_epochs: int, rate: float, l2: float) -> list[float]:
    """Returns NDCG of ``implicit`` every STRIDE epochs."""
    import scipy.sparse

    train, test, shape = read_pairs(folder)
    matrix = scipy.sparse.csr_matrix(([1.0] * len(train), tuple(train.T)), shape, "float32")
    model, curve = make_implicit_model(max_epochs, rate, l2), []

    def on_epoch(epoch: int, *_: Any) -> None:  # counted from 0
        if (epoch + 1) % STRIDE == 0:
            curve.append(ndcg(model.user_factors @ model.item_factors.T, train, test))

    model.fit(matrix, show_progress=False, callback=on_epoch)
    return curve


RUNS = {"crl_jax": run_jax, "torch": run_torch, "implicit": run_implicit}
PROBES = {"crl_jax": probe_jax, "torch": probe_torch, "implicit": probe_implicit}


def work(request: dict[str, Any]) -> None:
    """Executes one run or probe in this process and prints the result as JSON."""
    folder, epochs, options = Path(request["folder"]), request["epochs"], request["options"]
    if request["probe"]:
        print(json.dumps(PROBES[request["library"]](folder, epochs, *options)))
        return
    seconds, last = {}, request["started"]

    def mark(phase: str) -> None:
        # The parent's clock: the first phase begins when the parent starts this process.
        nonlocal last
        now = time.time()
        seconds[phase], last = now - last, now

    value = RUNS[request["library"]](folder, epochs, mark, *options)
    print(json.dumps({"ndcg": value, "total": last - request["started"], **seconds}))


def start(
    folder: Path, library: str, epochs: int, options: Any = (), *, probe: bool = False,
    cache: str | None = None,
) -> Any:  # fmt: skip
    """Runs a new process and returns its result."""
    request = {
        "folder": str(folder), "library": library, "epochs": epochs, "options": list(options),
        "probe": probe, "started": time.time(),
    }  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    if cache is not None:
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
    command = [sys.executable, "-m", "benchmarks.time_to_quality", "--work", json.dumps(request)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def epochs_needed(curve: list[float], target: float) -> tuple[int, bool]:
    """Returns the epochs until ``curve`` first reaches the target, else until its best."""
    for place, value in enumerate(curve):
        if value >= target:
            return (place + 1) * STRIDE, True
    return (curve.index(max(curve)) + 1) * STRIDE, False


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Probes, then runs all libraries alternately, ``args.repeats`` times."""
    probes: dict[str, Any] = {}
    curves = {
        name: start(folder, name, args.max_epochs, probe=True) for name in ("crl_jax", "torch")
    }
    grid = {
        options: start(folder, "implicit", args.max_epochs, options, probe=True)
        for options in IMPLICIT_GRID
    }
    # The first to reach the target, else the closest.
    options = min(
        grid, key=lambda o: (-min(max(grid[o]), args.target), *epochs_needed(grid[o], args.target))
    )
    curves["implicit"] = grid[options]
    for name, curve in curves.items():
        epochs, reached = epochs_needed(curve, args.target)
        probes[name] = {"epochs": epochs, "reached": reached, "stride": STRIDE, "ndcg": curve}
        print(f"{name}: NDCG@{K} {curve[epochs // STRIDE - 1]:.4f} after {epochs} epochs")
    probes["implicit"] |= {
        "options": dict(zip(("learning_rate", "regularization"), options, strict=True)),
        "grid": [[*o, max(curve)] for o, curve in grid.items()],
    }

    with tempfile.TemporaryDirectory() as cache:
        cases = {
            "crl_jax": ("crl_jax", (), None),
            "crl_jax, cached": ("crl_jax", (), cache),
            "torch": ("torch", (), None),
            "implicit": ("implicit", options, None),
        }
        start(folder, "crl_jax", probes["crl_jax"]["epochs"], cache=cache)  # fills it
        runs: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
        for _ in range(args.repeats):
            for case, (library, given, where) in cases.items():
                epochs = probes[library]["epochs"]
                runs[case].append(start(folder, library, epochs, given, cache=where))
    rows = []
    for case, outcomes in runs.items():
        medians = {name: statistics.median(o[name] for o in outcomes) for name in outcomes[0]}
        probe = probes[cases[case][0]]
        rows.append(
            {
                "name": case, "epochs": probe["epochs"], **medians,
                "reached": medians["ndcg"] >= args.target, "runs": outcomes,
            }
        )  # fmt: skip
    return {"probes": probes, "rows": rows}


def main() -> None:
    """Parses the command line, measures, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description="Seconds to a model of given quality.")
    default = Path(__file__).parent / "results" / "time_to_quality.json"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--target", type=float, default=0.40, help=f"NDCG@{K} to reach")
    parser.add_argument("--max-epochs", type=int, default=150, help="of the probes")
    parser.add_argument("--repeats", type=common.count, default=3)
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work)
        return
    if "CRL_DATA" not in os.environ:
        parser.error("needs MovieLens 100K: set CRL_DATA to the folder that has ml-100k/")
    if args.max_epochs < STRIDE:
        parser.error(f"--max-epochs must be at least {STRIDE}, got {args.max_epochs}")
    machine = common.machine()
    versions = common.versions("jax", "jaxlib", "torch", "implicit", "numpy")
    folder = Path(os.environ["CRL_DATA"]).resolve() / "ml-100k"
    result = measure(args, folder)
    common.print_table([{k: v for k, v in row.items() if k != "runs"} for row in result["rows"]])
    common.write_json(
        args.out,
        {
            "benchmark": "time_to_quality",
            "data": "ml-100k",
            "target": {f"ndcg@{K}": args.target},
            "machine": machine,
            "versions": versions,
            **result,
        },
    )


if __name__ == "__main__":
    main()
