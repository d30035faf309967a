"""Regret of the defaults and of short searches on data that no recipe was tuned for.

Runs ``recommend`` without hyper-parameters on eight datasets: without any flag, with LightGCN, and
with each loss; all with and without ``--tune``. A search among several losses blends models; it
also runs without a blend. Fits the baselines to the same interactions. The datasets are parts of
the training data of public ones, and simulated ones; each has a new split, so that no published
test part is read. Regret is the relative difference in NDCG@20 to the best single trained model of
the table; that of a blend may be negative. Completed runs are not repeated.

    python -m benchmarks.defaults --data DIR --runs runs/defaults
    python -m benchmarks.defaults --data DIR --runs runs/defaults --new --methods auto lightgcn

``DIR`` has folders ml-100k, ml-1m, gowalla and yelp2018. With ``--new``, the datasets are other
parts of them and another simulation, on which nothing was decided but that first runs may add iALS.
"""

import csv
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from crl_jax import baselines, data, metrics

from ._comparison import check_names
from ._report import RESULTS, Row, environment, one_line_errors, read_csv, write_csv
from ._runs import drop_replaced_rows, read_json, run, show

METRIC = "ndcg@20"
LOSSES = ("info_nce", "bsl", "debiased", "hard", "bayesian", "bpr", "dpl")
METHODS: Mapping[str, tuple[str, ...]] = {
    "auto": (),
    "lightgcn": ("--encoder", "lightgcn"),
    **{loss: ("--loss", loss) for loss in LOSSES},
}
"""Flags of each method; none names a hyper-parameter."""
_LOSS_CHOOSERS = ("auto", "lightgcn")
"""Methods that choose the loss, and blend models."""
_LOSS_CHOICE_RATIO = 4
"""Ratio of the time of a search that also chooses the loss and that of others."""
IALS_L2 = (0.003, 0.01, 0.03)


def sample_core(
    log: data.Interactions, n_users: int, seed: int, k: int, share: float = 1.0
) -> data.Interactions:
    """Returns the k-core of a share of the interactions of some users."""
    rng = np.random.default_rng(seed)
    users = rng.permutation(log.n_users)[:n_users]
    mask = np.isin(log.users, users) & (rng.random(len(log)) < share)
    pairs = (
        ids[index[mask]] for ids, index in ((log.user_ids, log.users), (log.item_ids, log.items))
    )
    return data.k_core(data.Interactions.from_arrays(*pairs), k)


def _training_part(folder: Path) -> data.Interactions:
    loaded = data.load(folder)
    return loaded if isinstance(loaded, data.Interactions) else loaded.train


DATASETS: Mapping[str, Callable[[Path], data.Interactions]] = {
    "ml-100k": lambda folder: sample_core(_training_part(folder / "ml-100k"), 943, 0, 2),
    "ml-100k-thin": lambda folder: sample_core(_training_part(folder / "ml-100k"), 943, 5, 2, 0.2),
    "ml-1m-thin": lambda folder: sample_core(
        _training_part(folder / "ml-1m" / "pairs.txt"), 6040, 2, 5, 0.08
    ),
    "gowalla-core": lambda folder: sample_core(_training_part(folder / "gowalla"), 10_000, 3, 15),
    "gowalla": lambda folder: sample_core(_training_part(folder / "gowalla"), 6000, 0, 5),
    "yelp-thin": lambda folder: sample_core(_training_part(folder / "yelp2018"), 10_000, 2, 4, 0.2),
    "simulated-dense": lambda folder: data.simulate(seed=3).interactions,
    "simulated-sparse": lambda folder: (
        data.simulate(n_users=3000, n_items=3000, n_exposed=60, seed=4).interactions
    ),
}
NEW_DATASETS: Mapping[str, Callable[[Path], data.Interactions]] = {
    "ml-1m-users": lambda folder: sample_core(
        _training_part(folder / "ml-1m" / "pairs.txt"), 900, 11, 5
    ),
    "ml-1m-half": lambda folder: sample_core(
        _training_part(folder / "ml-1m" / "pairs.txt"), 2500, 12, 5, 0.3
    ),
    "gowalla-sparse": lambda folder: sample_core(
        _training_part(folder / "gowalla"), 8000, 13, 4, 0.5
    ),
    "yelp": lambda folder: sample_core(_training_part(folder / "yelp2018"), 6000, 14, 5),
    "yelp-core": lambda folder: sample_core(_training_part(folder / "yelp2018"), 14_000, 15, 18),
    "simulated": lambda folder: (
        data.simulate(n_users=1500, n_items=2500, n_exposed=90, seed=16).interactions
    ),
}
"""Datasets on which nothing was decided, but that first runs may add iALS."""


