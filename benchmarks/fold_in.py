"""Fold-in of users unseen in training: comparison of methods that compute their embeddings.

From MovieLens 100K, 200 users are held out from the training of matrix factorisation of width 32.
Each of them provides 80 % of their items, and the recommended lists are evaluated by NDCG@20 on
the other 20 %. The upper reference is the same model trained with these users and the items that
they provide. The tables are trained with BPR for inner products and with InfoNCE for cosines. All
methods are evaluated on several draws of users.

* ``popularity``: the number of users who interacted with an item;
* ``mean``: the mean of the embeddings of the given items;
* ``regression``: that mean, mapped to user embeddings by least squares over the trained ones;
* ``pairwise``: minimises BPR over all pairs of a given item and another one, by Newton's method;
* ``weighted``: least squares on 0 and 1 with less weight on the items not given, one system of
  equations per user, as in alternating least squares;
* ``ridge=…``: least squares with equal weights and an intercept, one matrix for all users, as
  implemented by ``Recommender.fold_in``; ``fold_in`` is the same at its default.

The defaults were chosen on other draws than those used here, on MovieLens 1M, and on LightGCN.

    python -m benchmarks.fold_in --data ml-100k --out benchmarks/results/fold_in.csv
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from crl_jax import data, losses, metrics, models, tasks, train
from crl_jax.serving import Recommender
from experiments._compiler import tune_compiler

from ._report import Report, count, one_line_errors, parser

K, HELD_OUT, GIVEN_FRACTION, DIM = 20, 200, 0.8, 32
FIRST_DRAW = 10  # the defaults were chosen on draws 0 to 2
RIDGES = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
Similarity = Literal["inner", "cosine"]
SIMILARITIES: tuple[Similarity, ...] = ("inner", "cosine")


def train_tables(
    log: data.Interactions, similarity: Similarity, seed: int
) -> dict[str, np.ndarray]:
    """Trains a model on ``log`` and returns its tables."""
    fit = partial(
        tasks.fit_ranking,
        log,
        encoder=models.MatrixFactorization(log.n_users, log.n_items, DIM, similarity=similarity),
        config=train.TrainConfig(1024),
        seeds=seed,
    )
    if similarity == "inner":
        fitted = fit(
            loss=losses.bpr,
            optimizer=train.Optimizer(1e-3, 3e-5),
            epochs=100,
            stopping=tasks.Stopping(eval_every=100),
        )
    else:
        fitted = fit(
            loss=losses.info_nce, hyperparams={"temperature": 0.2}, n_neg=16,
            optimizer=train.Optimizer(1e-3, 1e-7), epochs=60,
            stopping=tasks.Stopping(eval_every=60),
        )  # fmt: skip
    return {name: np.asarray(table) for name, table in fitted.get_params().items()}


def hold_out(log: data.Interactions, draw: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the held-out users, and masks of their interactions for fold-in and for testing."""
    rng = np.random.default_rng(draw)
    held_out = np.sort(rng.choice(np.flatnonzero(log.degrees >= 10), HELD_OUT, replace=False))
    is_held_out, test = np.isin(log.users, held_out), np.zeros(len(log), bool)
    for user in held_out:
        user_rows = np.flatnonzero(log.users == user)
        test[rng.permutation(user_rows)[: round((1 - GIVEN_FRACTION) * len(user_rows))]] = True
    return held_out, is_held_out & ~test, test


def to_dense(log: data.Interactions, users: np.ndarray) -> np.ndarray:
    """Returns the users' dense rows of 0 and 1."""
    rows = np.zeros((log.n_users, log.n_items))
    rows[log.users, log.items] = 1
    return rows[users]


def regression(items: np.ndarray, users: np.ndarray, known: np.ndarray, x: np.ndarray) -> Any:
    """Maps item sums over √(number) to user embeddings, by least squares over the trained users."""

    def sums(rows: np.ndarray) -> np.ndarray:
        return rows @ items / np.sqrt(rows.sum(axis=1, keepdims=True))

    return sums(x) @ np.linalg.lstsq(sums(known), users)[0]


def pairwise(items: np.ndarray, x: np.ndarray, l2: float = 0.1) -> np.ndarray:
    """Computes embeddings that minimise Σ over given items of the mean BPR over the others."""
    vectors = np.zeros((len(x), items.shape[1]))
    for user, row in enumerate(x):
        pos, neg, w = items[row > 0], items[row == 0], vectors[user]
        for _ in range(12):
            g = 1 / (1 + np.exp((pos @ w)[:, None] - neg @ w))
            h = g * (1 - g)
            gradient = (neg.T @ g.sum(0) - pos.T @ g.sum(1)) / len(neg) + l2 * w
            cross = pos.T @ h @ neg
            hessian = (pos.T * h.sum(1)) @ pos + (neg.T * h.sum(0)) @ neg - cross - cross.T
            w = w - np.linalg.solve(hessian / len(neg) + l2 * np.eye(len(w)), gradient)
        vectors[user] = w
    return vectors


