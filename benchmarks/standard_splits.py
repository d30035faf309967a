"""Recall and NDCG on Gowalla and Yelp2018, on the splits commonly used in the literature.

Runs all available recipes ``DATASET-LOSS`` and ``DATASET-lightgcn-LOSS``, each seed separately:
on a large graph, seeds are faster sequentially than in parallel. Collects their metrics with the
published figures, and tests against the plain softmax loss where that was trained in the same way.
Completed runs are not repeated, interrupted ones are resumed.

    python -m benchmarks.standard_splits --data DATASETS --runs runs/standard
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from crl_jax import metrics, models
from experiments._saved import load_model
from experiments.recipes import RECIPES
from experiments.studies.tables import holm

from . import _common as common
from .quality import run

MAIN = "ndcg@20"
METRICS = ("recall@20", MAIN)
FILE = "standard_splits.json"
LOSSES = ("info_nce", "bsl", "debiased", "hard", "bayesian", "bpr", "dpl")
PLAIN = "info_nce"
"""Baseline loss that the others are tested against."""


class Published(NamedTuple):
    """Published figure.

    Attributes:
      recall: Recall@20.
      ndcg: NDCG@20.
      source: Publication that reports it.
    """

    recall: float
    ndcg: float
    source: str


_BSL = "BSL (Wu et al., 2024), chosen on the test part"
PUBLISHED = {
    ("gowalla", "mf", "info_nce"): Published(0.1759, 0.1395, _BSL),
    ("gowalla", "mf", "bsl"): Published(0.1882, 0.1584, _BSL),
    ("gowalla", "lightgcn", "bpr"): Published(0.1820, 0.1547, "LightGCN (He et al., 2020)"),
    ("gowalla", "lightgcn", "info_nce"): Published(0.1874, 0.1571, _BSL),
    ("gowalla", "lightgcn", "bsl"): Published(0.1892, 0.1590, _BSL),
    ("yelp2018", "mf", "info_nce"): Published(0.0721, 0.0592, _BSL),
    ("yelp2018", "mf", "bsl"): Published(0.0725, 0.0599, _BSL),
    ("yelp2018", "lightgcn", "bpr"): Published(0.0653, 0.0532, "LightGCN (He et al., 2020)"),
    ("yelp2018", "lightgcn", "info_nce"): Published(0.0736, 0.0612, _BSL),
    ("yelp2018", "lightgcn", "bsl"): Published(0.0744, 0.0617, _BSL),
}
"""Published figures by dataset, encoder and loss, on the same split with width 64."""


def recipe_of(dataset: str, encoder: str, loss: str) -> str:
    """Returns the name of a recipe."""
    return "-".join((dataset, *(() if encoder == "mf" else (encoder,)), loss))


def per_user(folders: Sequence[Path]) -> np.ndarray:
    """Computes NDCG@20 of every user, averaged over runs."""
    found = []
    for folder in folders:
        model = load_model(folder)
        tables = models.Tables(*(side[0] for side in model.tables))
        plan = metrics.eval_layout(model.known, model.test)
        values = metrics.evaluate(models.inner_scores, tables, plan, ks=(20,), auc=False)
        found.append(np.asarray(values[MAIN]))
    return np.mean(found, axis=0)


def collect(dataset: str, encoder: str, loss: str, folders: Sequence[Path]) -> dict[str, Any]:
    """Returns a row of the table: mean and standard deviation over the seeds' run directories."""
    scored = [json.loads((folder / "metrics.json").read_text()) for folder in folders]
    config = json.loads((folders[0] / "config.json").read_text())
    known = PUBLISHED.get((dataset, encoder, loss))
    values = {name: np.array([of_seed[name] for of_seed in scored]) for name in METRICS}
    return {
        "dataset": dataset,
        "encoder": encoder,
        "loss": loss,
        **{name: x.mean().item() for name, x in values.items()},
        **{f"{name}_std": x.std(ddof=1).item() if len(x) > 1 else None
           for name, x in values.items()},
        "published": None if known is None else known._asdict(),
        "per_seed": scored,
        "valid": config["source"]["valid"],
        "config": {
            name: config[name] for name in ("objective", "sampling", "encoding", "training")
        },
    }  # fmt: skip


