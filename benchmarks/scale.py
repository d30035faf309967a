"""Stages of a pipeline from files to recommendations, with tens of millions of interactions.

The data are simulated in shards of Parquet: 20 million interactions of 500,000 users with 100,000
items unless flags set other sizes. Our stages: write the shards, load them, split off a test part,
train matrix factorisation of width 64 for two epochs (BPR, one unseen negative, batches of 65,536,
with Adam and with SGD), evaluate 20,000 users on all items, and recommend 20 items to every user.

PyTorch trains with the same batches (Adam: dense and fused, or ``sparse=True`` with ``SparseAdam``,
whichever is faster; its negatives are drawn for an epoch at once and are not checked), and
evaluates and recommends by blocks of users with ``topk``. ``implicit`` has its own BPR (SGD with
one interaction per step), evaluation and ``recommend``. The recommenders receive our tables, so
that all of them rank the same scores, and their NDCG@20 must agree with ours.

Every stage has a separate process, whose peak memory is reported with the seconds; the seconds
exclude the start of Python and reading the stage's input, and compilation is reported separately.

    python -m benchmarks.scale --folder /tmp/scale --out benchmarks/results/scale.csv
"""

import pickle
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ._processes import in_process, memory_mb
from ._report import CORES, Report, Row, count, one_line_errors, parser, timed

DIM, BATCH, LEARNING_RATE, SGD_RATE, WEIGHT_DECAY, K = 64, 65_536, 1e-3, 0.05, 1e-6, 20
EPOCHS = 2
MAX_DIFFERENCE = 1e-5
"""Largest permitted difference of others' NDCG@20 from ours, which ranks the same scores."""


def make_row(seconds: float, **columns: Any) -> Row:
    """Returns seconds, and peak gigabytes of this process."""
    return {"seconds": seconds, "gigabytes": memory_mb() / 1e3, **columns}


def save(path: Path, content: Any) -> None:
    """Saves interactions or tables for the stages that follow."""
    with path.open("wb") as file:
        pickle.dump(content, file)


def load_saved(path: Path) -> Any:
    """Returns what an earlier stage saved."""
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - written by this benchmark


def simulate(folder: Path, sizes: Namespace) -> Row:
    """Writes the shards."""
    from crl_jax import data

    write = partial(
        data.simulate_shards, folder / "shards", n_users=sizes.users, n_items=sizes.items,
        n_interactions=sizes.interactions, n_shards=sizes.shards,
    )  # fmt: skip
    return make_row(timed(write).seconds)


def load_csv(folder: Path, _: Namespace) -> Row:
    """Reads users and items from one CSV file."""
    import polars as pl

    from crl_jax import data

    path = folder / "log.csv"
    pl.scan_parquet(folder / "shards").select("user", "item").sink_csv(path)
    before = memory_mb() / 1e3
    seconds = timed(data.read, path).seconds
    path.unlink()
    return make_row(seconds, gigabytes_before=before)


def load(folder: Path, _: Namespace) -> Row:
    """Reads the shards, and saves the interactions for the other stages."""
    from crl_jax import data

    reading = timed(data.read, sorted((folder / "shards").iterdir()))
    log = reading.value
    row = make_row(
        reading.seconds, n_interactions=len(log), n_users=log.n_users, n_items=log.n_items
    )
    ids = np.arange(log.n_users), np.arange(log.n_items)  # lists are compared by index
    save(folder / "log.pkl", data.Interactions(log.indptr, log.items, *ids))
    return row


def split(folder: Path, _: Namespace) -> Row:
    """Splits off a twentieth of the interactions as the test part."""
    from crl_jax import data

    log = load_saved(folder / "log.pkl")
    splitting = timed(partial(data.split_by_ratio, log, test=0.05, seed=0))
    row = make_row(splitting.seconds)
    save(folder / "split.pkl", dict(splitting.value.parts()))
    return row


def train(folder: Path, _: Namespace) -> Row:
    """Trains with Adam, and saves the tables."""
    from crl_jax import train as engine

    seen = load_saved(folder / "split.pkl")["train"]
    by_rows = engine.prefer_row_updates(seen.n_users + seen.n_items, 3 * BATCH, "cpu")
    kind = engine.RowOptimizer if by_rows else engine.Optimizer
    optimizer = kind(LEARNING_RATE, WEIGHT_DECAY)
    tables, row = _fit(seen, optimizer, "by rows" if by_rows else "dense")
    save(folder / "tables.pkl", {name: np.asarray(x) for name, x in tables._asdict().items()})
    return row


