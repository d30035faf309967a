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

import resource
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ._processes import in_process, memory_mb
from ._report import CORES, Report, Row, count, parser

DIM, BATCH, LEARNING_RATE, SGD_RATE, WEIGHT_DECAY, K = 64, 65_536, 1e-3, 0.05, 1e-6, 20
EPOCHS = 2
MOST = 1e-5
"""Largest permitted difference of others' NDCG@20 from ours, which ranks the same scores."""


class Clock:
    """Records the seconds of a stage's parts and its peak memory."""

    def __init__(self) -> None:
        self.figures: Row = {}

    @contextmanager
    def __call__(self, name: str = "seconds") -> Iterator[None]:
        """Times the body of the context."""
        started = time.perf_counter()
        yield
        self.figures[name] = time.perf_counter() - started

    def done(self, **more: Any) -> Row:
        """Returns the results, with peak gigabytes of this process and of its largest child."""
        child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        memory = {"gigabytes": memory_mb() / 1e3, "gigabytes_of_child": child}
        return {**self.figures, **memory, **more}


def simulate(folder: Path, sizes: Namespace) -> Row:
    """Writes the shards."""
    from crl_jax import data

    clock = Clock()
    with clock():
        data.simulate_shards(
            folder / "shards",
            n_users=sizes.users, n_items=sizes.items, n_interactions=sizes.interactions,
            n_shards=sizes.shards,
        )  # fmt: skip
    return clock.done()


def load_csv(folder: Path, _: Namespace) -> Row:
    """Reads users and items from one CSV file."""
    import polars as pl

    from crl_jax import data

    path = folder / "log.csv"
    pl.scan_parquet(folder / "shards").select("user", "item").sink_csv(path)
    before = memory_mb() / 1e3
    clock = Clock()
    with clock():
        data.read(path)
    path.unlink()
    return clock.done(gigabytes_before=before)


def load(folder: Path, _: Namespace) -> Row:
    """Reads the shards, and saves the interactions for the other stages."""
    from crl_jax import data

    clock = Clock()
    with clock():
        log = data.read(sorted((folder / "shards").iterdir()))
    figures = clock.done(n_interactions=len(log), n_users=log.n_users, n_items=log.n_items)
    figures["gigabytes"] += figures["gigabytes_of_child"]  # which decodes Parquet
    _keep(folder / "log.npz", log=log)
    return figures


def split(folder: Path, _: Namespace) -> Row:
    """Splits off a twentieth of the interactions as the test part."""
    from crl_jax import data

    log = _kept(folder / "log.npz")["log"]
    clock = Clock()
    with clock():
        parts = data.split_by_ratio(log, test=0.05, seed=0)
    figures = clock.done()
    _keep(folder / "split.npz", **dict(parts.parts()))
    return figures


def train(folder: Path, _: Namespace) -> Row:
    """Trains with Adam, and saves the tables."""
    from crl_jax import train as engine

    seen = _kept(folder / "split.npz")["train"]
    by_rows = engine.prefer_row_updates(seen.n_users + seen.n_items, 3 * BATCH)
    kind = engine.RowOptimizer if by_rows else engine.Optimizer
    optimizer = kind(LEARNING_RATE, WEIGHT_DECAY)
    tables, figures = _fit(seen, optimizer, "by rows" if by_rows else "dense")
    np.savez(folder / "tables.npz", users=tables.users, items=tables.items)
    return figures


def train_sgd(folder: Path, _: Namespace) -> Row:
    """Trains with SGD on the rows of a batch."""
    from crl_jax import train as engine

    optimizer = engine.RowOptimizer(SGD_RATE, WEIGHT_DECAY, rule=engine.rows.sgd)
    return _fit(_kept(folder / "split.npz")["train"], optimizer, "by rows")[1]


def _fit(seen: Any, optimizer: Any, way: str) -> tuple[Any, Row]:
    from crl_jax import losses, models, tasks
    from crl_jax import train as engine

    clock, ends = Clock(), []
    with clock("fit_seconds"):
        fitted = tasks.fit_ranking(
            seen,
            loss=losses.bpr,
            encoder=models.MatrixFactorization(seen.n_users, seen.n_items, DIM),
            optimizer=optimizer,
            config=engine.TrainConfig(BATCH),
            options=tasks.RankingOptions(l2_target="rows"),
            epochs=EPOCHS,
            hooks=[engine.Progress(lambda _: ends.append(time.perf_counter()))],
        )
    return fitted.tables(), clock.done(seconds=ends[-1] - ends[-2], way=way)


