"""Recall and NDCG on Gowalla and Yelp2018, on the splits commonly used in the literature.

Runs all available recipes ``DATASET-LOSS`` and ``DATASET-lightgcn-LOSS``, each seed separately:
on a large graph, seeds are faster sequentially than in parallel. Collects their metrics with the
published figures, and tests against the plain softmax loss where that was trained in the same way.
Completed runs are not repeated, interrupted ones are resumed. Those of losses that are not named
are read for the tests.

    python -m benchmarks.standard_splits --data DATASETS --runs runs/standard
"""

import itertools
import shutil
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.recommend.recipes import RECIPES

from ._report import RESULTS, Row, count, environment, one_line_errors
from ._runs import read_json, record, run, scores, show
from ._significance import MAIN_METRIC, compare_with, per_user

METRICS = ("recall@20", MAIN_METRIC)
LOSSES = ("info_nce", "bsl", "debiased", "hard", "bayesian", "bpr", "dpl", "xsimgcl")
PLAIN = "info_nce"
"""Baseline loss that the others are tested against."""


_BSL = "BSL (Wu et al., 2024), chosen on the test part"
PUBLISHED = {
    ("gowalla", "mf", "info_nce"): (0.1759, 0.1395, _BSL),
    ("gowalla", "mf", "bsl"): (0.1882, 0.1584, _BSL),
    ("gowalla", "lightgcn", "bpr"): (0.1820, 0.1547, "LightGCN (He et al., 2020)"),
    ("gowalla", "lightgcn", "info_nce"): (0.1874, 0.1571, _BSL),
    ("gowalla", "lightgcn", "bsl"): (0.1892, 0.1590, _BSL),
    ("yelp2018", "mf", "info_nce"): (0.0721, 0.0592, _BSL),
    ("yelp2018", "mf", "bsl"): (0.0725, 0.0599, _BSL),
    ("yelp2018", "lightgcn", "bpr"): (0.0653, 0.0532, "LightGCN (He et al., 2020)"),
    ("yelp2018", "lightgcn", "info_nce"): (0.0736, 0.0612, _BSL),
    ("yelp2018", "lightgcn", "bsl"): (0.0744, 0.0617, _BSL),
    ("yelp2018", "lightgcn", "xsimgcl"): (0.0723, 0.0604, "XSimGCL (Yu et al., 2023)"),
}
"""Recall@20, NDCG@20 and source by dataset, encoder and loss, on the same split with width 64."""


def recipe_name(dataset: str, encoder: str, loss: str) -> str:
    """Returns the name of a recipe."""
    return "-".join((dataset, *(() if encoder == "mf" else (encoder,)), loss))


class TrainedRecipe(NamedTuple):
    """Trained recipe.

    Attributes:
      row: Row of the table.
      folders: Run directory of each seed.
      scores: Metrics of each seed.
      config: Configuration of the run.
    """

    row: Row
    folders: list[Path]
    scores: list[Row]
    config: Row


def collect(dataset: str, encoder: str, loss: str, folders: list[Path]) -> TrainedRecipe:
    """Returns mean and standard deviation over the seeds' run directories."""
    seed_metrics = [scores(folder) for folder in folders]
    row: Row = {"dataset": dataset, "encoder": encoder, "loss": loss}
    for name in METRICS:
        values = np.array([metrics[name] for metrics in seed_metrics])
        row[name] = values.mean().item()
        row[f"{name}_std"] = values.std(ddof=1).item() if len(values) > 1 else None
    if published := PUBLISHED.get((dataset, encoder, loss)):
        recall, ndcg, row["source"] = published
        row |= {f"{METRICS[0]}_published": recall, f"{METRICS[1]}_published": ndcg}
    return TrainedRecipe(row, folders, seed_metrics, read_json(folders[0] / "config.json"))


def compare(trained: Sequence[TrainedRecipe]) -> None:
    """Adds to each row a comparison of its loss with the plain one, trained in the same way.

    See :func:`compare_with`; p-values are adjusted for the losses with the same plain one.
    """
    for plain in trained:
        if plain.row["loss"] != PLAIN:
            continue
        others = [
            recipe
            for recipe in trained
            if recipe is not plain and _differ_only_in_loss(recipe, plain)
        ]
        if others:
            group = [plain, *others]
            seeds = [np.array([row[MAIN_METRIC] for row in recipe.scores]) for recipe in group]
            users = [per_user(recipe.folders) for recipe in group]
            compare_with(0, [recipe.row for recipe in group], seeds, users)


