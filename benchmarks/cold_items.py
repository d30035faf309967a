"""Cold items: ranking of items that are held out of training, by their side features.

From MovieLens 1M, a random sample of users, without items of fewer than five of them. A fifth of
the items is cold: held out with all their interactions. Features are genres and the decade of
release. NDCG@20 of a user's cold items is computed among the cold items and among all items that
are not in the user's training data; that of warm items on a random tenth of the other interactions.

* ``features``: ``FeatureEncoder`` with BPR, for several rates of dropout of item ids. With 0 the
  features are never trained without an id; with 1 no ids are used;
* ``random``: random vectors;
* ``popularity``: the number of users of an item, which is 0 for all cold items; ties in random
  order;
* ``popularity by features``: linear regression of the logarithm of that number on the features;
* ``content kNN``: the sum of the cosine similarities of the features of an item with those of the
  user's items.

The number of epochs and the learning rate are chosen for each rate by the NDCG among cold items of
a second split, which holds out a fifth of the warm items; all rates are then trained on all warm
items.

    python -m benchmarks.cold_items --data ml-1m --out benchmarks/results/cold_items.csv
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, losses, metrics, models, tasks, train
from experiments._compiler import tune_compiler
from experiments.recommend._features import reference_tables

from ._report import Report, count, one_line_errors, parser

K, DIM, MIN_USERS, FRACTION = 20, 32, 5, 0.2
RATES, LEARNING_RATES = (0.0, 0.25, 0.5, 0.75, 1.0), (3e-3, 1e-2)
SELECTION_METRIC = "cold"
"""Metric on validation data that selects the epoch and the learning rate."""


class Problem(NamedTuple):
    """A split with cold items: features of each part, and layouts of the evaluations.

    Attributes:
      train: Interactions of warm items to train on.
      warm, cold: Features of warm and of cold items.
      layouts: Evaluation layouts by metric: ``cold`` items among cold ones, ``all`` for cold items
        among all, ``warm`` for held-out interactions of warm items, if there are any.
    """

    train: data.Interactions
    warm: data.Features
    cold: data.Features
    layouts: dict[str, metrics.EvalLayout]


def read_films(path: Path) -> data.FeatureTable:
    """Returns genres and decades; the titles end in the year: ``Toy Story (1995)``."""
    raw = data.read_features(path, kinds={"title": "bag"})
    # A title with the separator of genres is cut into several categories.
    decades = [bag[-1].strip()[-5:-2] + "0s" for bag in raw.bags["title"]]
    return data.FeatureTable.from_columns(
        raw.ids, {"genres": raw.bags["genres"], "decade": decades}, origin=str(path)
    )


def sample(log: data.Interactions, n_users: int) -> data.Interactions:
    """Returns the interactions of a sample of users with items that occur often enough."""
    users = np.random.default_rng(0).choice(log.n_users, min(n_users, log.n_users), replace=False)
    return data.k_core(log.select(np.isin(log.users, users)), 1, item_k=MIN_USERS)


def make_problem(
    split: data.ColdItemSplit, table: data.FeatureTable, warm_test: data.Interactions | None = None
) -> Problem:
    """Encodes features by the statistics of the warm items, and lays out the evaluations."""
    schema = data.FeatureSchema.fit(table, split.train.item_ids)
    warm, cold = (schema.transform(table, x.item_ids) for x in (split.train, split.test))
    no_interactions = split.test.select(np.zeros(len(split.test), bool))
    all_items_split = split.over_all_items()
    layouts = {
        "cold": metrics.eval_layout(no_interactions, split.test),
        "all": metrics.eval_layout(all_items_split.train, all_items_split.test),
    }
    if warm_test is not None:
        layouts["warm"] = metrics.eval_layout(split.train, warm_test)
    warm, cold = jax.tree.map(jnp.asarray, (warm, cold))
    return Problem(split.train, warm, cold, layouts)


def ndcg(layouts: Any, tables: dict[str, models.Tables]) -> dict[str, jax.Array]:
    """Computes the mean NDCG of the given tables in each layout."""
    return {
        name: jnp.mean(
            metrics.evaluate(models.inner_scores, tables[name], layout, ks=(K,), auc=False)[
                f"ndcg@{K}"
            ]
        )
        for name, layout in layouts.items()
    }


def measure(layouts: Any, cold: Any, task: Any, params: Any, state: Any) -> dict[str, jax.Array]:
    """Computes the metrics of an encoder during training."""
    del state
    users, items = task.encoder.encode(params)
    cold_vectors = task.encoder.item_vectors(params, cold)
    tables = {
        "cold": models.Tables(users, cold_vectors),
        "all": models.Tables(users, jnp.concatenate([items, cold_vectors])),
        "warm": models.Tables(users, items),
    }
    return ndcg(layouts, tables)


def fit(problem: Problem, runs: dict[str, np.ndarray], epochs: int, eval_every: int) -> Any:
    """Trains runs of several rates of dropout, and measures each at all evaluations."""
    encoder = models.FeatureEncoder(
        problem.train.n_users, problem.train.n_items, DIM, item_features=problem.warm
    )
    fitted = tasks.fit_ranking(
        problem.train,
        loss=losses.bpr,
        encoder=encoder,
        optimizer=train.Optimizer(1e-3, 1e-5),
        config=train.TrainConfig(1024),
        epochs=epochs,
        stopping=tasks.Stopping(eval_every=eval_every),
        seeds=runs["seeds"],
        sweep={
            "task.encoder.item_id_dropout": runs["rate"],
            "optimizer.learning_rate": runs["lr"],
        },
        hooks=[
            train.ValidationMetrics(jax.tree_util.Partial(measure, problem.layouts, problem.cold)),
            train.Progress(lambda entry: print(entry["epoch"], np.round(entry["cold"], 4))),
        ],
    )
    return fitted.history


def references(problem: Problem) -> dict[str, dict[str, float]]:
    """Computes the metrics of the references without training."""
    reference_metrics, n_warm = {}, problem.train.n_items
    for name, (users, items) in reference_tables(problem.train, problem.warm, problem.cold).items():
        parts = {"cold": items[n_warm:], "all": items, "warm": items[:n_warm]}
        tables = {metric: models.Tables(users, part) for metric, part in parts.items()}
        reference_metrics[name] = {k: float(x) for k, x in ndcg(problem.layouts, tables).items()}
    return reference_metrics


def select_best(history: list[dict[str, Any]], runs: dict[str, np.ndarray]) -> dict[float, Any]:
    """Returns the learning rate and the epoch of each rate with the best validation score."""
    scores = np.array([entry[SELECTION_METRIC] for entry in history])
    epochs = [entry["epoch"] for entry in history]
    best = {}
    for rate in RATES:
        rate_runs = np.flatnonzero(runs["rate"] == rate)
        entry_index, run = np.unravel_index(
            np.argmax(scores[:, rate_runs]), (len(scores), len(rate_runs))
        )
        best[rate] = float(runs["lr"][rate_runs[run]]), epochs[entry_index]
    return best


@one_line_errors
def main() -> None:
    """Selects on validation data, trains each rate, and measures it and the references."""
    tune_compiler()
    arguments = parser(__doc__)
    arguments.add_argument(
        "--data", type=Path, required=True, help="folder with pairs.txt and movies.dat"
    )
    arguments.add_argument("--users", type=count, default=500, help="number of sampled users")
    arguments.add_argument("--epochs", type=count, default=30, help="largest number of epochs")
    arguments.add_argument("--every", type=count, default=3, help="epochs between evaluations")
    arguments.add_argument("--seeds", type=count, default=2, help="seeds of the final training")
    args = arguments.parse_args()
    table = read_films(args.data / "movies.dat")
    log = sample(data.read(args.data / "pairs.txt"), args.users)
    outer = data.hold_out_items(log, fraction=FRACTION, seed=0)
    warm_split = data.split_by_ratio(outer.train, test=0.1, seed=0)
    inner = data.hold_out_items(warm_split.train, fraction=FRACTION, seed=1)
    packages = "crl_jax", "jax", "jaxlib", "flax", "optax", "numpy"
    report = Report(
        args.out, *packages, users=log.n_users, items=log.n_items, cold_items=outer.test.n_items,
        interactions=len(log),
    )  # fmt: skip
    search_runs = train.grid({"rate": RATES, "lr": LEARNING_RATES})
    history = fit(make_problem(inner, table), search_runs, args.epochs, args.every)
    settings = select_best(history, search_runs)
    print(settings)
    final = make_problem(data.ColdItemSplit(warm_split.train, outer.test), table, warm_split.test)
    report.add([
        {"method": name, **{f"{k}_ndcg@{K}": x for k, x in values.items()}}
        for name, values in references(final).items()
    ])  # fmt: skip
    runs = train.grid({"rate": RATES}, range(args.seeds))
    runs["lr"] = np.array([settings[rate][0] for rate in runs["rate"].tolist()])
    max_epochs = max(epochs for _, epochs in settings.values())
    history = fit(final, runs, max_epochs, args.every)
    entries = {entry["epoch"]: entry for entry in history}
    rows = []
    for rate in RATES:
        lr, epochs = settings[rate]
        rate_mask = runs["rate"] == rate
        row: dict[str, Any] = {"method": "features", "id_dropout": rate, "lr": lr, "epochs": epochs}
        for name in final.layouts:
            values = np.asarray(entries[epochs][name])[rate_mask]
            row |= {f"{name}_ndcg@{K}": float(values.mean()), f"{name}_std": float(values.std())}
        rows.append(row)
    report.add(rows)


if __name__ == "__main__":
    main()
