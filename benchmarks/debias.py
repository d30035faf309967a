"""Regret of estimated hyper-parameters of debiased losses, against a grid of them.

Trains matrix factorisation with the defaults of ``recommend``, width 32 and a fixed temperature,
at every point of a small grid of tau-plus, alpha and beta, and with the estimates of ``--debias
auto``: the density as tau-plus, alpha measured in each step, and the beta whose validation score is
best after a third of the training. All runs of a loss are trained together. Validation data select
the epochs and beta, and the point of the grid that a search would choose; the best point on test
data is a bound that no search can reach. The datasets are those of ``benchmarks.defaults``.

    python -m benchmarks.debias --data DIR --seeds 3 --out benchmarks/results/debias.csv

``DIR`` has the folders ml-100k, ml-1m, gowalla and yelp2018.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from crl_jax import data, losses, metrics, models, samplers, tasks, train
from experiments._compiler import tune_compiler
from experiments._study import grid_points
from experiments.recommend.start import FAMILIES, default_epochs

from ._report import Report, Row, count, one_line_errors, parser
from .batch_size import mean_ndcg
from .defaults import DATASETS

DIM, K = 32, 20
METRIC = f"ndcg@{K}"
_MEASURED_ALPHA = 0.5
"""Value of alpha that denotes the estimate, so that one program trains all points."""


class Method(NamedTuple):
    """A loss and the grid of its hyper-parameters; tau-plus in multiples of the density."""

    loss: Any
    family: str
    grid: Mapping[str, tuple[float, ...]]
    options: Mapping[str, Any]
    n_pos: int = 0


_SHARED = {"sampler": samplers.SharedRNS(), "n_neg": 128}
_SCORES = {"temperature": 0.3}
_COSINES = {**_SCORES, "min_score": -1.0}
METHODS: Mapping[str, Method] = {
    "bayesian": Method(
        losses.bayesian_contrastive, "softmax",
        {"tau_plus": (1, 4), "alpha": (0.7, 0.9), "beta": (0.5, 0.7, 0.9)},
        {**_SHARED, "hyperparams": _SCORES},
    ),
    "hard": Method(
        losses.hard_contrastive, "softmax", {"tau_plus": (1, 4), "beta": (0.25, 0.5, 1.0)},
        {**_SHARED, "hyperparams": _COSINES},
    ),
    "debiased": Method(
        losses.debiased_contrastive, "softmax", {"tau_plus": (0, 1, 2, 4)},
        {**_SHARED, "hyperparams": _COSINES},
    ),
    "dpl": Method(
        losses.debiased_pairwise, "pairwise", {"tau_plus": (0, 1, 2, 4)}, {"n_neg": 5}, n_pos=5,
    ),
}  # fmt: skip


def list_points(method: Method) -> list[dict[str, float]]:
    """Returns the points of the grid, and then those among which the estimates decide on beta."""
    points = grid_points(method.grid)
    if "alpha" not in method.grid:
        return points
    return points + [
        {"tau_plus": 1.0, "alpha": _MEASURED_ALPHA, "beta": beta} for beta in method.grid["beta"]
    ]


def _measure_alpha(pos: Any, neg: Any, where: Any, hyperparams: dict[str, Any]) -> dict[str, Any]:
    """Replaces an alpha of :data:`_MEASURED_ALPHA` by its estimate."""
    alpha, estimate = hyperparams["alpha"], tasks.alpha_from_batch(pos, neg, where, hyperparams)
    return {"alpha": jnp.where(alpha == _MEASURED_ALPHA, estimate["alpha"], alpha)}


def measure(
    split: data.HeldOutSplit, name: str, n_seeds: int, epochs: int | None = None
) -> list[Row]:
    """Trains all points of a loss; returns a row for the estimates, and one per seed."""
    assert split.valid is not None
    method, density = METHODS[name], split.train.density
    family = FAMILIES[method.family]
    epochs = epochs or default_epochs(len(split.train))
    points = list_points(method)
    runs = train.grid({"point": range(len(points))}, range(n_seeds))
    sweep = {
        f"task.hyperparams.{key}": np.array([point[key] for point in points], np.float32)[
            runs["point"]
        ]
        for key in points[0]
    }
    sweep["task.hyperparams.tau_plus"] *= np.float32(density)
    fitted = tasks.fit_ranking(
        split.train,
        split.valid,
        loss=method.loss,
        encoder=models.MatrixFactorization(
            split.train.n_users, split.train.n_items, DIM, similarity=family.similarity or "inner"
        ),
        **method.options,
        optimizer=train.Optimizer(
            family.training.lr, family.training.weight_decay, decay=0.0, schedule=train.cosine
        ),
        epochs=epochs,
        stopping=tasks.Stopping(patience=epochs, eval_every=2, k=K),
        options=tasks.RankingOptions(
            n_pos=method.n_pos,
            l2_target="rows",
            hyperparam_estimator=_measure_alpha if "alpha" in method.grid else None,
        ),
        seeds=runs["seeds"],
        sweep=sweep,
    )
    layout = metrics.eval_layout(data.union(split.train, split.valid), split.test)
    test = np.array([mean_ndcg(fitted.tables(i), layout) for i in range(fitted.n_runs)])
    valid = np.asarray(fitted.best_score)
    third_entry = next(entry for entry in fitted.history if entry["epoch"] >= epochs / 3)
    early_scores = np.asarray(third_entry[f"valid_{METRIC}"])
    rows = []
    for seed in range(n_seeds):
        seed_runs = np.flatnonzero(runs["seeds"] == seed)
        grid, auto = _split_runs(method, points, runs["point"][seed_runs])
        grid, auto = seed_runs[grid], seed_runs[auto]
        chosen = auto[np.argmax(early_scores[auto])]
        searched, best = grid[np.argmax(valid[grid])], grid[np.argmax(test[grid])]
        alpha = third_entry["alpha"][chosen] if "alpha" in third_entry else np.nan
        rows.append({
            "loss": name, "seed": seed, "epochs": epochs, "points": len(grid),
            "tau_plus": density, "alpha": float(alpha),
            "beta": points[runs["point"][chosen]].get("beta", np.nan),
            METRIC: test[chosen], f"{METRIC}_searched": test[searched],
            f"{METRIC}_best": test[best], f"{METRIC}_worst": test[grid].min(),
            "regret_searched": 1 - test[chosen] / test[searched],
            "regret_best": 1 - test[chosen] / test[best],
            "cost": 1 + (len(auto) - 1) / 3,
            **_point_columns("searched", points[runs["point"][searched]]),
            **_point_columns("best", points[runs["point"][best]]),
        })  # fmt: skip
    return rows


def summarize(rows: Sequence[Row]) -> Row:
    """Returns the row of a loss on a dataset: means over seeds, and all numbers that were chosen.

    The regrets are those of the means, and their deviation is that over seeds.
    """
    row = {name: rows[0][name] for name in ("dataset", "interactions", "loss", "epochs", "points")}
    row["seeds"] = len(rows)
    scores = METRIC, *(f"{METRIC}_{name}" for name in ("searched", "best", "worst"))
    for name in ("tau_plus", "alpha", "cost", *scores):
        row[name] = np.mean([seed_row[name] for seed_row in rows]).item()
    for name in ("searched", "best"):
        row[f"regret_{name}"] = 1 - row[METRIC] / row[f"{METRIC}_{name}"]
        row[f"regret_{name}_std"] = np.std([seed_row[f"regret_{name}"] for seed_row in rows]).item()
    for name in rows[0]:
        if name == "beta" or name.startswith(("searched_", "best_")):
            values = sorted({float(seed_row[name]) for seed_row in rows})
            row[name] = ", ".join(f"{value:g}" for value in values if not np.isnan(value))
    return row


def _split_runs(
    method: Method, points: list[dict[str, float]], run_points: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns masks of the runs of the grid, and of those among which the estimates decide."""
    if "alpha" in method.grid:
        measured = np.array([points[i]["alpha"] == _MEASURED_ALPHA for i in run_points])
        return ~measured, measured
    estimated = np.array([points[i]["tau_plus"] == 1 for i in run_points])
    return np.ones(len(run_points), bool), estimated


