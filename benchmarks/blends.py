r"""Sum of a training-free graph filter and trained models, on the standard splits.

Each user's scores are standardised. The weights of the trained models are decided one after the
other on a tenth of the training part and some of the users, with models of the rest. All are then
fitted to the whole training part and evaluated once on the test part; with several seeds, trained
models and the sum are the mean over them. P-values come from paired t-tests of NDCG@20 over users.
Completed runs are not repeated, interrupted ones are resumed.

    python -m benchmarks.blends --data DATASETS --dataset gowalla --seeds 5 --runs runs/blends
    python -m benchmarks.blends --data DATASETS --dataset yelp2018 \
        --filter GF-CF --recipes gowalla-hard
"""

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from crl_jax import data, metrics, serving

from ._report import RESULTS, Row, count, environment, one_line_errors
from ._runs import record, run, show
from .defaults import write
from .filters import FILTERS, METRICS, models

MEMBERS: Mapping[str, tuple[str, ...]] = {
    "gowalla": ("ChebyCF", "gowalla-hard"),
    "yelp2018": ("BSPM", "yelp2018-lightgcn-bsl"),
}
"""The filter and the recipes of the trained models, by dataset."""
WEIGHTS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_N_VALIDATION_USERS = 4096
"""Number of users on whom the weights are decided."""
_BLOCK_SIZE = 512
"""Number of users whose scores are in memory at once."""
Scores = Callable[[np.ndarray], np.ndarray]
"""Function of users that returns their scores for all items, ``[n, n_items]``."""


def standardize(scores: np.ndarray) -> np.ndarray:
    """Returns scores with mean 0 and variance 1 for each user; zeros where all are equal."""
    centred = scores - scores.mean(axis=1, keepdims=True)
    deviation = centred.std(axis=1, keepdims=True)
    return centred / np.where(deviation > 0, deviation, 1)


def evaluate(
    split: data.HeldOutSplit,
    members: Sequence[Scores],
    weights: Sequence[Sequence[float] | np.ndarray],
    n_users: int | None = None,
) -> list[dict[str, Any]]:
    """Returns the metrics of each user, for each weighting of the members.

    Args:
      split: Training interactions, which are not recommended, and test interactions.
      members: Scores of each model.
      weights: Weightings, each with a number per member.
      n_users: Number of users, chosen at random; all by default.
    """
    test = split.test
    if n_users is not None:
        users = np.random.default_rng(0).permutation(np.unique(test.users))[:n_users]
        test = test.select(np.isin(test.users, users))
    layout = metrics.eval_layout(split.train, test)
    lists: list[list[np.ndarray]] = [[] for _ in weights]
    for users in _user_blocks(layout.users):
        member_scores = [standardize(score(users)) for score in members]
        rows, seen = _seen_items(split.train, users)
        for index, member_weights in enumerate(weights):
            weighted_scores = [
                w * each for w, each in zip(member_weights, member_scores, strict=True) if w
            ]
            total = np.sum(weighted_scores, axis=0)
            total[rows, seen] = -np.inf
            top = np.argpartition(-total, 20, axis=1)[:, :20]
            order = np.argsort(-np.take_along_axis(total, top, axis=1), axis=1, kind="stable")
            lists[index].append(np.take_along_axis(top, order, axis=1))
    return [metrics.evaluate_lists(np.concatenate(each), layout, ks=(20,)) for each in lists]