def train_sgd(folder: Path, _: Namespace) -> Row:
    """Trains with SGD on the rows of a batch."""
    from crl_jax import train as engine

    optimizer = engine.RowOptimizer(SGD_RATE, WEIGHT_DECAY, rule=engine.rows.sgd)
    return _fit(load_saved(folder / "split.pkl")["train"], optimizer, "by rows")[1]


def _fit(seen: Any, optimizer: Any, way: str) -> tuple[Any, Row]:
    from crl_jax import losses, models, tasks
    from crl_jax import train as engine
    from experiments._compiler import tune_compiler

    tune_compiler()
    ends = []
    fit = timed(
        partial(
            tasks.fit_ranking,
            seen,
            loss=losses.bpr,
            encoder=models.MatrixFactorization(seen.n_users, seen.n_items, DIM),
            optimizer=optimizer,
            config=engine.TrainConfig(BATCH),
            options=tasks.RankingOptions(l2_target="rows"),
            epochs=EPOCHS,
            hooks=[engine.Progress(lambda _: ends.append(time.perf_counter()))],
        )
    )
    return fit.value.tables(), make_row(ends[-1] - ends[-2], fit_seconds=fit.seconds, way=way)


def evaluate(folder: Path, sizes: Namespace) -> Row:
    """Ranks all items for some users of the test part."""
    import jax
    import jax.numpy as jnp

    from crl_jax import metrics, models

    parts, tables = load_saved(folder / "split.pkl"), load_saved(folder / "tables.pkl")
    tables = models.Tables(**jax.tree.map(jnp.asarray, tables))
    test = parts["test"].select(_test_user_mask(parts["test"], sizes)[parts["test"].users])
    layout = timed(metrics.eval_layout, parts["train"], test)

    def run() -> Any:
        return jax.block_until_ready(
            metrics.evaluate(models.inner_scores, tables, layout.value, ks=(K,), auc=False)
        )

    first, second = timed(run), timed(run)
    return make_row(
        layout.seconds + second.seconds, plan_seconds=layout.seconds, first_seconds=first.seconds,
        second_seconds=second.seconds, ndcg=float(second.value[f"ndcg@{K}"].mean()),
        users=len(layout.value.users),
    )  # fmt: skip


def recommend(folder: Path, _: Namespace) -> Row:
    """Computes the top-k items of every user, excluding training items."""
    from crl_jax import serving

    seen, tables = load_saved(folder / "split.pkl")["train"], load_saved(folder / "tables.pkl")

    def lists() -> np.ndarray:
        recommender = serving.Recommender.from_tables(tables, seen)
        return recommender.recommend(np.arange(seen.n_users), K).items

    return _time_recommendations(lists, seen)


def _time_recommendations(lists: Callable[[], np.ndarray], seen: Any) -> Row:
    """Times the lists; raises SystemExit if one is short or contains a training item."""
    seconds, _, items = timed(lists)
    pairs = np.arange(len(items))[:, None] * seen.n_items + items
    seen_pairs = seen.users.astype(np.int64) * seen.n_items + seen.items
    positions = np.minimum(np.searchsorted(seen_pairs, pairs), len(seen_pairs) - 1)
    if items.shape != (seen.n_users, K) or np.any(seen_pairs[positions] == pairs):
        raise SystemExit("a list of recommendations is short or has training items")
    return make_row(seconds, users=seen.n_users)


def torch_train(folder: Path, _: Namespace) -> Row:
    """Trains an epoch of the same model with Adam, by the faster of two implementations."""
    return _torch_fit(folder, {"dense": "Adam", "by rows": "SparseAdam"}, LEARNING_RATE)


def torch_train_sgd(folder: Path, _: Namespace) -> Row:
    """Trains an epoch with SGD on the rows of a batch."""
    return _torch_fit(folder, {"by rows": "SGD"}, SGD_RATE)


