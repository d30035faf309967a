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

    python -m benchmarks.time_to_quality --out benchmarks/results/time_to_quality.csv
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ._processes import in_process
from ._report import Report, Row, alternate, count, one_line_errors, parser

DIM, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY, K, SEED = 32, 1024, 1e-3, 1e-5, 20, 0
STRIDE = 5
IMPLICIT_GRID = [(rate, l2) for rate in (0.003, 0.01, 0.03) for l2 in (1e-4, 1e-3, 1e-2)]
Mark = Callable[[str], None]
Options = tuple[float, ...]


def run_jax(folder: Path, epochs: int, stride: int, mark: Mark) -> list[float]:
    """Runs the script that a user of ``crl_jax`` writes."""
    from crl_jax import data, losses, metrics, models, tasks, train
    from experiments._compiler import tune_compiler

    tune_compiler()
    mark("import")
    split = data.read_split(folder / "train.csv", folder / "test.csv")
    mark("load")
    fitted = tasks.fit_ranking(
        split.train, split.test if stride < epochs else None, loss=losses.bpr,
        optimizer=train.Optimizer(LEARNING_RATE, WEIGHT_DECAY),
        config=train.TrainConfig(BATCH_SIZE), epochs=epochs, seeds=SEED,
        stopping=tasks.Stopping(patience=epochs, eval_every=stride, k=K),
    )  # fmt: skip
    tables = fitted.tables()
    mark("train")
    if stride < epochs:
        return [entry[f"valid_ndcg@{K}"][0] for entry in fitted.history]
    layout = metrics.eval_layout(split.train, split.test)
    values = metrics.evaluate(models.inner_scores, tables, layout, ks=(K,), auc=False)
    curve = [metrics.summarize(values)[f"ndcg@{K}"]]
    mark("evaluate")
    return curve


def run_torch(folder: Path, epochs: int, stride: int, mark: Mark) -> list[float]:
    """Runs the same script in PyTorch, with the gather and Adam that win the training benchmark."""
    from . import _torch_mf as mf

    mark("import")
    train, test, shape = read_pairs(folder)
    problem = mf.Problem.from_pairs(train[:, 0], train[:, 1], *shape)
    mark("load")
    trainer = mf.Trainer(
        problem, mf.make_batch_loss(mf.bpr, "index_select", 0), n_neg=1, n_pos=0, adam="fused",
        dim=DIM, learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, batch_size=BATCH_SIZE,
        seed=SEED,
    )  # fmt: skip
    curve = []
    for epoch in range(stride, epochs + 1, stride):
        for _ in range(stride):
            trainer.epoch()
        if epoch == epochs:
            mark("train")
        curve.append(ndcg(trainer.scores(), train, test))
    mark("evaluate")
    return curve


def run_implicit(
    folder: Path, epochs: int, stride: int, mark: Mark, rate: float, l2: float
) -> list[float]:
    """Runs the same script in ``implicit``, on all threads."""
    import scipy.sparse
    from implicit.bpr import BayesianPersonalizedRanking

    mark("import")
    train, test, shape = read_pairs(folder)
    matrix = scipy.sparse.csr_matrix(([1.0] * len(train), tuple(train.T)), shape, "float32")
    mark("load")
    model = BayesianPersonalizedRanking(
        factors=DIM, learning_rate=rate, regularization=l2, iterations=epochs, random_state=SEED
    )
    curve = []

    def on_epoch(epoch: int, *_: Any) -> None:  # counted from 0
        if (epoch + 1) % stride == 0 and epoch + 1 < epochs:
            curve.append(ndcg(model.user_factors @ model.item_factors.T, train, test))

    callback_arguments = {"callback": on_epoch} if stride < epochs else {}
    model.fit(matrix, show_progress=False, **callback_arguments)
    mark("train")
    curve.append(ndcg(model.user_factors @ model.item_factors.T, train, test))
    mark("evaluate")
    return curve


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
    has_test = counts > 0
    return float(
        np.mean(gains[has_test] / np.cumsum(discounts)[np.minimum(counts[has_test], K) - 1])
    )


RUNS = {"crl_jax": run_jax, "torch": run_torch, "implicit": run_implicit}