def _seen_items(train: data.Interactions, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the known items of users, with the place of each user."""
    rows = np.repeat(np.arange(len(users)), train.degrees[users])
    return rows, np.concatenate([train.items[slice(*train.indptr[u : u + 2])] for u in users])


def _user_blocks(users: np.ndarray) -> Iterator[np.ndarray]:
    return (users[i : i + _BLOCK_SIZE] for i in range(0, len(users), _BLOCK_SIZE))


def recommender_scores(train: data.Interactions, recommender: serving.Recommender) -> Scores:
    """Returns the scores of a trained model, which has read the same data in another order."""
    known = recommender.known
    users = _positions(train.user_ids, known.user_ids)
    items = _positions(train.item_ids, known.item_ids)
    user_vectors, item_vectors = recommender.users[users], recommender.items[items]
    return lambda chosen: user_vectors[chosen] @ item_vectors.T


def _positions(wanted: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns the place of each wanted id."""
    order = np.argsort(ids, kind="stable")
    return order[np.searchsorted(ids[order], wanted)]


def compare_with_blend(metrics_by_model: dict[str, list[dict[str, Any]]], blend: str) -> list[Row]:
    """Returns the metrics of each model, and the gain of the blend with its p-value over users.

    Args:
      metrics_by_model: Metrics of each user, for each seed, by model.
      blend: Name of the blend.
    """
    rows: list[Row] = []
    ours = _mean_by_user(metrics_by_model[blend])
    for name, seeds in metrics_by_model.items():
        row: Row = {"model": name, "seeds": len(seeds)}
        for metric in METRICS:
            means = [float(np.mean(values[metric])) for values in seeds]
            row[metric] = float(np.mean(means))
            row[f"{metric}_std"] = float(np.std(means, ddof=1)) if len(means) > 1 else None
        if name != blend:
            theirs = _mean_by_user(seeds)
            row["gain_of_blend"] = float(np.mean(ours - theirs))
            row["p_users"] = float(stats.ttest_rel(ours, theirs).pvalue)
        rows.append(row)
    return rows


def _mean_by_user(seeds: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Returns the NDCG of each user, the mean over seeds."""
    return np.mean([np.asarray(values["ndcg@20"], np.float64) for values in seeds], axis=0)


def choose_weights(split: data.HeldOutSplit, members: Sequence[Scores]) -> list[float]:
    """Returns the weights of the members: 1 for the first, then the best of each next one.

    A member is only added with a weight of :data:`WEIGHTS` if that is better than without it.
    """
    weights, candidates = [1.0], [0.0, *WEIGHTS]
    for n in range(1, len(members)):
        values = evaluate(
            split, members[: n + 1], [(*weights, w) for w in candidates], _N_VALIDATION_USERS
        )
        scores = [float(np.mean(each["ndcg@20"])) for each in values]
        show([dict(zip(map(str, candidates), scores, strict=True))], [*map(str, candidates)])
        weights.append(candidates[int(np.argmax(scores))])
    return weights


def train_recipe(
    split: data.HeldOutSplit, recipe: str, seed: int, folder: Path
) -> serving.Recommender:
    """Trains a recipe on the training part of a split, and returns its recommender."""
    source = folder / "data"
    source.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", split.train), ("test", split.test)):
        write(source / f"{name}.csv", part)
    flags = ["--recipe", recipe, "--data", str(source), "--baselines", "none", "--seed", str(seed)]
    run("recommend", flags, folder / "run")
    return serving.Recommender.load(folder / "run" / "recommender.npz")


@one_line_errors
def main() -> None:
    """Decides the weights on validation data, and evaluates the blend on the test part."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets' folders")
    parser.add_argument("--dataset", choices=MEMBERS, default="gowalla")
    parser.add_argument("--filter", choices=FILTERS, help="by default that of the dataset")
    parser.add_argument("--recipes", nargs="+", help="trained models; by default the dataset's")
    parser.add_argument("--seeds", type=count, default=1, help="number of trained models")
    parser.add_argument("--runs", type=Path, default=Path("runs/blends"), help="run directories")
    parser.add_argument("--out", type=Path, default=RESULTS / "standard" / "blends.csv")
    args = parser.parse_args()
    filter_name, *recipes = MEMBERS[args.dataset]
    filter_name, recipes = args.filter or filter_name, args.recipes or recipes
    full_split = data.load(args.data / args.dataset)
    assert isinstance(full_split, data.Split)
    valid_split = data.with_validation(full_split, valid=0.1, seed=0)
    model, _ = models(args.dataset)[filter_name]
    inner_split = data.HeldOutSplit(train=valid_split.train, test=valid_split.valid)

    def members(split: data.HeldOutSplit, phase: str, seeds: int) -> list[Scores]:
        """Returns the scores of the filter, then those of all seeds of each recipe."""
        folder = args.runs / args.dataset
        recommenders = [
            train_recipe(split, recipe, seed, folder / f"{recipe}-{phase}-{seed}")
            for recipe in recipes
            for seed in range(seeds)
        ]
        return [
            model.fit(split.train).scores,
            *(recommender_scores(split.train, recommender) for recommender in recommenders),
        ]

    weights = choose_weights(inner_split, members(inner_split, "validation", 1))
    # Rows: weightings with each model alone, then with the sum of each seed.
    single_weights = np.eye(1 + len(recipes) * args.seeds)
    recipe_weights = single_weights[1:].reshape(len(recipes), args.seeds, -1)
    blend_weights = single_weights[0] + np.einsum("r,rsm->sm", weights[1:], recipe_weights)
    weighting_metrics = evaluate(
        full_split, members(full_split, "test", args.seeds), [*single_weights, *blend_weights]
    )
    blend = " + ".join((filter_name, *recipes))
    metrics_by_model = {
        filter_name: weighting_metrics[:1],
        blend: weighting_metrics[len(single_weights) :],
    }
    for i, recipe in enumerate(recipes):
        metrics_by_model[recipe] = weighting_metrics[1 + i * args.seeds : 1 + (i + 1) * args.seeds]
    columns = {"dataset": args.dataset, "blend": blend}
    weight_text = " ".join(f"{weight:g}" for weight in weights[1:])  # that of the filter is 1
    rows = [
        {**columns, "weights": weight_text if row["model"] == blend else "", **row}
        for row in compare_with_blend(metrics_by_model, blend)
    ]
    keys = ("dataset", "blend", "model")
    record(args.out, rows, keys, environment("crl_jax", "jax", "numpy", "scipy"))
    show(rows, ("model", "weights", "seeds", *METRICS, "gain_of_blend", "p_users"))


if __name__ == "__main__":
    main()
