"""Top-k lists for a million users, written by the ``topk`` command.

The model is synthetic: normally distributed embeddings of width 64 for 1,000,000 users and 100,000
items, and 20 known items per user. The command ``topk --all`` writes the top 20 of the other items
for every user to Parquet, in a separate process; its total seconds and peak memory are reported.
Some of the lists are compared with NumPy's.

    python -m benchmarks.topk --out benchmarks/results/topk.csv
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ._report import Report, count, one_line_errors, parser, timed

DIM, KNOWN, K, CHECKED = 64, 20, 20, 20


def make(folder: Path, n_users: int, n_items: int) -> None:
    """Creates a run directory with a model."""
    from crl_jax import data, models
    from experiments.recommend._config import Config
    from experiments.recommend._saved import Model, save_model

    rng = np.random.default_rng(0)
    vectors: Any = [rng.standard_normal((1, n, DIM), np.float32) for n in (n_users, n_items)]
    tables = models.Tables(*vectors)
    # One item from each of equally large parts of the catalogue: no user has duplicates.
    part = n_items // KNOWN
    items = rng.integers(0, part, (n_users, KNOWN)) + part * np.arange(KNOWN)
    users = np.repeat(np.arange(n_users), KNOWN)
    names = {"user_ids": np.arange(n_users), "item_ids": np.arange(n_items)}
    known = data.Interactions.from_arrays(users, items.ravel(), **names)
    test = known.select(np.zeros(len(known), bool))
    save_model(folder, Model(tables, known, test, ("train",)), Config())


def check(folder: Path, path: Path, n_users: int) -> None:
    """Compares some lists with NumPy's.

    Raises:
      SystemExit: If a list differs, or rows are missing.
    """
    import polars

    from crl_jax import models
    from experiments.recommend._saved import load_model

    model, lists = load_model(folder), polars.scan_parquet(path)
    if (rows := lists.select(polars.len()).collect().item()) != n_users * K:
        raise SystemExit(f"{path} has {rows} rows, not {n_users * K}.")
    tables = model.select_seed(0)
    assert isinstance(tables, models.Tables)
    users, items = (np.asarray(table, np.float64) for table in tables)
    for user in np.linspace(0, n_users - 1, CHECKED).astype(int):
        scores = items @ users[user]
        start, end = model.known.indptr[user : user + 2]
        scores[model.known.items[start:end]] = -np.inf
        user_rows = lists.filter(polars.col("user") == user).sort("rank").collect()
        if user_rows["item"].to_list() != np.argsort(-scores)[:K].tolist():
            raise SystemExit(f"the list of user {user} is not that of NumPy.")


@one_line_errors
def main() -> None:
    """Measures the command, and checks some lists."""
    arguments = parser(__doc__)
    arguments.add_argument("--users", type=count, default=1_000_000, help="number of users")
    arguments.add_argument("--items", type=count, default=100_000, help="number of items")
    args = arguments.parse_args()
    report = Report(
        args.out, "jax", "jaxlib", "numpy", "polars", users=args.users, items=args.items, dim=DIM,
        known=KNOWN, k=K,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        folder, path = Path(scratch, "run"), Path(scratch, "lists.parquet")
        make(folder, args.users, args.items)
        command = [sys.executable, "-m", "experiments.recommend", "topk", "--all", "--k", str(K)]
        command += ["--run", str(folder), "--out", str(path)]
        seconds = timed(lambda: subprocess.run(command, check=True)).seconds
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        report.add([{"seconds": seconds, "peak_gb": peak, "file_mb": path.stat().st_size / 1e6}])
        check(folder, path, args.users)


if __name__ == "__main__":
    main()
