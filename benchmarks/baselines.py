"""Time, memory and quality of the baselines at three sizes, on one core.

Each baseline is fitted with its defaults in a separate process. Reported are seconds and processor
seconds of fitting (up to the first scores), the growth of peak memory while it fits, the size of
the fitted arrays, and, for 2,000 users, milliseconds per list of 20 items and NDCG@20. On a busy
machine, trust the processor seconds. ``EASE`` is left out where its matrix has more than 16,384
rows.

``$CRL_DATA`` holds ``ml-100k/u.data``, of which a random fifth is the test part, and ``gowalla``.

    taskset -c 0 python -m benchmarks.baselines --out benchmarks/results/baselines.csv
"""

import argparse
import os
from pathlib import Path

import numpy as np

from crl_jax import baselines, data, metrics

from ._processes import growth_mb, in_process
from ._report import Report, Row, one_line_errors, parser, timed

K, LISTS, MAX_EASE_SIDE = 20, 2_000, 16_384
SAMPLE = "Gowalla, 6,000 users"
FILES = {"ml-100k": "ml-100k/u.data", SAMPLE: "gowalla", "gowalla": "gowalla"}
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
NAMES = [
    name
    for name, cls in vars(baselines).items()
    if isinstance(cls, type)
    and issubclass(cls, baselines.Baseline)
    and cls is not baselines.Baseline
]


def load(name: str) -> tuple[data.Interactions, data.Interactions]:
    """Returns the training and the test part."""
    loaded = data.load(Path(os.environ["CRL_DATA"], FILES[name]))
    parts = loaded if isinstance(loaded, data.Split) else data.split_by_ratio(loaded, test=0.2)
    if name != SAMPLE:
        return parts.train, parts.test
    users = np.random.default_rng(0).permutation(parts.train.n_users)[:6_000]
    train = parts.train.select(np.isin(parts.train.users, users))
    items = np.unique(train.items)
    test = parts.test.select(np.isin(parts.test.users, users) & np.isin(parts.test.items, items))
    return _compact(train, users, items), _compact(test, users, items)


def _compact(log: data.Interactions, users: np.ndarray, items: np.ndarray) -> data.Interactions:
    """Returns the interactions with a vocabulary of these users and items only."""
    index = np.searchsorted(np.sort(users), log.users), np.searchsorted(items, log.items)
    return data.Interactions.from_arrays(
        *index, user_ids=log.user_ids[np.sort(users)], item_ids=log.item_ids[items]
    )


def measure(dataset: str, name: str) -> Row:
    """Fits and evaluates a baseline in this process."""
    train, test = load(dataset)
    step = -(-test.n_users // LISTS)
    layout = metrics.eval_layout(train, test.select(test.users % step == 0))
    model = getattr(baselines, name)()

    def fit_model() -> baselines.FittedBaseline:
        fitted = model.fit(train)
        fitted.scores([0])  # prepares the scorer
        return fitted

    growth, fit = growth_mb(lambda: timed(fit_model))
    fit.value.recommend(layout.users[:256], K)  # compiles
    lists = timed(fit.value.recommend, layout.users, K)
    values = metrics.summarize(metrics.evaluate_lists(lists.value[0], layout, ks=K))
    return {
        "baseline": name,
        "fit_seconds": fit.seconds,
        "fit_cpu_seconds": fit.cpu_seconds,
        "fit_mb": growth,
        "arrays_mb": sum(array.nbytes for array in fit.value.arrays.values()) / 1e6,
        "list_ms": 1e3 * lists.seconds / len(layout.users),
        "list_cpu_ms": 1e3 * lists.cpu_seconds / len(layout.users),
        f"ndcg@{K}": float(values[f"ndcg@{K}"]),
    }


@one_line_errors
def main() -> None:
    """Measures all baselines, from the smallest to the largest data."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--data", nargs="+", choices=FILES, default=[*FILES], help="datasets, by default all"
    )
    arguments.add_argument(
        "--baselines", nargs="+", choices=NAMES, default=NAMES, help="by default all"
    )
    args: argparse.Namespace = arguments.parse_args()
    if "CRL_DATA" not in os.environ:
        raise SystemExit("set CRL_DATA to the folder of the datasets")
    report = Report(args.out, "jax", "numpy", "scipy")
    for name in args.data:
        train, _ = load(name)
        sizes = {"users": train.n_users, "items": train.n_items, "interactions": len(train)}
        for baseline in args.baselines:
            if baseline == "EASE" and min(train.n_users, train.n_items) > MAX_EASE_SIDE:
                continue
            row = in_process(measure, name, baseline, env=ONE_THREAD)
            report.add([{"data": name, **sizes, **row}])


if __name__ == "__main__":
    main()