def evaluate(folder: Path, sizes: Namespace) -> Row:
    """Ranks all items for some users of the test part."""
    import jax
    import jax.numpy as jnp

    from crl_jax import metrics, models

    parts = _kept(folder / "split.npz")
    tables = models.Tables(**jax.tree.map(jnp.asarray, _tables(folder)))
    test = parts["test"]
    some = _some(test.n_users, sizes.tested)
    test = test.select(some[test.users])
    clock = Clock()
    with clock("plan_seconds"):
        plan = metrics.eval_layout(parts["train"], test)
    for name in ("first_seconds", "second_seconds"):
        with clock(name):
            found = jax.block_until_ready(
                metrics.evaluate(models.inner_scores, tables, plan, ks=(K,), auc=False)
            )
    seconds = clock.figures["plan_seconds"] + clock.figures["second_seconds"]
    ndcg = float(found[f"ndcg@{K}"].mean())
    return clock.done(seconds=seconds, ndcg=ndcg, users=len(plan.users))


def recommend(folder: Path, sizes: Namespace) -> Row:
    """Computes the top-k items of every user, excluding training items."""
    from crl_jax import serving

    seen = _kept(folder / "split.npz")["train"]
    tables = _tables(folder)
    clock = Clock()
    with clock():
        recommender = serving.Recommender.from_tables(tables, seen)
        lists = recommender.recommend(np.arange(seen.n_users), K)
    _check_lists(lists.items, seen)
    return clock.done(users=seen.n_users)


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
    seen = _kept(folder / "split.npz")["train"]
    users, items = (torch.from_numpy(np.array(x)).long() for x in (seen.users, seen.items))
    found = {}
    for way, name in ways.items():
        torch.manual_seed(0)
        tables = [
            nn.Embedding(n, DIM, sparse=way == "by rows") for n in (seen.n_users, seen.n_items)
        ]
        for table in tables:
            nn.init.normal_(table.weight, std=0.1)
        fused = {"fused": True} if way == "dense" else {}
        kind: Any = getattr(torch.optim, name)
        optimizer = kind([table.weight for table in tables], lr=rate, **fused)
        started = time.perf_counter()
        order = torch.randperm(len(users))
        negatives = torch.randint(seen.n_items, (len(users),))
        for at in order.split(BATCH):
            user = tables[0](users[at])
            pos, neg = tables[1](items[at]), tables[1](negatives[at])
            loss = nn.functional.softplus((user * (neg - pos)).sum(-1)).mean()
            loss = loss + WEIGHT_DECAY * sum((x**2).sum() for x in (user, pos, neg)) / len(at)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found[way] = time.perf_counter() - started
    way = min(found, key=lambda name: found[name])
    both = {f"{name.replace(' ', '_')}_seconds": seconds for name, seconds in found.items()}
    return Clock().done(seconds=found[way], way=way, **both)


def torch_evaluate(folder: Path, sizes: Namespace) -> Row:
    """Computes NDCG of the same users in blocks."""
    import torch

    parts = _kept(folder / "split.npz")
    seen, test = parts["train"], parts["test"]
    chosen = np.flatnonzero(_some(test.n_users, sizes.tested) & (test.degrees > 0))
    clock, total = Clock(), 0.0
    discounts = 1 / np.log2(np.arange(2, K + 2))
    with clock():
        for at, top in _torch_lists(folder, seen, chosen):
            width = int(test.degrees[at].max())
            wanted = np.full((len(at), width), -1)
            for row, user in enumerate(at):
                own = test.items[test.indptr[user] : test.indptr[user + 1]]
                wanted[row, : len(own)] = own
            hits = (torch.from_numpy(wanted)[:, None, :] == top[:, :, None]).any(-1).numpy()
            ideal = np.cumsum(discounts)[np.minimum(test.degrees[at], K) - 1]
            total += float(np.sum(hits @ discounts / ideal))
    return clock.done(ndcg=total / len(chosen), users=len(chosen))


def torch_recommend(folder: Path, sizes: Namespace) -> Row:
    """Computes the top-k items of every user in blocks."""
    seen = _kept(folder / "split.npz")["train"]
    clock = Clock()
    with clock():
        lists = [top.numpy() for _, top in _torch_lists(folder, seen, np.arange(seen.n_users))]
    _check_lists(np.concatenate(lists), seen)
    return clock.done(users=seen.n_users)