def weighted_least_squares(
    items: np.ndarray, x: np.ndarray, weight: float, ridge: float
) -> np.ndarray:
    """Least squares with ``weight`` on items not given, and the intercept for equal weights."""
    centred = items - items.mean(axis=0)
    gram = centred.T @ centred
    penalty = ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
    given_vectors = (centred[row > 0] for row in x)
    return np.stack([
        np.linalg.solve(weight * gram + (1 - weight) * h.T @ h + penalty, h.sum(axis=0))
        for h in given_vectors
    ])  # fmt: skip


def measure(log: data.Interactions, similarity: Similarity, draw: int) -> dict[str, float]:
    """Computes NDCG@20 of every method on one draw."""
    held_out, given, test = hold_out(log, draw)
    train_log = log.select(~np.isin(log.users, held_out))
    train_users = np.setdiff1d(np.arange(log.n_users), held_out)
    x, wanted = to_dense(log.select(given), held_out), to_dense(log.select(test), held_out)

    n_wanted = jnp.asarray(wanted.sum(axis=1), jnp.int32)

    def ndcg(lists: np.ndarray) -> float:
        hits = np.take_along_axis(wanted, lists, 1)
        return float(np.mean(metrics.ndcg_at(jnp.asarray(hits > 0), n_wanted, k=K)))

    def ndcg_of_scores(scores: np.ndarray) -> float:
        return ndcg(np.argsort(-np.where(x > 0, -np.inf, scores), axis=1, kind="stable")[:, :K])

    model = Recommender.from_tables(
        train_tables(train_log, similarity, draw), train_log, similarity=similarity
    )
    upper_reference = Recommender.from_tables(
        train_tables(log.select(~test), similarity, draw), log.select(~test), similarity=similarity
    )
    items = model.item_vectors.astype(np.float64)
    users = model.user_vectors[train_users].astype(np.float64)
    vectors: dict[str, Callable[[], np.ndarray]] = {
        "mean": lambda: x @ items,
        "regression": lambda: regression(items, users, to_dense(train_log, train_users), x),
        "weighted": lambda: weighted_least_squares(items, x, 0.1, 0.1),
    }
    if similarity == "inner":
        vectors["pairwise"] = lambda: pairwise(items, x)
    baskets = [log.item_ids[row > 0] for row in x]

    def fold_in_ndcg(ridge: float | None = None) -> float:
        recommended = model.recommend_new(baskets, K, ridge=ridge).items
        return ndcg(np.searchsorted(log.item_ids, recommended))

    upper_items = upper_reference.recommend(log.user_ids[held_out], K).items
    return {
        "popularity": ndcg_of_scores(np.broadcast_to(train_log.item_counts, x.shape)),
        **{name: ndcg_of_scores(compute() @ items.T) for name, compute in vectors.items()},
        **{f"ridge={ridge:g}": fold_in_ndcg(ridge) for ridge in RIDGES},
        "fold_in": fold_in_ndcg(),
        "trained": ndcg(np.searchsorted(log.item_ids, upper_items)),
    }


@one_line_errors
def main() -> None:
    """Measures all methods on each draw of users."""
    tune_compiler()
    arguments = parser(__doc__)
    arguments.add_argument(
        "--data", type=Path, required=True, help="folder with train.csv and test.csv"
    )
    arguments.add_argument("--draws", type=count, default=3, help="samples of held-out users")
    args = arguments.parse_args()
    split = data.read_split(args.data / "train.csv", args.data / "test.csv")
    log = data.union(split.train, split.test)
    packages = "crl_jax", "jax", "jaxlib", "flax", "optax", "numpy"
    report = Report(args.out, *packages, held_out=HELD_OUT, given=GIVEN_FRACTION)
    for similarity in SIMILARITIES:
        draws = range(FIRST_DRAW, FIRST_DRAW + args.draws)
        scores = {draw: measure(log, similarity, draw) for draw in draws}
        rows = [
            {"similarity": similarity, "method": method, "draw": draw, f"ndcg@{K}": value}
            for draw, values in scores.items()
            for method, value in values.items()
        ]
        report.add(rows)


if __name__ == "__main__":
    main()
