"""Sum of a training-free graph filter and a trained model, on the standard splits.

Each user's scores are standardised. The weight of the trained model is decided on a tenth of the
training part and some of the users, with models of the rest. Both are then fitted to the whole
training part and evaluated once on the test part. P-values come from paired t-tests of NDCG@20 over
users.

    python -m benchmarks.blends --data DATASETS --dataset gowalla --runs runs/blends
"""

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from crl_jax import baselines, data, metrics, serving

from ._report import RESULTS, Row, environment
from ._runs import record, run, show
from .defaults import write
from .filters import METRICS, models

MEMBERS: Mapping[str, tuple[str, str]] = {
    "gowalla": ("ChebyCF", "gowalla-hard"),
    "yelp2018": ("GF-CF", "gowalla-hard"),
}
"""The filter and the recipe of the trained model, by dataset."""
WEIGHTS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_DECIDING = 4096
"""Number of users on whom the weight is decided."""
_BLOCK = 512
"""Number of users whose scores are in memory at once."""
Scores = Callable[[np.ndarray], np.ndarray]
"""Function of users that returns their scores for all items, ``[n, n_items]``."""


def standardized(scores: np.ndarray) -> np.ndarray:
    """Returns scores with mean 0 and variance 1 for each user; zeros where all are equal."""
    centred = scores - scores.mean(axis=1, keepdims=True)
    deviation = centred.std(axis=1, keepdims=True)
    return centred / np.where(deviation > 0, deviation, 1)


def evaluated(
    split: data.Split,
    members: Sequence[Scores],
    weights: Sequence[Sequence[float]],
    n_users: int | None = None,
) -> list[dict[str, Any]]:
    """Returns the metrics of each user, for each weighting of the members.

    Args:
      split: Training interactions, which are not recommended, and test interactions.
      members: Scores of each model.
      weights: Weightings, each with a number per member.
      n_users: Number of users, chosen at random; all by default.
    """
    assert split.test is not None
    test = split.test
    if n_users is not None:
        users = np.random.default_rng(0).permutation(np.unique(test.users))[:n_users]
        test = test.select(np.isin(test.users, users))
    layout = metrics.eval_layout(split.train, test)
    lists: list[list[np.ndarray]] = [[] for _ in weights]
    for users in _blocks(layout.users):
        found = [standardized(of(users)) for of in members]
        rows, seen = _seen(split.train, users)
        for place, factors in enumerate(weights):
            total = np.sum([w * each for w, each in zip(factors, found, strict=True)], axis=0)
            total[rows, seen] = -np.inf
            top = np.argpartition(-total, 20, axis=1)[:, :20]
            order = np.argsort(-np.take_along_axis(total, top, axis=1), axis=1, kind="stable")
            lists[place].append(np.take_along_axis(top, order, axis=1))
    return [metrics.evaluate_lists(np.concatenate(each), layout, ks=(20,)) for each in lists]


def _seen(train: data.Interactions, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the known items of users, with the place of each user."""
    rows = np.repeat(np.arange(len(users)), train.degrees[users])
    return rows, np.concatenate([train.items[slice(*train.indptr[u : u + 2])] for u in users])


def _blocks(users: np.ndarray) -> Iterator[np.ndarray]:
    return (users[i : i + _BLOCK] for i in range(0, len(users), _BLOCK))


def members_of(
    split: data.Split, filter_model: baselines.Baseline, recommender: serving.Recommender
) -> list[Scores]:
    """Returns the scores of a filter that is fitted to the training part, and of a trained model.

    The trained model has read the same data from files, in another order.
    """
    fitted, known = filter_model.fit(split.train), recommender.known
    users = _places(split.train.user_ids, known.user_ids)
    items = _places(split.train.item_ids, known.item_ids)
    of_users, of_items = recommender.users[users], recommender.items[items]
    return [fitted.scores, lambda chosen: of_users[chosen] @ of_items.T]


def _places(wanted: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns the place of each wanted id."""
    order = np.argsort(ids, kind="stable")
    return order[np.searchsorted(ids[order], wanted)]


def compared(found: dict[str, dict[str, Any]], blend: str) -> list[Row]:
    """Returns the mean metrics of each model, and the gain of the blend with its p-value."""
    rows: list[Row] = []
    for name, values in found.items():
        row: Row = {"model": name, **{m: float(np.mean(values[m])) for m in METRICS}}
        if name != blend:
            ours, theirs = (np.asarray(found[n]["ndcg@20"], np.float64) for n in (blend, name))
            row["gain_of_blend"] = float(np.mean(ours - theirs))
            row["p_users"] = float(stats.ttest_rel(ours, theirs).pvalue)
        rows.append(row)
    return rows


def trained(split: data.Split, recipe: str, folder: Path) -> serving.Recommender:
    """Trains a recipe on the training part of a split, and returns its recommender."""
    assert split.test is not None
    source = folder / "data"
    source.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", split.train), ("test", split.test)):
        write(source / f"{name}.csv", part)
    run("recommend", ["--recipe", recipe, "--data", str(source), "--baselines", "none"],
        folder / "run")  # fmt: skip
    return serving.Recommender.load(folder / "run" / "recommender.npz")


def main() -> None:
    """Decides the weight on validation data, and evaluates the blend on the test part."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets' folders")
    parser.add_argument("--dataset", choices=MEMBERS, default="gowalla")
    parser.add_argument("--runs", type=Path, default=Path("runs/blends"), help="run directories")
    parser.add_argument("--out", type=Path, default=RESULTS / "standard" / "blends.csv")
    args = parser.parse_args()
    filter_name, recipe = MEMBERS[args.dataset]
    whole = data.load(args.data / args.dataset)
    assert isinstance(whole, data.Split)
    cut = data.with_validation(whole, valid=0.1, seed=0)
    model, _ = models(args.dataset)[filter_name]
    inner = data.Split(train=cut.train, test=cut.valid)

    def members(split: data.Split, phase: str) -> list[Scores]:
        recommender = trained(split, recipe, args.runs / f"{recipe}-{phase}")
        return members_of(split, model, recommender)

    tried = [(1.0, weight) for weight in WEIGHTS]
    values = evaluated(inner, members(inner, "validation"), tried, _DECIDING)
    scores = [float(np.mean(each["ndcg@20"])) for each in values]
    weight = WEIGHTS[int(np.argmax(scores))]
    show([dict(zip(map(str, WEIGHTS), scores, strict=True))], [*map(str, WEIGHTS)])
    names = filter_name, recipe, f"{filter_name} + {recipe}"
    alone_and_blended = (1.0, 0.0), (0.0, 1.0), (1.0, weight)
    values = evaluated(whole, members(whole, "test"), alone_and_blended)
    found = dict(zip(names, values, strict=True))
    rows = [
        {"dataset": args.dataset, "weight": weight if " + " in row["model"] else "", **row}
        for row in compared(found, names[-1])
    ]
    record(args.out, rows, ("dataset", "model"), environment("crl_jax", "jax", "numpy", "scipy"))
    show(rows, ("model", "weight", *METRICS, "gain_of_blend", "p_users"))


if __name__ == "__main__":
    main()