@one_line_errors
def main() -> None:
    """Runs all methods on all datasets, and collects their results."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--runs", type=Path, default=Path("runs/defaults"), help="run directories")
    parser.add_argument("--new", action="store_true", help="other datasets")
    parser.add_argument("--datasets", nargs="+", help="by default all")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--searches", nargs="+", choices=METHODS, default=list(METHODS),
                        help="those of the methods that also run with --tune")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=0.5, help="of each search; 0 for none")
    parser.add_argument("--out", type=Path, default=RESULTS / "defaults")
    args = parser.parse_args()
    if not 0 <= args.minutes < float("inf"):
        parser.error(f"--minutes must be finite, at least 0, got {args.minutes:g}")
    makers, prefix = (NEW_DATASETS, "new-") if args.new else (DATASETS, "")
    check_names(parser, "--datasets", sorted(args.datasets or ()), makers)
    args.runs.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for name in args.datasets or makers:
        log = makers[name](args.data)
        path = args.runs / f"{name}.csv"
        write(path, log)
        sizes = {"users": log.n_users, "items": log.n_items, "interactions": len(log)}
        trainings = {(method, "defaults"): METHODS[method] for method in args.methods}
        trainings |= {
            (method, "defaults of one model"): (*METHODS[method], "--blend", "1")
            for method in args.methods if method in _LOSS_CHOOSERS
        }  # fmt: skip
        if args.minutes:
            for method in [method for method in args.methods if method in args.searches]:
                chooses_loss = method in _LOSS_CHOOSERS
                minutes = args.minutes * (_LOSS_CHOICE_RATIO if chooses_loss else 1)
                search = (*METHODS[method], "--tune", f"{minutes:g}")
                trainings[method, "search"] = search
                if chooses_loss:
                    trainings[method, "search of one model"] = (*search, "--blend", "1")
        for (method, mode), flags in trainings.items():
            folder = args.runs / f"{name}-{method}-{mode}"
            common_flags = ("--data", str(path), "--k", "20", "--baselines", "none")
            run("recommend", [*common_flags, *flags], folder)
            run_metrics = read_json(folder / "metrics.json")
            rows.append({
                "dataset": name, **sizes, "method": method, "mode": mode,
                METRIC: run_metrics[METRIC], "seconds": run_metrics["seconds"],
                "models": len(run_metrics["chosen"].get("blend", (None,))),
                "chosen": " ".join(f"{k}={v}" for k, v in run_metrics["chosen"]["point"].items()),
            })  # fmt: skip
        rows += [{"dataset": name, **sizes, **row} for row in evaluate_baselines(log)]
    about = environment("crl_jax", "jax", "jaxlib", "numpy")
    summary = write_results(args.out, prefix, rows, about, [*makers])
    show(summary, ("method", "mode", "rank", "regret", "worst", "seconds"))


def write_results(
    folder: Path, prefix: str, rows: list[Row], about: Row, datasets: Sequence[str]
) -> list[Row]:
    """Writes new rows among those of earlier calls, and returns the summary of all.

    The regrets of all rows of the datasets of new rows are computed again.

    Args:
      folder: Folder of the results.
      prefix: First part of the names of the files.
      rows: New rows.
      about: Further columns of the new rows.
      datasets: Datasets in the order of the file.
    """
    path = folder / f"{prefix}runs.csv"
    keys, before = ("dataset", "method", "mode"), [_parse_row(row) for row in read_csv(path)]
    positions = {tuple(row[key] for key in keys): i for i, row in enumerate(before)}

    def position(row: Row) -> tuple[int, int]:
        """Position of a row: that of the one that it replaces, or the end of its dataset."""
        row_key = tuple(row[key] for key in keys)
        return datasets.index(row["dataset"]), positions.get(row_key, len(positions))

    new_sets, retained = {row["dataset"] for row in rows}, drop_replaced_rows(before, rows, keys)
    merged = sorted([*retained, *({**row, **about} for row in rows)], key=position)
    add_regret([row for row in merged if row["dataset"] in new_sets])
    write_csv(path, merged)
    summary = summarize(merged)
    write_csv(folder / f"{prefix}methods.csv", summary)
    return summary


def _parse_row(row: Row) -> Row:
    """Returns a row of the file with numbers in place of their text."""
    floats = {name: float(row[name]) for name in (METRIC, "seconds", "regret") if row[name]}
    return {**row, **floats, "models": int(row["models"])}


def write(path: Path, log: data.Interactions) -> None:
    """Writes the original ids of the interactions."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("user", "item"))
        users, items = log.user_ids[log.users].tolist(), log.item_ids[log.items].tolist()
        writer.writerows(zip(users, items, strict=True))