def run(library: str, folder: Path, epochs: int, options: Options, started: float) -> Row:
    """Executes a user's script in this process; returns NDCG and the seconds of each phase."""
    seconds: Row = {}
    last = started

    def mark(phase: str) -> None:
        # The parent's clock: the first phase begins when the parent starts this process.
        nonlocal last
        now = time.time()
        seconds[phase], last = now - last, now

    (ndcg,) = RUNS[library](folder, epochs, epochs, mark, *options)
    return {"seconds": last - started, **seconds, "ndcg": ndcg}


def start(library: str, folder: Path, epochs: int, options: Options, cache: str | None) -> Row:
    """Runs the script in a new process, optionally with a persistent compilation cache."""
    env = {} if cache is None else {
        "JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }  # fmt: skip
    return in_process(run, library, folder, epochs, options, time.time(), env=env)


def epochs_needed(curve: list[float], target: float) -> tuple[int, bool]:
    """Returns the epochs until ``curve`` first reaches the target, else until its best."""
    for index, value in enumerate(curve):
        if value >= target:
            return (index + 1) * STRIDE, True
    return (curve.index(max(curve)) + 1) * STRIDE, False


def no_mark(phase: str) -> None:
    """Ignores the phases of a run that is not timed."""


def probe(folder: Path, max_epochs: int, target: float) -> list[Row]:
    """Returns the best NDCG of each library and options, and the epochs that it needs."""
    rows = []
    for library in RUNS:
        for options in IMPLICIT_GRID if library == "implicit" else [()]:
            curve = in_process(RUNS[library], folder, max_epochs, STRIDE, no_mark, *options)
            epochs, reached = epochs_needed(curve, target)
            rate, l2 = options or (None, None)
            rows.append(
                {
                    "name": library,
                    "learning_rate": rate,
                    "regularization": l2,
                    "best_ndcg": max(curve),
                    "epochs": epochs,
                    "reached": reached,
                }
            )
    return rows


def measure(folder: Path, probes: list[Row], target: float, repeats: int) -> list[Row]:
    """Runs all libraries alternately, each with the epochs that it needs."""
    best = {}
    for row in sorted(probes, key=lambda r: (-min(r["best_ndcg"], target), r["epochs"])):
        best.setdefault(row["name"], row)
    with tempfile.TemporaryDirectory() as cache:
        cases = {
            "crl_jax": ("crl_jax", None),
            "crl_jax, cached": ("crl_jax", cache),
            "torch": ("torch", None),
            "implicit": ("implicit", None),
        }
        calls = {}
        for case, (library, cache_folder) in cases.items():
            row = best[library]
            options = (row["learning_rate"], row["regularization"]) if library == "implicit" else ()
            calls[case] = partial(start, library, folder, row["epochs"], options, cache_folder)
        calls["crl_jax, cached"]()  # fills the cache
        rows = []
        for case, runs in alternate(calls, repeats).items():
            medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            epochs = best[cases[case][0]]["epochs"]
            reached = medians["ndcg"] >= target
            rows.append({"name": case, "epochs": epochs, **medians, "reached": reached})
    return rows


@one_line_errors
def main() -> None:
    """Determines the epochs that each library needs, and times its script."""
    arguments = parser(__doc__)
    arguments.add_argument("--target", type=float, default=0.40, help=f"NDCG@{K} to reach")
    arguments.add_argument(
        "--max-epochs", type=int, default=150, help="epochs of the runs that determine the epochs"
    )
    arguments.add_argument("--repeats", type=count, default=3, help="timed processes per library")
    args = arguments.parse_args()
    if "CRL_DATA" not in os.environ:
        arguments.error("needs MovieLens 100K: set CRL_DATA to the folder that has ml-100k/")
    if args.max_epochs < STRIDE:
        arguments.error(f"--max-epochs must be at least {STRIDE}, got {args.max_epochs}")
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    report = Report(args.out, "jax", "jaxlib", "torch", "implicit", "numpy", target=args.target)
    folder = Path(os.environ["CRL_DATA"]).resolve() / "ml-100k"
    probes = probe(folder, args.max_epochs // STRIDE * STRIDE, args.target)
    report.add(probes, "epochs")
    report.add(measure(folder, probes, args.target, args.repeats))


if __name__ == "__main__":
    main()
