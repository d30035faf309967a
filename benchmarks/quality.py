"""Test NDCG of every loss on MovieLens 100K, compared with the published figures.

Runs the tuned recipes ``ml-100k-LOSS`` (five seeds each) on a folder with the published split,
one run directory per loss under ``--runs``, and collects their metrics. Completed runs are not
repeated, interrupted ones are resumed. With ``--search``, runs the hyper-parameter searches that
selected the recipes instead, and keeps their tables. ``--encoder lightgcn`` runs those of LightGCN.

    python -m benchmarks.quality --data ml-100k --runs runs/quality
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from experiments import recommend
from experiments.objectives import OBJECTIVES
from experiments.recipes import RECIPES

from . import _common as common

METRIC = "ndcg@20"


class Encoder(NamedTuple):
    """Recipe prefix of an encoder, its result file and the published figures.

    Tables 5.2 and 6.3 of the dissertation, ML-100K.
    """

    recipes: str
    file: str
    published: dict[str, float]


ENCODERS = {
    "mf": Encoder(
        "ml-100k-",
        "quality.json",
        {
            "bpr": 0.3962,
            "info_nce": 0.4118,
            "debiased": 0.4207,
            "hard": 0.4242,
            "dpl": 0.4338,
            "bayesian": 0.4357,
        },
    ),
    "lightgcn": Encoder(
        "ml-100k-lightgcn-",
        "lightgcn.json",
        {
            "bpr": 0.3986,
            "info_nce": 0.3976,
            "debiased": 0.4006,
            "hard": 0.4182,
            "dpl": 0.4331,
            "bayesian": 0.4347,
        },
    ),
}


def run(recipe: str, data: Path, folder: Path, seed: int = 0) -> None:
    """Runs a recipe, resumes it, or does nothing if it is complete."""
    if (folder / "config.json").exists():
        status = recommend.main(["--resume", str(folder)])
    else:
        flags = ["--recipe", recipe, "--data", str(data), "--seed", str(seed)]
        status = recommend.main([*flags, "--out", str(folder)])
    if status:
        raise SystemExit(status)


def collect(encoder: Encoder, loss: str, folder: Path) -> dict[str, Any]:
    """Returns one row of the table, including all metrics of every seed."""
    metrics = json.loads((folder / "metrics.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    lines = (folder / "history.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    return {
        "loss": loss,
        "published": encoder.published.get(loss),
        METRIC: metrics[METRIC],
        "std": metrics[f"{METRIC}_std"],
        "epochs": last["epoch"],
        "metrics": metrics,
        "per_seed": json.loads((folder / "metrics_by_seed.json").read_text()),
        "config": {name: config[name] for name in ("objective", "encoding", "training")},
        "valid": config["source"]["valid"],
    }


def main() -> None:
    """Parses the command line, runs, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.csv, test.csv")
    parser.add_argument("--runs", type=Path, default=Path("runs/quality"))
    parser.add_argument("--encoder", choices=ENCODERS, default="mf")
    parser.add_argument("--losses", nargs="+", help="by default all that have a recipe")
    parser.add_argument("--search", action="store_true", help="run the searches instead")
    default = Path(__file__).parent / "results" / "quality"
    parser.add_argument("--out", type=Path, default=default, help="folder for the figures")
    args = parser.parse_args()
    encoder = ENCODERS[args.encoder]
    form = encoder.recipes + ("{}-search" if args.search else "{}")
    with_recipe = [loss for loss in OBJECTIVES if form.format(loss) in RECIPES]
    for loss in args.losses or []:
        if loss not in with_recipe:
            parser.error(f"--losses takes some of {', '.join(with_recipe)}, got {loss}")
    about = {
        "benchmark": "quality",
        "machine": common.machine(),
        "versions": common.versions("crl_jax", "jax", "jaxlib", "flax", "optax", "numpy"),
    }
    rows = []
    for loss in args.losses or with_recipe:
        recipe = form.format(loss)
        folder = args.runs / recipe
        run(recipe, args.data, folder)
        args.out.mkdir(parents=True, exist_ok=True)
        if args.search:
            shutil.copy(folder / "sweep.csv", args.out / f"{recipe}.csv")
            continue
        shutil.copy(folder / "curves.png", args.out / f"{recipe}.png")
        rows.append(collect(encoder, loss, folder))
        common.write_json(args.out / encoder.file, {**about, "rows": rows})
    if rows:
        shown = ("loss", "published", METRIC, "std", "epochs")
        common.print_table([{name: row[name] for name in shown} for row in rows])


if __name__ == "__main__":
    main()
