"""Test NDCG of every loss on MovieLens 100K, compared with the published results.

Runs the tuned recipes ``ml-100k-LOSS`` (five seeds each) on a folder with the published split,
one run directory per loss under ``--runs``, and collects their metrics. Completed runs are not
repeated, interrupted ones are resumed. With ``--search``, runs the hyper-parameter searches that
selected the recipes instead, and keeps their tables. ``--encoder lightgcn`` runs those of LightGCN.

    python -m benchmarks.quality --data ml-100k --runs runs/quality
"""

import json
import shutil
from argparse import ArgumentParser
from pathlib import Path

from experiments.recommend.objectives import OBJECTIVES
from experiments.recommend.recipes import RECIPES

from ._comparison import check_names
from ._report import RESULTS, environment, one_line_errors
from ._runs import per_seed, read_json, record, run, scores, show

METRIC = "ndcg@20"
RECIPE = {"mf": "ml-100k-", "lightgcn": "ml-100k-lightgcn-"}
"""Prefix of the recipes of an encoder."""
PUBLISHED = {
    "mf": {
        "bpr": 0.3962, "info_nce": 0.4118, "debiased": 0.4207, "hard": 0.4242, "dpl": 0.4338,
        "bayesian": 0.4357,
    },
    "lightgcn": {
        "bpr": 0.3986, "info_nce": 0.3976, "debiased": 0.4006, "hard": 0.4182, "dpl": 0.4331,
        "bayesian": 0.4347,
    },
}  # fmt: skip
"""NDCG@20 by encoder and loss: tables 5.2 and 6.3 of the dissertation, MovieLens 100K."""


@one_line_errors
def main() -> None:
    """Runs the recipes or searches, and collects their results."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with train.csv and test.csv"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/quality"), help="folder of the run directories"
    )
    parser.add_argument("--encoder", choices=RECIPE, default="mf", help="encoder of the recipes")
    parser.add_argument("--losses", nargs="+", help="by default all that have a recipe")
    parser.add_argument("--search", action="store_true", help="run the searches instead")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "quality", help="folder for the results"
    )
    args = parser.parse_args()
    template = RECIPE[args.encoder] + ("{}-search" if args.search else "{}")
    available_losses = [loss for loss in OBJECTIVES if template.format(loss) in RECIPES]
    check_names(parser, "--losses", args.losses or (), available_losses)
    about = environment("crl_jax", "jax", "jaxlib", "flax", "optax", "numpy")
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for loss in args.losses or available_losses:
        recipe = template.format(loss)
        folder = args.runs / recipe
        run("recommend", ["--recipe", recipe, "--data", str(args.data), "--seed", "0"], folder)
        if args.search:
            shutil.copy(folder / "sweep.csv", args.out / f"{recipe}.csv")
            continue
        shutil.copy(folder / "curves.png", args.out / f"{recipe}.png")
        key = {"encoder": args.encoder, "loss": loss}
        last_entry = json.loads((folder / "history.jsonl").read_text().splitlines()[-1])
        row = {
            **key,
            **scores(folder),
            f"{METRIC}_published": PUBLISHED[args.encoder].get(loss),
            "epochs": last_entry["epoch"],
            "valid": read_json(folder / "config.json")["source"]["valid_fraction"],
        }
        seeds = [{**key, **seed_row} for seed_row in per_seed(folder)]
        record(args.out / "losses.csv", [row], list(key), about)
        record(args.out / "per_seed.csv", seeds, list(key), {})
        rows.append(row)
    if rows:
        show(rows, ("loss", f"{METRIC}_published", METRIC, f"{METRIC}_std", "epochs"))


if __name__ == "__main__":
    main()
