"""Comparison of all losses on one dataset: eight points, five seeds, tests against InfoNCE.

For each loss of the command line, the 40 runs of matrix factorisation are one program: trained
together, and compared on validation data. The point with the best mean over the seeds is trained
again with all seeds on all training data, and scored on the test part. The searched number is the
one that the defaults of the loss search: the temperature of a softmax loss, the L2 of a pairwise
one, the learning rate of others. Completed losses are not repeated. Rows of losses that are not
named stay in the file; p-values are adjusted for the losses of a call.

    python -m benchmarks.losses --data ml-100k --runs runs/losses
"""

from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.recommend.objectives import OBJECTIVES
from experiments.recommend.start import select_family

from ._report import RESULTS, count, environment, one_line_errors
from ._runs import per_seed, read_json, record, run, scores, show
from ._significance import MAIN_METRIC as METRIC
from ._significance import compare_with, per_user

PLAIN = "info_nce"
"""Loss that the others are tested against."""
POINTS: Mapping[str, tuple[float, ...]] = {
    "temperature": (0.07, 0.1, 0.14, 0.2, 0.3, 0.45, 0.7, 1.2),
    "weight_decay": (0.0, 0.001, 0.003, 0.01, 0.02, 0.03, 0.06, 0.15),
    "lr": (5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 4.5e-3, 6e-3, 9e-3),
}
"""Values that are tried of each searched number."""
LOSSES = tuple(name for name, entry in OBJECTIVES.items() if not entry.candidates)


def searched_hyperparameter(loss: str) -> str:
    """Returns the name of the number that is searched for a loss."""
    return next(iter(select_family(loss, None, None).search), "lr")


@one_line_errors
def main() -> None:
    """Trains all losses, and collects their results."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="a dataset with a test part")
    parser.add_argument("--runs", type=Path, default=Path("runs/losses"), help="run directories")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES),
                        help=f"by default all; {PLAIN} is always trained")  # fmt: skip
    parser.add_argument("--seeds", type=count, default=5, help="number of seeds of each point")
    parser.add_argument("--out", type=Path, default=RESULTS / "losses.csv")
    args = parser.parse_args()
    n_seeds = str(args.seeds)
    rows, seeds, users = [], [], []
    for loss in dict.fromkeys((PLAIN, *args.losses)):
        folder, name = args.runs / loss, searched_hyperparameter(loss)
        values = ",".join(map(str, POINTS[name]))
        run(
            "recommend",
            ["--data", str(args.data), "--loss", loss, "--sweep", f"{name}={values}",
             "--search-seeds", n_seeds, "--seeds", n_seeds, "--k", "20", "--baselines", "none"],
            folder,
        )  # fmt: skip
        metrics = read_json(folder / "metrics.json")
        seed_scores = np.array([row[METRIC] for row in per_seed(folder)])
        rows.append({
            "loss": loss, "searched": name, "chosen": metrics["chosen"]["point"][name],
            METRIC: scores(folder)[METRIC], f"{METRIC}_std": float(seed_scores.std(ddof=1)),
            "seconds": metrics["seconds"],
        })  # fmt: skip
        seeds.append(seed_scores)
        users.append(per_user([folder]))
    compare_with(0, rows, seeds, users)
    rows.sort(key=lambda row: -row[METRIC])
    about = environment("crl_jax", "jax", "jaxlib", "numpy")
    record(args.out, rows, ["loss"], about, order=lambda row: -float(row[METRIC]))
    show(rows, ("loss", "searched", "chosen", METRIC, "gain", "p_seeds", "p_users", "seconds"))


if __name__ == "__main__":
    main()