def _torch_fit(folder: Path, ways: dict[str, str], rate: float) -> Row:
    import torch
    from torch import nn

    torch.set_num_threads(CORES)
    seen = load_saved(folder / "split.pkl")["train"]
    users, items = (torch.from_numpy(np.array(x)).long() for x in (seen.users, seen.items))

    def epoch(tables: Any, optimizer: Any) -> None:
        order = torch.randperm(len(users))
        negatives = torch.randint(seen.n_items, (len(users),))
        for batch in order.split(BATCH):
            user = tables[0](users[batch])
            pos, neg = tables[1](items[batch]), tables[1](negatives[batch])
            loss = nn.functional.softplus((user * (neg - pos)).sum(-1)).mean()
            loss = loss + WEIGHT_DECAY * sum((x**2).sum() for x in (user, pos, neg)) / len(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    seconds_by_way = {}
    for way, name in ways.items():
        torch.manual_seed(0)
        sparse = way == "by rows"
        tables = [nn.Embedding(n, DIM, sparse=sparse) for n in (seen.n_users, seen.n_items)]
        for table in tables:
            nn.init.normal_(table.weight, std=0.1)
        kind: Any = getattr(torch.optim, name)
        fused = {} if sparse else {"fused": True}
        optimizer = kind([table.weight for table in tables], lr=rate, **fused)
        seconds_by_way[way] = timed(epoch, tables, optimizer).seconds
    way = min(seconds_by_way, key=lambda name: seconds_by_way[name])
    way_columns = {
        f"{name.replace(' ', '_')}_seconds": seconds for name, seconds in seconds_by_way.items()
    }
    return make_row(seconds_by_way[way], way=way, **way_columns)


def torch_evaluate(folder: Path, sizes: Namespace) -> Row:
    """Computes NDCG of the same users in blocks."""
    import torch

    parts = load_saved(folder / "split.pkl")
    seen, test = parts["train"], parts["test"]
    chosen = np.flatnonzero(_test_user_mask(test, sizes) & (test.degrees > 0))
    discounts = 1 / np.log2(np.arange(2, K + 2))

    def ndcg() -> float:
        total = 0.0
        for users, top in _torch_lists(folder, seen, chosen):
            width = int(test.degrees[users].max())
            relevant_items = np.full((len(users), width), -1)
            for row, user in enumerate(users):
                relevant = test.items[test.indptr[user] : test.indptr[user + 1]]
                relevant_items[row, : len(relevant)] = relevant
            hits = (torch.from_numpy(relevant_items)[:, None, :] == top[:, :, None]).any(-1).numpy()
            ideal = np.cumsum(discounts)[np.minimum(test.degrees[users], K) - 1]
            total += float(np.sum(hits @ discounts / ideal))
        return total / len(chosen)

    seconds, _, value = timed(ndcg)
    return make_row(seconds, ndcg=value, users=len(chosen))


def torch_recommend(folder: Path, _: Namespace) -> Row:
    """Computes the top-k items of every user in blocks."""
    seen = load_saved(folder / "split.pkl")["train"]
    blocks = partial(_torch_lists, folder, seen, np.arange(seen.n_users))
    return _time_recommendations(lambda: np.concatenate([top.numpy() for _, top in blocks()]), seen)


def _torch_lists(folder: Path, seen: Any, users: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
    """Yields blocks of users and their top-k items, excluding training items."""
    import torch

    torch.set_num_threads(CORES)
    tables = {name: torch.from_numpy(x) for name, x in load_saved(folder / "tables.pkl").items()}
    for block in np.split(users, range(256, len(users), 256)):
        scores = tables["users"][torch.from_numpy(block)] @ tables["items"].T
        starts, degrees = seen.indptr[block], seen.degrees[block]
        rows = np.repeat(np.arange(len(block)), degrees)
        positions = np.arange(len(rows)) + np.repeat(starts - np.cumsum(degrees) + degrees, degrees)
        seen_items = seen.items[positions].astype(np.int64)
        scores[torch.from_numpy(rows), torch.from_numpy(seen_items)] = -torch.inf
        yield block, scores.topk(K).indices


def implicit_train_sgd(folder: Path, _: Namespace) -> Row:
    """Trains an epoch with implicit's own BPR."""
    from implicit.bpr import BayesianPersonalizedRanking

    seen = _matrix(load_saved(folder / "split.pkl")["train"])
    seconds, extra_epochs = [], 4
    for epochs in (1, 1 + extra_epochs):  # the difference excludes setup
        model = BayesianPersonalizedRanking(
            factors=DIM - 1, iterations=epochs, num_threads=CORES, random_state=0
        )
        seconds.append(timed(partial(model.fit, seen, show_progress=False)).seconds)
    return make_row((seconds[1] - seconds[0]) / extra_epochs, way=f"{CORES} threads")


def implicit_evaluate(folder: Path, sizes: Namespace) -> Row:
    """Computes implicit's metrics of the same users, passed as separate matrices."""
    from implicit.evaluation import ranking_metrics_at_k

    parts = load_saved(folder / "split.pkl")
    seen, test = parts["train"], parts["test"]
    chosen = np.flatnonzero(_test_user_mask(test, sizes) & (test.degrees > 0))
    model = _implicit(folder, chosen)
    run = partial(ranking_metrics_at_k, K=K, show_progress=False, num_threads=CORES)
    seconds, _, metrics = timed(run, model, _matrix(seen)[chosen], _matrix(test)[chosen])
    return make_row(seconds, ndcg=float(metrics["ndcg"]), users=len(chosen))


def implicit_recommend(folder: Path, _: Namespace) -> Row:
    """Computes the top-k items of every user."""
    seen = load_saved(folder / "split.pkl")["train"]
    matrix, model = _matrix(seen), _implicit(folder, slice(None))

    def lists() -> np.ndarray:
        blocks = np.split(np.arange(seen.n_users), range(4096, seen.n_users, 4096))
        return np.concatenate([model.recommend(block, matrix[block], N=K)[0] for block in blocks])

    return _time_recommendations(lists, seen)


def _implicit(folder: Path, users: Any) -> Any:
    from implicit.bpr import BayesianPersonalizedRanking

    tables = load_saved(folder / "tables.pkl")
    model: Any = BayesianPersonalizedRanking(num_threads=CORES)
    model.user_factors, model.item_factors = tables["users"][users], tables["items"]
    return model


def _matrix(log: Any) -> Any:
    from scipy import sparse

    values = np.ones(len(log), np.float32)
    matrix = values, log.items.copy(), log.indptr.copy()
    return sparse.csr_matrix(matrix, (log.n_users, log.n_items))


def _test_user_mask(test: Any, sizes: Namespace) -> np.ndarray:
    """Returns the mask of the users to evaluate."""
    mask, n = np.zeros(test.n_users, bool), min(sizes.tested, test.n_users)
    mask[np.random.default_rng(0).choice(test.n_users, n, replace=False)] = True
    return mask


STAGES: dict[str, dict[str, Callable[[Path, Namespace], Row]]] = {
    "crl_jax": {
        "simulate": simulate, "load": load, "load CSV": load_csv, "split": split, "train": train,
        "train SGD": train_sgd, "evaluate": evaluate, "recommend": recommend,
    },
    "PyTorch": {
        "train": torch_train, "train SGD": torch_train_sgd, "evaluate": torch_evaluate,
        "recommend": torch_recommend,
    },
    "implicit": {
        "train SGD": implicit_train_sgd, "evaluate": implicit_evaluate,
        "recommend": implicit_recommend,
    },
}  # fmt: skip


def check(rows: list[Row]) -> None:
    """Raises SystemExit if libraries disagree with crl_jax on the NDCG of the same scores."""
    ndcg_by_name = {row["name"]: row["ndcg"] for row in rows if "ndcg" in row}
    if "crl_jax" not in ndcg_by_name:
        return
    for name, value in ndcg_by_name.items():
        if abs(value - ndcg_by_name["crl_jax"]) > MAX_DIFFERENCE:
            raise SystemExit(f"NDCG@{K} of {name} is {value}, of crl_jax {ndcg_by_name['crl_jax']}")


@one_line_errors
def main() -> None:
    """Runs the stages, each in a separate process."""
    arguments = parser(__doc__)
    arguments.add_argument("--users", type=count, default=500_000, help="number of users")
    arguments.add_argument("--items", type=count, default=100_000, help="number of items")
    arguments.add_argument(
        "--interactions", type=count, default=20_000_000, help="number of simulated interactions"
    )
    arguments.add_argument("--tested", type=count, default=20_000, help="number of evaluated users")
    arguments.add_argument("--shards", type=count, default=10, help="number of Parquet files")
    arguments.add_argument("--folder", type=Path, required=True, help="folder for the data")
    arguments.add_argument(
        "--only", nargs="+", choices=STAGES, default=[*STAGES], help="libraries, by default all"
    )
    args = arguments.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    packages = {"PyTorch": "torch", "implicit": "implicit"}
    report = Report(
        args.out, "jax", "jaxlib", "optax", "numpy", "polars",
        *(packages[name] for name in args.only if name in packages),
        users=args.users, items=args.items, interactions=args.interactions, tested=args.tested,
        dim=DIM, batch=BATCH, k=K,
    )  # fmt: skip
    for stage in STAGES["crl_jax"]:
        for name in args.only:
            if stage in STAGES[name]:
                row = in_process(STAGES[name][stage], args.folder, args)
                report.add([{"name": name, "stage": stage, **row}])
    check(report.rows[""])


if __name__ == "__main__":
    main()