def compare(rows: Sequence[dict[str, Any]], folders: Sequence[Sequence[Path]]) -> None:
    """Adds to each row a comparison of its loss with the plain one, trained in the same way.

    ``gain`` is the difference of NDCG@20; ``p_seeds`` comes from Welch's t-test over seeds,
    ``p_users`` from a paired t-test over users, each averaged over seeds. Both are two-sided and
    adjusted by Holm's method for the losses that are compared with the same baseline.
    """
    each = list(zip(rows, folders, strict=True))
    for plain in each:
        if plain[0]["loss"] != PLAIN:
            continue
        others = [one for one in each if one is not plain and _alike(one[0], plain[0])]
        if not others:
            continue
        first, users = _of_seeds(plain[0]), per_user(plain[1])
        tests = {
            "p_seeds": [
                stats.ttest_ind(_of_seeds(row), first, equal_var=False).pvalue for row, _ in others
            ],
            "p_users": [stats.ttest_rel(per_user(runs), users).pvalue for _, runs in others],
        }
        for kind, found in tests.items():
            for (row, _), p in zip(others, holm(found), strict=True):
                row[kind] = p
        for row, _ in others:
            row["gain"] = row[MAIN] - plain[0][MAIN]


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two rows differ only in the loss and its hyper-parameters."""

    def but_loss(row: dict[str, Any]) -> list[Any]:
        config = dict(row["config"])
        negatives = config.pop("objective")["n_neg"]
        return [row["dataset"], row["encoder"], row["valid"], negatives, config]

    return but_loss(one) == but_loss(other)


def _of_seeds(row: dict[str, Any]) -> list[float]:
    return [of_seed[MAIN] for of_seed in row["per_seed"]]


def main() -> None:
    """Parses the command line, runs, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets' folders")
    parser.add_argument("--runs", type=Path, default=Path("runs/standard"))
    parser.add_argument("--datasets", nargs="+", choices=("gowalla", "yelp2018"))
    parser.add_argument("--encoders", nargs="+", choices=("mf", "lightgcn"))
    parser.add_argument("--losses", nargs="+", help="by default all that have a recipe")
    parser.add_argument("--seeds", type=int, default=3)
    default = Path(__file__).parent / "results" / "standard"
    parser.add_argument("--out", type=Path, default=default, help="folder for the figures")
    args = parser.parse_args()
    wanted = [
        (dataset, encoder, loss)
        for dataset in args.datasets or ("gowalla", "yelp2018")
        for encoder in args.encoders or ("mf", "lightgcn")
        for loss in args.losses or LOSSES
        if recipe_of(dataset, encoder, loss) in RECIPES
    ]
    if not wanted:
        parser.error(f"there is no recipe for --losses {' '.join(args.losses or ())}")
    about = {
        "benchmark": "standard_splits",
        "machine": common.machine(),
        "versions": common.versions("crl_jax", "jax", "jaxlib", "flax", "optax", "numpy"),
    }
    rows, folders = [], []
    args.out.mkdir(parents=True, exist_ok=True)
    for dataset, encoder, loss in wanted:
        recipe = recipe_of(dataset, encoder, loss)
        folders.append([args.runs / f"{recipe}-{seed}" for seed in range(args.seeds)])
        for seed, folder in enumerate(folders[-1]):
            run(recipe, args.data / dataset, folder, seed)
        shutil.copy(folders[-1][0] / "curves.png", args.out / f"{recipe}.png")
        rows.append(collect(dataset, encoder, loss, folders[-1]))
        common.write_json(args.out / FILE, {**about, "rows": rows})
    compare(rows, folders)
    common.write_json(args.out / FILE, {**about, "rows": rows})
    shown = ("dataset", "encoder", "loss", *METRICS, "gain", "p_users")
    common.print_table([{name: row.get(name, "") for name in shown} for row in rows])


if __name__ == "__main__":
    main()