def _torch_lists(folder: Path, seen: Any, users: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
    """Yields blocks of users and their top-k items, excluding training items."""
    import torch

    torch.set_num_threads(CORES)
    tables = {name: torch.from_numpy(table) for name, table in _tables(folder).items()}
    for at in np.split(users, range(256, len(users), 256)):
        scores = tables["users"][torch.from_numpy(at)] @ tables["items"].T
        starts, degrees = seen.indptr[at], seen.degrees[at]
        rows = np.repeat(np.arange(len(at)), degrees)
        places = np.arange(len(rows)) + np.repeat(starts - np.cumsum(degrees) + degrees, degrees)
        taken = seen.items[places].astype(np.int64)
        scores[torch.from_numpy(rows), torch.from_numpy(taken)] = -torch.inf
        yield at, scores.topk(K).indices


def implicit_train_sgd(folder: Path, _: Namespace) -> Row:
    """Trains an epoch with implicit's own BPR."""
    from implicit.bpr import BayesianPersonalizedRanking

    seen = _matrix(_kept(folder / "split.npz")["train"])
    threads = CORES
    seconds, more = [], 4
    for epochs in (1, 1 + more):  # the difference excludes setup
        model = BayesianPersonalizedRanking(
            factors=DIM - 1, iterations=epochs, num_threads=threads, random_state=0
        )
        started = time.perf_counter()
        model.fit(seen, show_progress=False)
        seconds.append(time.perf_counter() - started)
    epoch = (seconds[1] - seconds[0]) / more
    return Clock().done(seconds=epoch, way=f"{threads} threads")


def implicit_evaluate(folder: Path, sizes: Namespace) -> Row:
    """Computes implicit's metrics of the same users, passed as separate matrices."""
    from implicit.evaluation import ranking_metrics_at_k

    parts = _kept(folder / "split.npz")
    test = parts["test"]
    chosen = np.flatnonzero(_some(test.n_users, sizes.tested) & (test.degrees > 0))
    model = _implicit(folder, chosen)
    clock = Clock()
    with clock():
        found = ranking_metrics_at_k(
            model, _matrix(parts["train"])[chosen], _matrix(test)[chosen], K=K,
            show_progress=False, num_threads=CORES,
        )  # fmt: skip
    return clock.done(ndcg=float(found["ndcg"]), users=len(chosen))


def implicit_recommend(folder: Path, sizes: Namespace) -> Row:
    """Computes the top-k items of every user."""
    seen = _kept(folder / "split.npz")["train"]
    matrix = _matrix(seen)
    model = _implicit(folder, slice(None))
    clock, lists = Clock(), []
    with clock():
        for at in np.split(np.arange(seen.n_users), range(4096, seen.n_users, 4096)):
            lists.append(model.recommend(at, matrix[at], N=K)[0])
    _check_lists(np.concatenate(lists), seen)
    return clock.done(users=seen.n_users)


def _implicit(folder: Path, users: Any) -> Any:
    from implicit.bpr import BayesianPersonalizedRanking

    tables = _tables(folder)
    model: Any = BayesianPersonalizedRanking(num_threads=CORES)
    model.user_factors, model.item_factors = tables["users"][users], tables["items"]
    return model


def _matrix(log: Any) -> Any:
    from scipy import sparse

    shape = log.n_users, log.n_items
    values = np.ones(len(log), np.float32)
    return sparse.csr_matrix((values, log.items.copy(), log.indptr.copy()), shape)


def _tables(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "tables.npz") as arrays:
        return dict(arrays)


def _some(n_users: int, count: int) -> np.ndarray:
    """Returns the mask of the users to evaluate."""
    mask = np.zeros(n_users, bool)
    mask[np.random.default_rng(0).choice(n_users, min(count, n_users), replace=False)] = True
    return mask


def _check_lists(items: np.ndarray, seen: Any) -> None:
    """Raises SystemExit if a list is short or contains a training item."""
    pairs = np.arange(len(items))[:, None] * seen.n_items + items
    known = seen.users.astype(np.int64) * seen.n_items + seen.items
    place = np.minimum(np.searchsorted(known, pairs), len(known) - 1)
    if items.shape != (seen.n_users, K) or np.any(known[place] == pairs):
        raise SystemExit("a list of recommendations is short or has items of training")


def _keep(path: Path, **logs: Any) -> None:
    """Saves interactions for other processes, without their ids."""
    arrays = {}
    for name, log in logs.items():
        arrays[f"{name}_indptr"], arrays[f"{name}_items"] = log.indptr, log.items
        arrays[f"{name}_shape"] = np.array([log.n_users, log.n_items])
    np.savez(path, **arrays)


def _kept(path: Path) -> dict[str, Any]:
    from crl_jax import data

    with np.load(path) as arrays:
        names = [name.removesuffix("_shape") for name in arrays if name.endswith("_shape")]
        return {
            name: data.Interactions(
                arrays[f"{name}_indptr"],
                arrays[f"{name}_items"],
                *(np.arange(n) for n in arrays[f"{name}_shape"]),
            )
            for name in names
        }


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
    """Raises SystemExit if libraries disagree on the NDCG of the same scores."""
    found = {row["name"]: row["ndcg"] for row in rows if "ndcg" in row}
    for name, value in found.items():
        if abs(value - found["crl_jax"]) > MOST:
            raise SystemExit(f"NDCG@{K} of {name} is {value}, of crl_jax {found['crl_jax']}")


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
                found = in_process(STAGES[name][stage], args.folder, args)
                report.add([{"name": name, "stage": stage, **found}])
    check(report.rows[""])


if __name__ == "__main__":
    main()