def _differ_only_in_loss(recipe: TrainedRecipe, other: TrainedRecipe) -> bool:
    """Whether two recipes differ only in the loss and its hyper-parameters."""

    def comparable_settings(trained: TrainedRecipe) -> list[Any]:
        parts = [trained.config[name] for name in ("sampling", "encoding", "training")]
        negatives = trained.config["objective"]["n_neg"]
        valid = trained.config["source"]["valid_fraction"]
        return [trained.row["dataset"], trained.row["encoder"], valid, negatives, parts]

    return comparable_settings(recipe) == comparable_settings(other)


@one_line_errors
def main() -> None:
    """Runs the recipes, and collects their results."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets' folders")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/standard"), help="folder of the run directories"
    )
    parser.add_argument(
        "--datasets", nargs="+", choices=("gowalla", "yelp2018"), default=["gowalla", "yelp2018"],
        help="by default both",
    )  # fmt: skip
    parser.add_argument(
        "--encoders", nargs="+", choices=("mf", "lightgcn"), default=["mf", "lightgcn"],
        help="by default both",
    )  # fmt: skip
    parser.add_argument("--losses", nargs="+", help="by default all that have a recipe")
    parser.add_argument("--seeds", type=count, default=3, help="number of runs per recipe")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "standard", help="folder for the results"
    )
    args = parser.parse_args()
    losses = args.losses or LOSSES
    pairs = [*itertools.product(args.datasets, args.encoders)]
    for loss in losses if args.losses else ():
        if not any(recipe_name(*pair, loss) in RECIPES for pair in pairs):
            parser.error(f"there is no recipe for --losses {loss}")
    cases = [
        (*pair, loss)
        for pair in pairs
        if any(recipe_name(*pair, loss) in RECIPES for loss in losses)
        for loss in dict.fromkeys((*LOSSES, *losses))
        if recipe_name(*pair, loss) in RECIPES
    ]
    if not cases:
        parser.error("there is no recipe for these --datasets and --encoders")

    def list_folders(case: tuple[str, str, str]) -> list[Path]:
        return [args.runs / f"{recipe_name(*case)}-{seed}" for seed in range(args.seeds)]

    finished = [
        case for case in cases if all((f / "metrics.json").exists() for f in list_folders(case))
    ]
    for dataset, encoder, loss in cases:
        if loss == PLAIN and loss not in losses and (dataset, encoder, loss) not in finished:
            parser.error(
                f"add {PLAIN} to --losses: the others are compared with it, and {args.runs} has no "
                f"{args.seeds} finished runs of {recipe_name(dataset, encoder, loss)}"
            )
    about = environment("crl_jax", "jax", "jaxlib", "flax", "optax", "numpy")
    args.out.mkdir(parents=True, exist_ok=True)
    keys, trained = ("dataset", "encoder", "loss"), []
    for case in cases:
        if case[2] not in losses and case not in finished:
            continue
        recipe, folders = recipe_name(*case), list_folders(case)
        for seed, folder in enumerate(folders):
            flags = ["--recipe", recipe, "--data", str(args.data / case[0]), "--seed", str(seed)]
            run("recommend", flags, folder)
        trained.append(collect(*case, folders))
        if case[2] not in losses:
            continue
        shutil.copy(folders[0] / "curves.png", args.out / f"{recipe}.png")
        seeds = [
            {**dict(zip(keys, case)), "seed": seed, **row}
            for seed, row in enumerate(trained[-1].scores)
        ]
        record(args.out / "per_seed.csv", seeds, keys, {})
        record(args.out / "losses.csv", [trained[-1].row], keys, about)
    compare(trained)
    rows = [entry.row for entry in trained if entry.row["loss"] in losses]
    record(args.out / "losses.csv", rows, keys, about)
    show(rows, (*keys, *METRICS, "gain", "p_users"))


if __name__ == "__main__":
    main()
