"""NDCG@20 by batch size, for several rules that scale the learning rate with it.

Trains matrix factorisation with the defaults of ``recommend`` for each loss, width 64, for the
default number of epochs: a larger batch has fewer steps. ``lr(B) = lr(1024) * (B / 1024)**power``,
optionally with linear warm-up over the first tenth of the steps. All rules and seeds of a batch
size are trained together. The datasets are those of ``benchmarks.defaults``, with a new split:
validation data select the rule, and the test part is reported for all of them. ``gowalla-all`` is
the complete training part of Gowalla, for an accelerator, without a test part.

    python -m benchmarks.batch_size --data DIR --out benchmarks/results/batch_size.csv

``DIR`` has folders ml-100k and gowalla.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from crl_jax import data, losses, metrics, models, samplers, tasks, train
from experiments._compiler import tune_compiler
from experiments.recommend.start import FAMILIES, Family, default_epochs

from ._report import Report, Row, count, one_line_errors, parser
from .defaults import DATASETS

BASE, DIM, K = 1024, 64, 20
ALL = "gowalla-all"
METRIC = f"ndcg@{K}"


class Rule(NamedTuple):
    """Learning rate as a function of the batch size."""

    power: float
    warm_up: float = 0.0

    def learning_rate(self, base: float, batch_size: int) -> float:
        """Returns the learning rate, given that of batches of 1,024."""
        return base * (batch_size / BASE) ** self.power


RULES: Mapping[str, Rule] = {
    "constant": Rule(0.0),
    "square root": Rule(0.5),
    "proportional": Rule(1.0),
    "square root, warm-up": Rule(0.5, 0.1),
    "proportional, warm-up": Rule(1.0, 0.1),
}


_PAIRWISE, _SOFTMAX = FAMILIES["bpr"], FAMILIES["softmax"]
LOSSES: Mapping[str, tuple[Family, Mapping[str, Any]]] = {
    "bpr": (_PAIRWISE, {"loss": losses.bpr, "n_neg": _PAIRWISE.n_neg}),
    "info_nce": (
        _SOFTMAX,
        {
            "loss": losses.info_nce,
            "n_neg": _SOFTMAX.n_neg,
            "hyperparams": {"temperature": _SOFTMAX.temperature},
            "sampler": samplers.SharedRNS(),
        },
    ),
}
"""Defaults and arguments of ``fit_ranking`` of each loss."""


def measure(
    split: data.Split, loss: str, batch_size: int, n_seeds: int, epochs: int | None = None
) -> list[Row]:
    """Trains all rules at one batch size; returns a row for each, with means over the seeds."""
    assert split.valid is not None
    (family, options), log = LOSSES[loss], split.train
    base, similarity = family.training.lr, family.similarity or "inner"
    epochs = epochs or default_epochs(len(log))
    rates = [rule.learning_rate(base, batch_size) for rule in RULES.values()]
    runs = train.grid({"rule": range(len(RULES))}, range(n_seeds))
    warm_ups = np.array([rule.warm_up for rule in RULES.values()], np.float32)
    fitted = tasks.fit_ranking(
        log,
        split.valid,
        **options,
        encoder=models.MatrixFactorization(log.n_users, log.n_items, DIM, similarity=similarity),
        optimizer=train.Optimizer(
            base, family.training.weight_decay, decay=0.0, schedule=train.cosine
        ),
        config=train.TrainConfig(batch_size),
        epochs=epochs,
        stopping=tasks.Stopping(patience=epochs, eval_every=2, k=K),
        options=tasks.RankingOptions(l2_target="rows"),
        seeds=runs["seeds"],
        sweep={
            "optimizer.learning_rate": np.array(rates, np.float32)[runs["rule"]],
            "optimizer.warm_up": warm_ups[runs["rule"]],
        },
    )
    valid = fitted.best_score.reshape(-1, n_seeds)
    steps = -(-len(log) // batch_size)
    rows: list[Row] = [
        {
            "loss": loss, "batch_size": batch_size, "steps": steps * epochs, "epochs": epochs,
            "rule": name, "lr": rates[i], "seeds": n_seeds,
            f"valid_{METRIC}": float(valid[i].mean()),
        }
        for i, name in enumerate(RULES)
    ]  # fmt: skip
    if split.test is not None:
        layout = metrics.eval_layout(data.union(log, split.valid), split.test)
        for i, row in enumerate(rows):
            runs = range(i * n_seeds, (i + 1) * n_seeds)
            scores = [mean_ndcg(fitted.tables(run), layout) for run in runs]
            row |= {METRIC: float(np.mean(scores)), f"{METRIC}_std": float(np.std(scores))}
    return rows


def mean_ndcg(tables: models.Tables, layout: metrics.EvalLayout) -> float:
    """Returns the mean NDCG@20 of a trained run."""
    values = metrics.evaluate(models.inner_scores, tables, layout, ks=(K,), auc=False)
    return float(np.mean(values[METRIC]))


@one_line_errors
def main() -> None:
    """Trains all rules at all batch sizes."""
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    arguments.add_argument(
        "--datasets", nargs="+", choices=[*DATASETS, ALL], default=["ml-100k", "gowalla"]
    )
    arguments.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    arguments.add_argument(
        "--sizes", nargs="+", type=count, default=[2**i for i in range(10, 17)], help="batch sizes"
    )
    arguments.add_argument("--seeds", type=count, default=2)
    args = arguments.parse_args()
    tune_compiler()
    report = Report(args.out, "crl_jax", "jax", "jaxlib", "numpy", dim=DIM)
    for name in args.datasets:
        if name == ALL:
            split = data.with_validation(data.load(args.data / "gowalla").train, valid=0.1, seed=0)
        else:
            split = data.split_by_ratio(DATASETS[name](args.data), test=0.2, seed=0)
            split = data.with_validation(split, valid=0.1, seed=0)
        sizes = {"dataset": name, "interactions": len(split.train)}
        for loss in args.losses:
            for batch_size in args.sizes:
                rows = measure(split, loss, batch_size, args.seeds)
                report.add([{**sizes, **row} for row in rows])


if __name__ == "__main__":
    main()