def evaluate_baselines(log: data.Interactions) -> list[Row]:
    """Returns the scores of the baselines on the split of ``recommend``."""
    split = data.with_validation(data.split_by_ratio(log, test=0.2, seed=0), valid=0.2, seed=0)
    assert split.valid is not None
    known = data.union(split.train, split.valid)
    layouts = metrics.eval_layout(split.train, split.valid), metrics.eval_layout(known, split.test)

    def score(model: baselines.Baseline, is_test: bool) -> float:
        part, layout = known if is_test else split.train, layouts[is_test]
        lists, _ = model.fit(part).recommend(layout.users, 20)
        return float(np.mean(metrics.evaluate_lists(lists, layout, ks=(20,))[METRIC]))

    ials = max((baselines.IALS(l2=l2) for l2 in IALS_L2), key=lambda model: score(model, False))
    models = {
        "popularity": baselines.Popularity(), "item-kNN": baselines.ItemKNN(),
        "EASE": baselines.EASE(), "iALS": ials,
    }  # fmt: skip
    return [
        {"method": name, "mode": "baseline", METRIC: score(model, True), "seconds": "", "models": 1,
         "chosen": f"l2={ials.l2}" if model is ials else ""}
        for name, model in models.items()
    ]  # fmt: skip


def add_regret(rows: list[Row]) -> None:
    """Adds the relative difference to the best single trained model of the same dataset."""
    for row in rows:
        trained = [
            other[METRIC] for other in rows
            if other["dataset"] == row["dataset"] and other["mode"] != "baseline"
            and other["models"] == 1
        ]  # fmt: skip
        row["regret"] = 1 - row[METRIC] / max(trained)


def summarize(rows: list[Row]) -> list[Row]:
    """Returns the mean rank among methods of equal mode, the mean and the worst regret."""
    ranks_by_method: dict[tuple[str, str], list[float]] = {}
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        for mode in dict.fromkeys(row["mode"] for row in rows):
            group = [row for row in rows if (row["dataset"], row["mode"]) == (dataset, mode)]
            group.sort(key=lambda row: -row[METRIC])
            for rank, row in enumerate(group, 1):
                ranks_by_method.setdefault((row["method"], mode), []).append(rank)
    summaries = []
    for (method, mode), ranks in ranks_by_method.items():
        group = [row for row in rows if (row["method"], row["mode"]) == (method, mode)]
        regrets = [row["regret"] for row in group]
        seconds = [row["seconds"] for row in group if row["seconds"] != ""]
        summaries.append({
            "method": method, "mode": mode, "datasets": len(group), "rank": float(np.mean(ranks)),
            "regret": float(np.mean(regrets)), "worst": float(np.max(regrets)),
            "seconds": float(np.median(seconds)) if seconds else "",
        })  # fmt: skip
    return sorted(summaries, key=lambda row: row["regret"])


if __name__ == "__main__":
    main()