def _point_columns(name: str, point: dict[str, float]) -> Row:
    """Returns the numbers of a point of the grid, NaN for those that the loss does not take."""
    return {f"{name}_{key}": point.get(key, np.nan) for key in ("tau_plus", "alpha", "beta")}


@one_line_errors
def main() -> None:
    """Trains the grid and the estimates of all losses on all datasets."""
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    arguments.add_argument(
        "--datasets", nargs="+", choices=list(DATASETS),
        default=[name for name in DATASETS if name != "gowalla"],
    )  # fmt: skip
    arguments.add_argument("--losses", nargs="+", choices=list(METHODS), default=list(METHODS))
    arguments.add_argument("--seeds", type=count, default=1)
    arguments.add_argument("--epochs", type=count, help="by default those of recommend")
    args = arguments.parse_args()
    tune_compiler()
    report = Report(args.out, "crl_jax", "jax", "jaxlib", "numpy", dim=DIM)
    for name in args.datasets:
        split = data.split_by_ratio(DATASETS[name](args.data), test=0.2, seed=0)
        split = data.with_validation(split, valid=0.1, seed=0)
        sizes = {"dataset": name, "interactions": len(split.train)}
        for loss in args.losses:
            rows = [{**sizes, **row} for row in measure(split, loss, args.seeds, args.epochs)]
            report.add([summarize(rows)])
            report.add(rows, "per_seed")


if __name__ == "__main__":
    main()
